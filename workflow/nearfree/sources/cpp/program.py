"""A C++ rule in normal form, with all functions that it reaches."""

import ast
from collections.abc import Mapping, Sequence
from typing import Any

from nearfree.errors import MovedError, SourceError
from nearfree.sources.cpp.expressions import Meaning
from nearfree.sources.cpp.nodes import called_name, part
from nearfree.sources.cpp.records import thread_records
from nearfree.sources.cpp.source import CppFiles, Definition, specialised_for, text_of, walk
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
from nearfree.sources.language.reading import DENSE, Reading


def cpp_program(
    files: CppFiles,
    *names: str,
    leaves: Leaves,
    own: Leaves | None = None,
    meaning: Meaning | None = None,
    made: Mapping[str, Function] | None = None,
    constants: Mapping[str, str] | None = None,
) -> tuple[Program, str]:
    """Return a function's program, all functions that it reaches included, and its name.

    Parameters
    ----------
    names
        Names that the function may have; exactly one of them must be defined, once.
    leaves
        Replacements of the facts that the rule reads from its surroundings.
    own
        Replacements that apply in the function itself only, such as of local names.
    made
        Further functions, which a reader composed from other sources.
    constants
        Expressions for names without meaning for the rule, such as the stream.
    """
    definition = files.locate(*names)
    root = _with_leaves(translate(files, definition, meaning), {**(own or {}), **leaves})
    functions = {root.name: root}
    waiting = [root]
    for name, function in (made or {}).items():
        functions[name] = function
        waiting.append(function)
    while waiting:
        for name in called_in(waiting.pop()) - functions.keys() - BUILTINS.keys():
            if files.defines(name):
                callee = translate(files, files.locate(name), meaning)
                functions[name] = _with_leaves(callee, leaves)
                waiting.append(functions[name])
    for record in meaning.records if meaning else ():
        functions = thread_records(functions, root.name, record)
    constant_values = {name: parse(text) for name, text in (constants or {}).items()}
    return Program(functions, constant_values), root.name


def cpp_reading(
    rule: str,
    files: CppFiles,
    *names: str,
    axis: str | None,
    contexts: Sequence[Mapping[str, Any]],
    leaves: Leaves,
    own: Leaves | None = None,
    meaning: Meaning | None = None,
    made: Mapping[str, Function] | None = None,
    constants: Mapping[str, str] | None = None,
    dense: Sequence[int] = DENSE,
    minimums: Mapping[str, int] | None = None,
) -> Reading:
    """Return the reading of a C++ function; its parameters are `cpp_program`'s and a reading's."""
    return Reading(
        rule,
        *cpp_program(
            files, *names, leaves=leaves, own=own, meaning=meaning, made=made, constants=constants
        ),
        axis=axis,
        contexts=contexts,
        interpret_whole=False,
        dense=dense,
        minimums=minimums or {},
    )


def _with_leaves(function: Function, leaves: Leaves) -> Function:
    """Return a function with its leaves replaced; other member calls become opaque."""
    translated: Function = _OpaqueMembers().visit(replace_leaves(function, leaves))
    return translated


class _OpaqueMembers(ast.NodeTransformer):
    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.func, ast.Attribute) or node.func.attr in ENDS.values():
            return node
        text = at(ast.Constant(ast.unparse(node)[:80]), node)
        return at(ast.Call(at(ast.Name("opaque", ast.Load()), node), [text], []), node)


def dispatch(files: CppFiles, name: str) -> tuple[Function, set[str]]:
    """Return a function that calls what the specialisations call, and their callees' names.

    Types are ignored: specialisations that differ only in a type must agree.

    Raises
    ------
    SourceError
        There is no specialisation, one does not parse, or two contradict each other.
    """
    specialisations = [
        specialisation
        for specialisation in files.definitions(name)
        if specialised_for(specialisation.node)
    ]
    if not specialisations or any(
        specialisation.node.has_error for specialisation in specialisations
    ):
        raise MovedError(f"{name} has no specialisations that can be read")
    callees = {
        called_name(node)
        for specialisation in specialisations
        for node in walk(part(specialisation.node, "body"))
        if node.type == "call_expression"
    }
    cases: dict[str, tuple[ast.expr, ast.stmt]] = {}
    for specialisation in specialisations:
        function = translate(files, specialisation, Meaning(tails=frozenset(callees)))
        test, statement = _case(specialisation, function)
        earlier = cases.setdefault(ast.unparse(test), (test, statement))[1]
        if _text_without_types(earlier) != _text_without_types(statement):
            raise SourceError(f"{name} differs between types where {ast.unparse(test)}")
    dispatcher = copied(function)
    dispatcher.args.args = [
        ast.arg(f"argument_{index}") for index in range(len(specialised_for(specialisation.node)))
    ]
    dispatcher.args.args += function.args.args
    dispatcher.body = [
        ast.copy_location(ast.If(test, [statement], []), test) for test, statement in cases.values()
    ]
    return dispatcher, callees


def _case(specialisation: Definition, function: Function) -> tuple[ast.expr, ast.stmt]:
    """Return the condition under which a specialisation applies, and its statement."""
    if len(function.body) != 1:
        raise SourceError(
            f"{specialisation.text.path}: {function.name} does more than call one function"
        )
    statement = function.body[0]
    tests: list[ast.expr] = []
    for index, node in enumerate(specialised_for(specialisation.node)):
        value = _constant(text_of(node))
        if value is not None:
            argument = at(ast.Name(f"argument_{index}", ast.Load()), statement)
            constant = at(ast.Constant(value), statement)
            tests.append(at(ast.Compare(argument, [ast.Eq()], [constant]), statement))
    return at(ast.BoolOp(ast.And(), tests), statement), statement


def _constant(text: str) -> int | bool | None:
    if text in {"true", "false"}:
        return text == "true"
    return int(text) if text.isdecimal() else None


def _text_without_types(statement: ast.stmt) -> str:
    class Untyped(ast.NodeTransformer):
        def visit_Constant(self, node: ast.Constant) -> ast.Constant:
            return ast.Constant("type") if isinstance(node.value, str) else node

    return ast.unparse(Untyped().visit(copied(statement)))
