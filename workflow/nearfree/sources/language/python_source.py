"""Python sources: find a function by its name, and what it reaches.

A name must have exactly one definition among the files; two are an error, as none is.
"""

import ast
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import TypeVar

from nearfree.errors import MOVED, SourceError
from nearfree.sources.language.cuts import assignments
from nearfree.sources.language.expressions import UnknownConstructError, name_of
from nearfree.sources.language.functions import BUILTINS, OWN, nodes_of
from nearfree.sources.language.program import (
    HARMLESS_DECORATORS,
    Function,
    Leaves,
    Program,
    Text,
    at,
    bound_by,
    copied,
    defaults,
    mark,
    names_in,
    parameters,
    replace_leaves,
)

Defined = TypeVar("Defined", ast.FunctionDef, ast.ClassDef)


class Modules:
    """The parsed Python files of one release.

    Parameters
    ----------
    files
        Contents by path. A file that does not parse is an error only where it is needed.
    """

    def __init__(self, files: Mapping[str, str]) -> None:
        self.files = files
        self._trees: dict[str, ast.Module] = {}

    def tree(self, path: str) -> ast.Module:
        """Return a file's syntax tree."""
        if path not in self._trees:
            self._trees[path] = _parsed(path, self.files[path])
        return self._trees[path]

    def definitions(self, kind: type[Defined], *texts: str) -> Iterator[tuple[str, Defined]]:
        """Yield the functions or classes of the files that hold one of some texts."""
        for path, content in sorted(self.files.items()):
            if any(text in content for text in texts):
                for node in self.tree(path).body:
                    if isinstance(node, kind):
                        yield path, node

    def locate(self, names: Iterable[str]) -> tuple[str, Function]:
        """Return the file and the one function that has one of the names."""
        wanted = set(names)
        texts = [f"def {name}" for name in wanted]
        functions = self.definitions(ast.FunctionDef, *texts)
        found = [(path, node) for path, node in functions if node.name in wanted]
        bound = sum(_bindings(path, self.files[path])[node.name] for path, node in found)
        if len(found) != 1 or bound != 1:
            places = ", ".join(f"{path}:{node.lineno}" for path, node in found) or "nowhere"
            again = " and set again" if len(found) == 1 else ""
            raise SourceError(
                f"{' or '.join(sorted(wanted))} must be defined once; it is defined"
                f" {places}{again}",
                remedy=MOVED,
            )
        return found[0]

    def find(self, name: str) -> tuple[str, Function] | None:
        """Return the one function of a name, with its file; None if there is none."""
        if not any(f"def {name}(" in content for content in self.files.values()):
            return None
        return self.locate([name])

    def program(self, names: Iterable[str], leaves: Leaves) -> tuple[Program, str]:
        """Return a function with all that it reaches, and its name."""
        return self.program_of(*self.locate(names), leaves)

    def program_of(self, path: str, root: Function, leaves: Leaves) -> tuple[Program, str]:
        """Return a function of a file, or a cut of one, with all that it reaches."""
        functions: dict[str, Function] = {}
        constants: dict[str, ast.expr] = {}
        stands: dict[str, tuple[str, str]] = {}
        waiting = [(path, root)]
        while waiting:
            here, function = waiting.pop()
            functions[function.name] = self._ready(function, leaves)
            for name in _free(functions[function.name]):
                reached = self._reached(here, name)
                if reached is None:
                    continue
                there, found = reached
                place = (there, found.name if isinstance(found, ast.FunctionDef) else name)
                if stands.setdefault(name, place) != place or place[1] != name:
                    raise UnknownConstructError(f"{name} stands for several things", function)
                if isinstance(found, ast.FunctionDef) and name not in functions:
                    waiting.append((there, found))
                elif isinstance(found, ast.expr):
                    constants[name] = found
        for function in functions.values():
            _Positional(functions).visit(function)
        return Program(functions, constants), root.name

    def method(self, owner: str, name: str) -> tuple[str, Function] | None:
        """Return a method of the one class of that name, with its file; None if there is none."""
        found = [
            (path, node)
            for path, group in self.definitions(ast.ClassDef, f"class {owner}(")
            if group.name == owner
            for node in group.body
            if isinstance(node, ast.FunctionDef) and node.name == name
        ]
        return found[0] if len(found) == 1 else None

    def having(self, name: str) -> tuple[str, Function] | None:
        """Return the one function that assigns a name, with its file; None if none does.

        Raises
        ------
        SourceError
            Several do.
        """
        functions = self.definitions(ast.FunctionDef, f"{name} = ")
        found = [(path, node) for path, node in functions if assignments(node, name)]
        if len(found) > 1:
            raise SourceError(
                f"{name} is assigned in {' and '.join(node.name for _, node in found)}"
            )
        return found[0] if found else None

    def _ready(self, function: Function, leaves: Leaves) -> Function:
        for decorator in function.decorator_list:
            text = ast.unparse(decorator).split("(")[0]
            if text not in HARMLESS_DECORATORS:
                raise UnknownConstructError(f"{function.name} is decorated by {text}", decorator)
        return replace_leaves(_Foreign().visit(copied(function)), leaves)

    def _reached(self, path: str, name: str) -> tuple[str, Function | ast.expr] | None:
        """Return the constant or function that a name stands for in a file, and where it is."""
        bound = _bindings(path, self.files[path])
        if name in BUILTINS:
            if bound[name]:
                raise UnknownConstructError(f"{path} gives {name} another meaning")
            return None
        constant = _constants(path, self.files[path]).get(name)
        if constant is not None:
            return path, constant
        if any(isinstance(e, ast.FunctionDef) and e.name == name for e in self.tree(path).body):
            return self.only(path, name)
        found = _imports(path, self.files[path]).get(name, [])
        if len(found) != 1 or bound[name] > 1:
            return None
        module, old, relative = found[0]
        try:
            there, function = self.locate([old])
        except SourceError:
            return None
        inside = module.replace(".", "/")
        return (there, function) if relative or there.startswith(inside) else None

    def only(self, path: str, name: str) -> tuple[str, Function]:
        """Return the one function of that name in one file."""
        one = Modules({path: self.files[path]})
        one._trees = {path: self.tree(path)}
        return one.locate([name])


@lru_cache(maxsize=64)
def _parsed(path: str, content: str) -> ast.Module:
    """Return a file's tree; whoever changes a part of it copies that part first."""
    try:
        tree = ast.parse(content, path)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise SourceError(
            f"{path} is not Python of a version that can be read: {error}",
            remedy="If the release is good, read it with a newer Python",
        ) from error
    mark(tree, Text(path, content))
    return tree


@lru_cache(maxsize=64)
def _constants(path: str, content: str) -> dict[str, ast.expr]:
    """Return the module-level names of a file that are set once in all of it, and their values."""
    tree = _parsed(path, content)
    seen = _bindings(path, content).copy()
    for node in nodes_of(tree):
        if isinstance(node, ast.Global):
            seen.update(node.names)
        changed = isinstance(node, ast.Attribute) or (
            isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load)
        )
        if changed and isinstance(node.value, ast.Name):  # type: ignore[attr-defined]
            seen[node.value.id] += 1  # type: ignore[attr-defined]
    found = {}
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else None
        if isinstance(node, ast.AnnAssign):
            target = node.target
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        if isinstance(target, ast.Name) and value is not None and seen[target.id] == 1:
            found[target.id] = value
    return found


@lru_cache(maxsize=64)
def _bindings(path: str, content: str) -> Counter[str]:
    """Return how often each name is bound in a file's own scope, in conditional code too."""
    tree = _parsed(path, content)
    found: Counter[str] = Counter()
    waiting: list[ast.AST] = [*tree.body]
    while waiting:
        node = waiting.pop()
        inner = [] if isinstance(node, _SCOPES) else [*ast.iter_child_nodes(node)]
        if isinstance(getattr(node, "name", None), str) and not isinstance(node, _SCOPES):
            found[node.name] += 1  # type: ignore[attr-defined]
        if inner:
            waiting += inner
        else:
            found.update(bound_by(node))
    for node in nodes_of(tree):
        if isinstance(node, ast.Global):
            found.update(node.names)
    return found


_SCOPES = (
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.Lambda,
    ast.Import,
    ast.ImportFrom,
    ast.Name,
)


@lru_cache(maxsize=64)
def _imports(path: str, content: str) -> dict[str, list[tuple[str, str, bool]]]:
    """Return what names are imported as: module, name there, and whether that is relative."""
    found: dict[str, list[tuple[str, str, bool]]] = {}
    for node in nodes_of(_parsed(path, content)):
        if isinstance(node, ast.ImportFrom):
            for name in node.names:
                place = (node.module or "", name.name, node.level > 0)
                found.setdefault(name.asname or name.name, []).append(place)
    return found


class _Foreign(ast.NodeTransformer):
    """Keeps a source's own `quotient` or `join` apart from the functions that rules call so."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id in OWN:
            node.func.id += "_of_the_source"
        return node


class _Positional(ast.NodeTransformer):
    """Gives arguments by place where a call gives them by name."""

    def __init__(self, functions: Mapping[str, Function]) -> None:
        self.functions = functions

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if not node.keywords or not isinstance(node.func, ast.Name):
            return node
        function = self.functions.get(node.func.id)
        if function is None:
            return node
        given = {part.arg: part.value for part in node.keywords}
        own = defaults(function)
        places = []
        for name in parameters(function)[len(node.args) :]:
            value = given.pop(name) if name in given else own.get(name)
            if value is None or (value is own.get(name) and not isinstance(value, ast.Constant)):
                return node
            places.append(value)
            if not given:
                node.args, node.keywords = [*node.args, *places], []
                break
        return node


def _free(function: Function) -> set[str]:
    bound = {node.arg for node in nodes_of(function) if isinstance(node, ast.arg)}
    bound |= names_in(function, context=ast.Store)
    bound |= {node.name for node in nodes_of(function) if isinstance(node, ast.FunctionDef)}
    return (names_in(*function.body) - bound) | names_in(*defaults(function).values())


class Record:
    """A class that holds fields and nothing else."""

    def __init__(self, node: ast.ClassDef) -> None:
        self.name = node.name
        self.fields: dict[str, ast.expr | None] = {}
        for statement in node.body:
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                self.fields[statement.target.id] = statement.value
            elif not (
                isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
            ):
                raise UnknownConstructError(f"{node.name} holds more than fields", statement)

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
    classes = modules.definitions(ast.ClassDef, f"class {name}")
    found = [node for _, node in classes if node.name == name]
    if len(found) > 1:
        raise SourceError(f"{name} is defined {len(found)} times", remedy=MOVED)
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
        given |= {part.arg: part.value for part in node.keywords if part.arg is not None}
        values = [given.pop(name, default) for name, default in self.record.fields.items()]
        if given or None in values or len(node.args) > len(names):
            raise UnknownConstructError(f"{name_of(node)} does not fit its fields", node)
        return at(ast.Tuple([part for part in values if part is not None], ast.Load()), node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        if node.attr not in self.record.fields or not isinstance(node.value, ast.Name):
            return node
        place = at(ast.Constant(list(self.record.fields).index(node.attr)), node)
        return at(ast.Subscript(node.value, place, ast.Load()), node)
