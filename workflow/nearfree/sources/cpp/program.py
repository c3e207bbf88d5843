"""A C++ rule with all that it reaches, in normal form."""

import ast
from collections.abc import Mapping

from nearfree.errors import MOVED, SourceError
from nearfree.sources.cpp.expressions import Meaning
from nearfree.sources.cpp.records import thread_records
from nearfree.sources.cpp.source import CppFiles, Found, specialised_for, walk, words
from nearfree.sources.cpp.translate import ENDS, translate
from nearfree.sources.language.expressions import parse
from nearfree.sources.language.functions import BUILTINS
from nearfree.sources.language.program import (
    Function,
    Leaves,
    Program,
    at,
    called_in,
    copied,
    replace_leaves,
)


def cpp_program(
    files: CppFiles,
    *names: str,
    leaves: Leaves,
    own: Leaves | None = None,
    meaning: Meaning | None = None,
    made: Mapping[str, Function] | None = None,
    constants: Mapping[str, str] | None = None,
) -> tuple[Program, str]:
    """Return a function with the functions that it reaches, and its name.

    Parameters
    ----------
    names
        Names that the function goes by; one must be defined, once.
    leaves
        What the rule asks of the world around it.
    own
        What stands for such a fact in the function itself alone, such as a local name.
    made
        Functions that a reader put together from what it found elsewhere.
    constants
        Expressions for names that carry nothing for the rule, such as the stream.
    """
    found = files.locate(*names)
    root = _ready(translate(files, found, meaning), {**(own or {}), **leaves})
    functions = {root.name: root}
    waiting = [root]
    for name, function in (made or {}).items():
        functions[name] = function
        waiting.append(function)
    while waiting:
        for name in called_in(waiting.pop()) - functions.keys() - BUILTINS.keys():
            if files.defines(name):
                reached = translate(files, files.locate(name), meaning)
                functions[name] = _ready(reached, leaves)
                waiting.append(functions[name])
    for record in meaning.records if meaning else ():
        functions = thread_records(functions, root.name, record)
    plain = {name: parse(text) for name, text in (constants or {}).items()}
    return Program(functions, plain), root.name


def _ready(function: Function, leaves: Leaves) -> Function:
    """Return a function with its leaves replaced; other members have no value, and change none."""
    ready: Function = _NoMembers().visit(replace_leaves(function, leaves))
    return ready


class _NoMembers(ast.NodeTransformer):
    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.func, ast.Attribute) or node.func.attr in ENDS.values():
            return node
        shown = at(ast.Constant(ast.unparse(node)[:80]), node)
        return at(ast.Call(at(ast.Name("opaque", ast.Load()), node), [shown], []), node)


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
        raise SourceError(f"{name} has no specialisations that can be read", remedy=MOVED)
    called = {callee for each in found for callee in _callees(each)}
    cases: dict[str, tuple[ast.expr, ast.stmt]] = {}
    for each in found:
        function = translate(files, each, Meaning(tails=frozenset(called)))
        test, statement = _case(each, function)
        old = cases.setdefault(ast.unparse(test), (test, statement))[1]
        if _untyped(old) != _untyped(statement):
            raise SourceError(f"{name} differs between types where {ast.unparse(test)}")
    made = copied(function)
    made.args.args = [ast.arg(f"argument_{n}") for n in range(len(specialised_for(each.node)))]
    made.args.args += function.args.args
    made.body = [
        ast.copy_location(ast.If(test, [statement], []), test) for test, statement in cases.values()
    ]
    return made, called


def _callees(found: Found) -> set[str]:
    body = found.node.child_by_field_name("body")
    calls = [node for node in walk(body) if node.type == "call_expression"] if body else []
    names = {words(call.child_by_field_name("function")).split("<")[0] for call in calls}
    return {name.rsplit("::", 1)[-1] for name in names}


def _case(found: Found, function: Function) -> tuple[ast.expr, ast.stmt]:
    """Return for which arguments a specialisation is, and what it does there."""
    if len(function.body) != 1:
        raise SourceError(f"{found.text.path}: {function.name} does more than call one function")
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

    return ast.unparse(Untyped().visit(copied(statement)))
