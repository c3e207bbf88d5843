"""What the lists of captured graph sizes of engines have in common: how they are cut out of text.

An engine builds its list in the midst of a method that also sets attributes, logs and looks at
options. What is read is that method up to the last statement that sets the list, as a function of
the inputs that it looks at; the interpreter runs it as it stands.
"""

import ast
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nearfree.errors import MOVED, SourceError
from nearfree.sources.language.functions import nodes_of
from nearfree.sources.language.program import (
    Function,
    Leaves,
    Program,
    at,
    copied,
    names_in,
    replace_leaves,
)
from nearfree.sources.language.python_source import Modules
from nearfree.sources.language.reading import Reading
from nearfree.sources.language.slicing import changed_in_place, slice_to

SIZES = "sizes"
"""The function that returns the list, in programs of rules that ask for it."""


def method_of(modules: Modules, names: Sequence[str]) -> tuple[str, Function] | None:
    """Return the one function or method of one of some names, with its file; None without any.

    Raises
    ------
    SourceError
        There are several.
    """
    found = [
        (path, node)
        for path, content in sorted(modules.files.items())
        if any(f"def {name}(" in content for name in names)
        for node in nodes_of(modules.tree(path))
        if isinstance(node, ast.FunctionDef) and node.name in names
    ]
    if len(found) > 1:
        places = ", ".join(f"{path}:{node.lineno}" for path, node in found)
        raise SourceError(f"{' or '.join(names)} is defined at {places}", remedy=MOVED)
    return found[0] if found else None


def needed(found: tuple[str, Function] | None, what: str) -> tuple[str, Function]:
    """Return what was found; SourceError where nothing was."""
    if found is None:
        raise SourceError(f"{what} is nowhere in the release", remedy=MOVED)
    return found


def listed(
    function: Function, answer: str, inputs: Sequence[str], leaves: Leaves, *, name: str = SIZES
) -> Function:
    """Return a function of some inputs that gives a name's value, cut out of a long method.

    Parameters
    ----------
    function
        The method; it stays as it is.
    answer
        The local name: all up to the last statement that sets or changes it is kept, without what
        it does not depend on.
    leaves
        What expressions of the method stand for.

    Raises
    ------
    SourceError
        The method does not set the name, or changes the list where it keeps it.
    """
    _refuse_changes(function, answer)
    short = copied(function)
    short.body = _up_to(_local(short.body), answer)
    if not short.body:
        raise SourceError(f"{function.name} does not set {answer}", remedy=MOVED)
    last = short.body[-1]
    short.body.append(at(ast.Return(at(ast.Name(answer, ast.Load()), last)), last))
    short.name, short.decorator_list, short.returns = name, [], None
    short.args = parameters_named(inputs)
    return slice_to(replace_leaves(short, leaves))


def _refuse_changes(function: Function, answer: str) -> None:
    """Raise SourceError if a method changes its list where it keeps it, in an attribute.

    An empty one stands there where there are no graphs.
    """
    plain = [e for e in nodes_of(function) if isinstance(e, ast.stmt) and not hasattr(e, "body")]
    places = {
        ast.unparse(each.targets[0])
        for each in plain
        if isinstance(each, ast.Assign) and ast.unparse(each.value) == answer
    }
    for each in plain:
        changed = places & {_changed(node) for node in nodes_of(each)}
        known = {f"{place} = {value}" for place in changed for value in (answer, "[]")}
        if changed and ast.unparse(each) not in known:
            raise SourceError(
                f"{function.name} changes {' and '.join(changed)} in line {each.lineno}",
                remedy=MOVED,
            )


def _changed(node: ast.AST) -> str:
    """Return the attribute that a node sets, or whose object it may change in place, as text."""
    match node:
        case ast.Attribute(ctx=ast.Store() | ast.Del()):
            return ast.unparse(node)
        case ast.Subscript(value=ast.Attribute() as value, ctx=ast.Store() | ast.Del()):
            return ast.unparse(value)
        case ast.Call(func=ast.Attribute(value=ast.Attribute() as value)):
            return ast.unparse(value)
    return ""


def parameters_named(inputs: Sequence[str]) -> ast.arguments:
    """Return parameters of some names, without defaults."""
    return ast.arguments([], [ast.arg(name) for name in inputs], None, [], [], None, [])


def _local(body: list[ast.stmt]) -> list[ast.stmt]:
    """Return statements without those that set attributes, which the list does not depend on."""
    kept = []
    for each in body:
        if isinstance(each, ast.If):
            each.body = _local(each.body) or [ast.copy_location(ast.Pass(), each)]
            each.orelse = _local(each.orelse)
        targets = each.targets if isinstance(each, ast.Assign) else []
        if not any(isinstance(target, ast.Attribute) for target in targets):
            kept.append(each)
    return kept


def _up_to(body: list[ast.stmt], answer: str) -> list[ast.stmt]:
    """Return statements up to the last that sets or changes a name, cut inside of it, too."""
    places = [place for place, each in enumerate(body) if answer in _stored(each)]
    if not places:
        return []
    kept = body[: places[-1] + 1]
    last = kept[-1]
    if isinstance(last, ast.If):
        last.body = _up_to(last.body, answer) or last.body
        last.orelse = _up_to(last.orelse, answer) or last.orelse
    return kept


def _stored(statement: ast.stmt) -> set[str]:
    """Return the names that a statement, or one inside of it, sets or changes in place."""
    return changed_in_place([statement]) | names_in(statement, context=ast.Store)


def asking(
    rule: str,
    program: Program,
    name: str,
    inputs: Sequence[str],
    contexts: Sequence[Mapping[str, Any]],
) -> Reading:
    """Return how to read a function that hands its inputs on to another one, as a rule.

    The rule has one branch then, whose place is that of the statements that build the list.
    """
    function = program.functions[name]
    first, last = function.body[0], function.body[-1]
    place = at(ast.Pass(), first)
    place.end_lineno = getattr(last, "end_lineno", None) or last.lineno
    place.lineno = min(first.lineno, last.lineno)
    arguments: list[ast.expr] = [at(ast.Name(each, ast.Load()), place) for each in inputs]
    asked = at(ast.Call(at(ast.Name(name, ast.Load()), place), arguments, []), place)
    wrapper = at(
        ast.FunctionDef(rule, parameters_named(inputs), [at(ast.Return(asked), place)], [], None),
        place,
    )
    whole = Program({**program.functions, rule: wrapper}, program.constants)
    return Reading(rule, whole, rule, axis=None, contexts=contexts)


def joined(program: Program, modules: Modules, path: str, function: Function) -> Program:
    """Return a program with a function of a file beside it, and all that this one reaches."""
    beside, _ = modules.program_of(path, function, {})
    return Program(
        {**program.functions, **beside.functions}, {**program.constants, **beside.constants}
    )


def conditions(tree: ast.AST, text: str) -> Iterator[ast.expr]:
    """Yield the comparisons of a tree that a text names, as `ast.unparse` spells them."""
    for node in nodes_of(tree):
        if isinstance(node, ast.Compare) and text in ast.unparse(node):
            yield node
