"""Template specialisations as one function: which of them applies to which template arguments."""

import ast
import copy

from nearfree.errors import SourceError
from nearfree.sources.cpp.source import CppFiles, Found, specialised_for, walk, words
from nearfree.sources.cpp.translate import Meaning, translate
from nearfree.sources.language.program import Function, at


def dispatch(files: CppFiles, name: str) -> tuple[Function, set[str]]:
    """Return a function that calls what the specialisations call, and what those are.

    Types are left out of account: specialisations that differ in a type alone must agree.

    Raises
    ------
    SourceError
        There is no specialisation, one does not parse, or two contradict each other.
    """
    found = [each for each in files.definitions(name) if specialised_for(each.node)]
    if not found or any(each.node.has_error for each in found):
        raise SourceError(
            f"{name} has no specialisations that can be read",
            remedy="This release keeps its rule elsewhere: its reader must learn where",
        )
    called = {callee for each in found for callee in _callees(each)}
    cases: dict[str, tuple[ast.expr, ast.stmt]] = {}
    for each in found:
        function = translate(files, each, Meaning(tails=frozenset(called)))
        test, statement = _case(each, function)
        old = cases.setdefault(ast.unparse(test), (test, statement))[1]
        if _untyped(old) != _untyped(statement):
            raise SourceError(
                f"{name} differs between types where {ast.unparse(test)}",
                remedy="This release needs a reader of its own: report it",
            )
    made = copy.deepcopy(function)
    made.args.args = [ast.arg(f"argument_{n}") for n in range(len(specialised_for(each.node)))]
    made.args.args += function.args.args
    made.body = [
        ast.copy_location(ast.If(test, [statement], []), test) for test, statement in cases.values()
    ]
    return made, called


def _callees(found: Found) -> set[str]:
    body = found.node.child_by_field_name("body")
    calls = [each for each in walk(body) if each.type == "call_expression"] if body else []
    names = {words(call.child_by_field_name("function")).split("<")[0] for call in calls}
    return {name.rsplit("::", 1)[-1] for name in names}


def _case(found: Found, function: Function) -> tuple[ast.expr, ast.stmt]:
    """Return for which arguments a specialisation is, and what it does there."""
    if len(function.body) != 1:
        raise SourceError(
            f"{found.text.path}: {function.name} does more than call one function",
            remedy="This release needs a reader of its own: report it",
        )
    statement = function.body[0]
    tests: list[ast.expr] = []
    for number, node in enumerate(specialised_for(found.node)):
        value = _constant(words(node))
        if value is not None:
            here = at(ast.Name(f"argument_{number}", ast.Load()), statement)
            constant = at(ast.Constant(value), statement)
            tests.append(at(ast.Compare(here, [ast.Eq()], [constant]), statement))
    return at(ast.BoolOp(ast.And(), tests), statement), statement


def _constant(text: str) -> int | bool | None:
    if text in {"true", "false"}:
        return text == "true"
    return int(text) if text.isdecimal() else None


def _untyped(statement: ast.stmt) -> str:
    class Untyped(ast.NodeTransformer):
        def visit_Constant(self, node: ast.Constant) -> ast.Constant:
            return ast.Constant("type") if isinstance(node.value, str) else node

    return ast.unparse(Untyped().visit(copy.deepcopy(statement)))
