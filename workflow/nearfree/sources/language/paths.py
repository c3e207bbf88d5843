"""First reader of a rule: enumerate the paths through its function.

The function is run over expressions instead of numbers. Where a path depends on an input, one
branch is taken, and the function is run again for the other, until all are taken. Each path gives
its conditions, its value, and the source lines of both.
"""

import ast
from collections.abc import Mapping

from nearfree.log.events import Branch
from nearfree.sources.language.decisions import Decisions
from nearfree.sources.language.expressions import MISTAKES, UnknownConstructError, text_of
from nearfree.sources.language.program import Function, Program, at, parameters, quote
from nearfree.sources.language.statements import REFUSED, Nested, RefusedError
from nearfree.sources.language.symbols import Entries, Group, Symbols, Value

PATHS_LIMIT = 2000


def enumerate_paths(
    program: Program,
    function_name: str,
    inputs: set[str],
    minimums: Mapping[str, int] | None = None,
) -> tuple[list[Branch], set[str]]:
    """Return a function's branches, and the names of the looping functions that they call.

    Parameters
    ----------
    program
        Functions and constants. The function should be sliced, so that it forks only where it must.
    inputs
        The names that stay free; any other free name is an error.
    minimums
        Lower bounds of inputs: paths that need a smaller value are left out.

    Raises
    ------
    UnknownConstructError
        A construct outside the known set.
    """
    branches: list[Branch] = []
    pending: list[list[bool]] = [[]]
    symbols = Symbols(program, inputs)
    while pending:
        if len(branches) > PATHS_LIMIT:
            raise UnknownConstructError(
                f"{function_name} has more than {PATHS_LIMIT} paths through it"
            )
        symbols.decisions = Decisions(pending.pop(), minimums or {})
        try:
            branches.append(_branch(symbols, program.functions[function_name]))
        except MISTAKES as error:
            raise UnknownConstructError(f"{function_name} cannot be followed: {error}") from error
        pending += symbols.decisions.alternatives
    return branches, symbols.looping


def _branch(symbols: Symbols, function: Function) -> Branch:
    """Return the branch of one path; the function's parameters are inputs of the same name."""
    arguments = {
        name: at(ast.Name(name, ast.Load()), function)
        for name in parameters(function)
        if name in symbols.inputs
    }
    try:
        value = symbols.enter(Nested(function, {}), arguments)
    except RefusedError as error:
        value = at(ast.Constant(REFUSED), error.node)
    expression = _value_expression(symbols, symbols.resolved(value), function)
    decisions = symbols.decisions
    return Branch(
        when=tuple(map(text_of, without_implied_bounds(decisions.conditions))),
        value=text_of(expression),
        quotes=tuple(dict.fromkeys(decisions.quotes)),
    )


def _value_expression(symbols: Symbols, value: Value, function: Function) -> ast.expr:
    """Return a path's value as an expression, and keep the source lines of its parts as quotes."""
    if isinstance(value, Entries) and len(value) == 1:
        return _value_expression(symbols, symbols.resolved(*value.values()), function)
    origin = next(iter(value), function) if isinstance(value, Group) else function
    expression = symbols.as_expression(value, origin if isinstance(origin, ast.AST) else function)
    # The first part of a tuple is the rule's subject, so its quote comes last.
    parts = expression.elts[::-1] if isinstance(expression, ast.Tuple) else []
    placed = [part for part in parts if getattr(part, "origin", None) is not None]
    symbols.decisions.quotes += [quote(part) for part in (expression, *placed)]
    return expression


def without_implied_bounds(conditions: list[ast.expr]) -> list[ast.expr]:
    """Return conditions without the bounds that a later, tighter bound of the same kind implies."""
    tight: list[ast.expr] = []
    for index, condition in enumerate(conditions):
        bound = _bound_of(condition)
        later_bounds = [_bound_of(other) for other in conditions[index + 1 :]]
        implied = bound is not None and any(
            later is not None and later[:2] == bound[:2] and later[2] >= bound[2]
            for later in later_bounds
        )
        if not implied:
            tight.append(condition)
    return tight


def _bound_of(node: ast.expr) -> tuple[str, type[ast.cmpop], float] | None:
    """Return a bound's expression, its operator, and its tightness (higher is tighter)."""
    if not isinstance(node, ast.Compare) or len(node.ops) != 1:
        return None
    limit, op = node.comparators[0], type(node.ops[0])
    if not isinstance(limit, ast.Constant) or not isinstance(limit.value, int | float):
        return None
    if op in (ast.Gt, ast.GtE):
        return text_of(node.left), op, limit.value
    return (text_of(node.left), op, -limit.value) if op in (ast.Lt, ast.LtE) else None
