"""Small records of a Python source, such as a frozen dataclass, read as tuples.

`Config(1, b=2)` is the tuple of its fields in order, and `config.b` one entry of it.
"""

import ast

from nearfree.errors import SourceError
from nearfree.sources.language.expressions import UnknownConstructError, name_of
from nearfree.sources.language.program import Function, at
from nearfree.sources.language.python_source import Modules


class Record:
    """A class that holds fields and nothing else."""

    def __init__(self, node: ast.ClassDef) -> None:
        self.name = node.name
        self.fields: dict[str, ast.expr | None] = {}
        for each in node.body:
            if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
                self.fields[each.target.id] = each.value
            elif not (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant)):
                raise UnknownConstructError(f"{node.name} holds more than fields", each)

    def as_tuples(self, function: Function) -> Function:
        """Return a function in which this record is a tuple; it is changed in place."""
        changed: Function = _Tuples(self).visit(function)
        return changed


def find_record(modules: Modules, name: str) -> Record | None:
    """Return the one record of a name, None if there is none.

    Raises
    ------
    SourceError
        It is defined more than once.
    """
    found = [
        node
        for path, content in sorted(modules.files.items())
        if f"class {name}" in content
        for node in modules.tree(path).body
        if isinstance(node, ast.ClassDef) and node.name == name
    ]
    if len(found) > 1:
        raise SourceError(
            f"{name} is defined {len(found)} times",
            remedy="This release keeps its rule elsewhere: its reader must learn where",
        )
    return Record(found[0]) if found else None


class _Tuples(ast.NodeTransformer):
    def __init__(self, record: Record) -> None:
        self.record = record

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.func, ast.Name) or node.func.id != self.record.name:
            return node
        names = list(self.record.fields)
        given = dict(zip(names, node.args, strict=False))
        given |= {each.arg: each.value for each in node.keywords if each.arg is not None}
        values = [given.pop(name, default) for name, default in self.record.fields.items()]
        if given or None in values or len(node.args) > len(names):
            raise UnknownConstructError(f"{name_of(node)} does not fit its fields", node)
        return at(ast.Tuple([each for each in values if each is not None], ast.Load()), node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        if node.attr not in self.record.fields or not isinstance(node.value, ast.Name):
            return node
        place = at(ast.Constant(list(self.record.fields).index(node.attr)), node)
        return at(ast.Subscript(node.value, place, ast.Load()), node)
