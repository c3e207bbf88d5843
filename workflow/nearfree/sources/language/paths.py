"""The first way to read a rule: enumerate the ways through the function.

The function is run over expressions instead of numbers. Where a way depends on an input, a
decision is taken, and the function is run again for the other one, until all are taken. Each way
gives its conditions, its value, and the lines of both.
"""

import ast
from collections.abc import Mapping

from nearfree.log.events import Branch
from nearfree.sources.language.decisions import Decisions
from nearfree.sources.language.expressions import MISTAKES, UnknownConstructError
from nearfree.sources.language.program import Function, Program, at, parameters, quote
from nearfree.sources.language.statements import REFUSED, Nested, RefusedError
from nearfree.sources.language.symbols import Entries, Group, Symbols, Value

MOST_PATHS = 2000


def enumerate_paths(
    program: Program, name: str, inputs: set[str], least: Mapping[str, int] | None = None
) -> tuple[list[Branch], set[str]]:
    """Return a function's branches, and the names of the functions with loops that they call.

    Parameters
    ----------
    program
        Functions and constants; `name` should be sliced, so that it forks only where it must.
    inputs
        The names that stay; any other free name is an error.
    least
        Inputs that are never smaller than a number: ways that need less are left out.

    Raises
    ------
    UnknownConstructError
        A construct outside the known set.
    """
    branches: list[Branch] = []
    open_ways: list[list[bool]] = [[]]
    symbols = Symbols(program, inputs)
    while open_ways:
        if len(branches) > MOST_PATHS:
            raise UnknownConstructError(f"{name} has more than {MOST_PATHS} ways through it")
        symbols.decisions = Decisions(open_ways.pop(), least or {})
        try:
            branches.append(_branch(symbols, program.functions[name]))
        except MISTAKES as error:
            raise UnknownConstructError(f"{name} cannot be followed: {error}") from error
        open_ways += symbols.decisions.others
    return branches, symbols.called


def _branch(symbols: Symbols, function: Function) -> Branch:
    """Return one way through a function; its parameters are inputs of the same name."""
    given = {
        name: at(ast.Name(name, ast.Load()), function)
        for name in parameters(function)
        if name in symbols.inputs
    }
    try:
        value = symbols.enter(Nested(function, {}), given)
    except RefusedError as refused:
        value = at(ast.Constant(REFUSED), refused.node)
    answer = _answer(symbols, symbols.settled(value), function)
    way = symbols.decisions
    return Branch(
        when=tuple(ast.unparse(each) for each in tightest(way.when)),
        value=ast.unparse(answer),
        quotes=tuple(dict.fromkeys(way.quotes)),
    )


def _answer(symbols: Symbols, value: Value, function: Function) -> ast.expr:
    """Return a way's value as an expression, with its place kept as a quote."""
    if isinstance(value, Entries) and len(value) == 1:
        return _answer(symbols, symbols.settled(*value.values()), function)
    old = next(iter(value), function) if isinstance(value, Group) else function
    shown = symbols.shown(value, old if isinstance(old, ast.AST) else function)
    # The first part of a tuple is what the rule is about, so its place comes last.
    parts = shown.elts[::-1] if isinstance(shown, ast.Tuple) else []
    placed = [part for part in parts if getattr(part, "origin", None) is not None]
    symbols.decisions.quotes += [quote(part) for part in (shown, *placed)]
    return shown


def tightest(when: list[ast.expr]) -> list[ast.expr]:
    """Return conditions without the bounds that a closer bound of the same kind implies."""
    kept: list[ast.expr] = []
    for number, each in enumerate(when):
        bound = _bound(each)
        others = [_bound(other) for other in when[number + 1 :]]
        if bound is None or not any(
            other is not None and other[:2] == bound[:2] and other[2] >= bound[2]
            for other in others
        ):
            kept.append(each)
    return kept


def _bound(node: ast.expr) -> tuple[str, type[ast.cmpop], float] | None:
    """Return what is bounded, in which way, and how closely: more is closer."""
    if not isinstance(node, ast.Compare) or len(node.ops) != 1:
        return None
    limit, op = node.comparators[0], type(node.ops[0])
    if not isinstance(limit, ast.Constant) or not isinstance(limit.value, int | float):
        return None
    if op in (ast.Gt, ast.GtE):
        return ast.unparse(node.left), op, limit.value
    return (ast.unparse(node.left), op, -limit.value) if op in (ast.Lt, ast.LtE) else None
