"""Cut the code that builds an engine's list of captured CUDA graph sizes out of its method.

An engine builds its list within a method that also sets attributes, logs and reads options. The
code that is read is that method up to the last statement that sets the list, as a function of the
inputs that it uses; the interpreter runs it unchanged.
"""

import ast
from collections.abc import Mapping, Sequence
from typing import Any

from nearfree.errors import MovedError
from nearfree.sources.language.functions import nodes_of
from nearfree.sources.language.program import (
    Function,
    Leaves,
    Program,
    at,
    copied,
    made_function,
    names_in,
    replace_leaves,
    signature,
    statement_at,
)
from nearfree.sources.language.python_source import Modules
from nearfree.sources.language.reading import Reading
from nearfree.sources.language.slicing import changed_in_place, slice_to

SIZES = "sizes"
"""The name of the function that returns the list, in the programs of rules that call it."""


def method_of(modules: Modules, names: Sequence[str]) -> tuple[str, Function] | None:
    """Return the only function or method with one of some names, and its file; None without one.

    Raises
    ------
    SourceError
        Several are defined.
    """
    functions = modules.nodes(ast.FunctionDef, *(f"def {name}(" for name in names))
    definitions = [(path, node) for path, node in functions if node.name in names]
    if len(definitions) > 1:
        places = ", ".join(f"{path}:{node.lineno}" for path, node in definitions)
        raise MovedError(f"{' or '.join(names)} is defined at {places}")
    return definitions[0] if definitions else None


def required_method(definition: tuple[str, Function] | None, title: str) -> tuple[str, Function]:
    """Return a method's definition; SourceError if there is none."""
    if definition is None:
        raise MovedError(f"{title} is nowhere in the release")
    return definition


def list_function(
    function: Function, list_name: str, inputs: Sequence[str], leaves: Leaves, *, name: str = SIZES
) -> Function:
    """Return a function of some inputs that computes a local list, cut out of a long method.

    Parameters
    ----------
    function
        The method; it is not changed.
    list_name
        The list's local name. Statements up to the last one that sets or changes it are kept,
        except those on which it does not depend.
    leaves
        The values of the method's expressions, by pattern.

    Raises
    ------
    SourceError
        The method does not set the name, or changes the attribute in which it stores the list.
    """
    _refuse_changes(function, list_name)
    cut = copied(function)
    cut.body = _up_to(_without_attributes(cut.body), list_name)
    if not cut.body:
        raise MovedError(f"{function.name} does not set {list_name}")
    cut.body.append(statement_at(f"return {list_name}", cut.body[-1]))
    cut.name, cut.decorator_list, cut.returns = name, [], None
    cut.args = signature(inputs)
    return slice_to(replace_leaves(cut, leaves))


def _refuse_changes(function: Function, list_name: str) -> None:
    """Raise SourceError if a method changes the attribute in which it stores its list.

    Storing an empty list, for no graphs, is allowed.
    """
    simple_statements = [
        node
        for node in nodes_of(function)
        if isinstance(node, ast.stmt) and not hasattr(node, "body")
    ]
    attributes = {
        ast.unparse(statement.targets[0])
        for statement in simple_statements
        if isinstance(statement, ast.Assign) and ast.unparse(statement.value) == list_name
    }
    for statement in simple_statements:
        changed_attributes = attributes & {_changed(node) for node in nodes_of(statement)}
        allowed = {
            f"{attribute} = {value}"
            for attribute in changed_attributes
            for value in (list_name, "[]")
        }
        if changed_attributes and ast.unparse(statement) not in allowed:
            raise MovedError(
                f"{function.name} changes {' and '.join(changed_attributes)} "
                f"in line {statement.lineno}"
            )


def _changed(node: ast.AST) -> str:
    """Return, as text, the attribute that a node sets or whose object it may change in place."""
    match node:
        case ast.Attribute(ctx=ast.Store() | ast.Del()):
            return ast.unparse(node)
        case ast.Subscript(value=ast.Attribute() as value, ctx=ast.Store() | ast.Del()):
            return ast.unparse(value)
        case ast.Call(func=ast.Attribute(value=ast.Attribute() as value)):
            return ast.unparse(value)
    return ""


def _without_attributes(body: list[ast.stmt]) -> list[ast.stmt]:
    """Return statements without those that set attributes: the list does not depend on them."""
    local_statements = []
    for statement in body:
        if isinstance(statement, ast.If):
            statement.body = _without_attributes(statement.body) or [
                ast.copy_location(ast.Pass(), statement)
            ]
            statement.orelse = _without_attributes(statement.orelse)
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        if not any(isinstance(target, ast.Attribute) for target in targets):
            local_statements.append(statement)
    return local_statements


def _up_to(body: list[ast.stmt], list_name: str) -> list[ast.stmt]:
    """Return statements up to the last one that sets or changes a name, also within it."""
    setters = [
        index
        for index, statement in enumerate(body)
        if list_name in changed_in_place([statement]) | names_in(statement, context=ast.Store)
    ]
    if not setters:
        return []
    prefix = body[: setters[-1] + 1]
    last = prefix[-1]
    if isinstance(last, ast.If):
        last.body = _up_to(last.body, list_name) or last.body
        last.orelse = _up_to(last.orelse, list_name) or last.orelse
    return prefix


def wrapper_reading(
    rule: str,
    program: Program,
    name: str,
    inputs: Sequence[str],
    contexts: Sequence[Mapping[str, Any]],
) -> Reading:
    """Return the reading of a rule that passes its inputs on to a function of a program.

    The rule then has a single branch, located at the statements that build the list.
    """
    function = program.functions[name]
    first, last = function.body[0], function.body[-1]
    location = at(ast.Pass(), first)
    location.end_lineno = getattr(last, "end_lineno", None) or last.lineno
    location.lineno = min(first.lineno, last.lineno)
    call = statement_at(f"return {name}({', '.join(inputs)})", location)
    wrapper = made_function(rule, inputs, [call], location)
    wrapped = Program({**program.functions, rule: wrapper}, program.constants)
    return Reading(rule, wrapped, rule, axis=None, contexts=contexts)


def joined(program: Program, modules: Modules, path: str, function: Function) -> Program:
    """Return a program extended by a function of a file and all functions that it calls."""
    other, _ = modules.program_of(path, function, {})
    return Program(
        {**program.functions, **other.functions}, {**program.constants, **other.constants}
    )
