"""Cut a rule out of a Python function that does much else.

Where a value is computed in the midst of a long function, the rule is that value: the names that
it rests on are followed back to the inputs, and the rest of the function is not read.
"""

import ast
import copy
from collections.abc import Iterator

from nearfree.errors import SourceError
from nearfree.sources.language.program import (
    Function,
    at,
    bound_by,
    parameters,
    walk_statements,
)
from nearfree.sources.language.slicing import changed_in_place


def assignments(function: Function, name: str) -> list[ast.Assign]:
    """Return the statements of a function that assign to one plain name."""
    return [
        each
        for each in walk_statements(function.body)
        if isinstance(each, ast.Assign)
        and len(each.targets) == 1
        and isinstance(each.targets[0], ast.Name)
        and each.targets[0].id == name
    ]


def value_of(function: Function, name: str, stop: frozenset[str]) -> Function:
    """Return a function of no parameters that returns what `name` is assigned first.

    Parameters
    ----------
    function
        The long function.
    name
        The name; its first assignment counts.
    stop
        Names that are inputs of the rule; all others are followed back, and must then have one
        assignment.

    Raises
    ------
    SourceError
        The function does not assign the name, or assigns a name on the way more than once.
    """
    found = assignments(function, name)
    if not found:
        raise SourceError(
            f"{function.name} assigns no {name}",
            remedy="This release keeps its rule elsewhere: its reader must learn where",
        )
    body: list[ast.stmt] = [copy.deepcopy(found[0])]
    waiting, seen = _read(found[0].value) - stop, {name}
    while waiting:
        other = waiting.pop()
        seen.add(other)
        earlier = _only(function, other)
        if earlier is not None:
            body.append(copy.deepcopy(earlier))
            waiting |= _read(earlier.value) - stop - seen
    unsure = seen & changed_in_place(function.body)
    if unsure:
        raise SourceError(
            f"{function.name} changes {' and '.join(sorted(unsure))} in place",
            remedy="This release needs a reader of its own: report it",
        )
    body.sort(key=lambda each: each.lineno)
    result = ast.copy_location(ast.Name(name, ast.Load()), found[0])
    result.origin = found[0].origin  # type: ignore[attr-defined]
    body.append(_placed(ast.Return(result), found[0]))
    return made(f"value_of_{name}", body, function)


def _only(function: Function, name: str) -> ast.Assign | None:
    """Return the one statement that sets a name; None if the function sets it nowhere."""
    plain = assignments(function, name)
    times = sum(name in bound_by(each) for each in _simple(function.body))
    if times > len(plain) or len(plain) > 1 or (plain and name in parameters(function)):
        raise SourceError(
            f"{function.name} assigns {name} {times + (name in parameters(function))} times",
            remedy="This release needs a reader of its own: report it",
        )
    return plain[0] if plain else None


def _simple(body: list[ast.stmt]) -> Iterator[ast.AST]:
    """Yield the parts of statements that can set a name: plain statements, and heads of others."""
    for each in walk_statements(body):
        inner = [*getattr(each, "body", []), *getattr(each, "orelse", [])]
        if inner and not isinstance(each, ast.FunctionDef | ast.ClassDef):
            yield from (part for part in ast.iter_child_nodes(each) if part not in inner)
        else:
            yield each


def argument_of(function: Function, callee: Function, parameter: str) -> Function:
    """Return a function of no parameters that returns one argument of a call in a long function.

    Raises
    ------
    SourceError
        The call is not there once, or does not give that argument.
    """
    found = calls(function, callee.name)
    place = parameters(callee).index(parameter)
    values = [each.value for call in found for each in call.keywords if each.arg == parameter]
    values += [call.args[place] for call in found if len(call.args) > place]
    if len(values) != 1:
        raise SourceError(
            f"{function.name} gives {callee.name} {len(values)} times its {parameter}",
            remedy="This release needs a reader of its own: report it",
        )
    answer = _placed(ast.Return(copy.deepcopy(values[0])), values[0])
    return made(f"argument_{parameter}", [answer], function)


def arguments_of(function: Function, callee: str) -> Function:
    """Return the function up to a call, returning the call's arguments as a tuple.

    Raises
    ------
    SourceError
        The function does not call it as the value of an assignment or of a return.
    """
    short = copy.deepcopy(function)
    cutter = _Cutter(callee)
    cutter.visit(short)
    if not cutter.cut:
        raise SourceError(
            f"{function.name} does not call {callee}",
            remedy="This release keeps its rule elsewhere: its reader must learn where",
        )
    return short


def made(name: str, body: list[ast.stmt], old: ast.AST) -> Function:
    """Return a function of no parameters, at the place of another one."""
    nothing = ast.arguments([], [], None, [], [], None, [])
    function = ast.FunctionDef(name, nothing, body, [], None)
    _placed(function, old)
    return function


def calls(function: ast.AST, callee: str) -> list[ast.Call]:
    """Return the calls of a function by its plain name."""
    return [
        each
        for each in ast.walk(function)
        if isinstance(each, ast.Call) and isinstance(each.func, ast.Name) and each.func.id == callee
    ]


class _Cutter(ast.NodeTransformer):
    def __init__(self, callee: str) -> None:
        self.callee = callee
        self.cut = False

    def visit_Assign(self, node: ast.Assign) -> ast.stmt:
        found = calls(node.value, self.callee)
        if not found:
            return node
        if len(found) > 1:
            raise SourceError(
                f"{self.callee} is called twice in one statement",
                remedy="This release needs a reader of its own: report it",
            )
        self.cut = True
        values = [*found[0].args, *(each.value for each in found[0].keywords)]
        return _placed(ast.Return(at(ast.Tuple(values, ast.Load()), found[0])), node)


def _placed(new: ast.stmt, old: ast.AST) -> ast.stmt:
    ast.copy_location(new, old)
    new.origin = getattr(old, "origin", None)  # type: ignore[attr-defined]
    return new


def _read(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
