"""A rule at many points at once: a part is evaluated once for each distinct value it rests on.

A column holds the distinct values of something and which one each point has. Parts are evaluated
only at the points where the rule comes to them, by the same closures as at a single point.
"""

import ast
import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nearfree.sources.language.closures import Run
from nearfree.sources.language.expressions import UnknownConstructError, variables
from nearfree.sources.language.interpret import typed_each
from nearfree.sources.language.rule import Rule

Codes = NDArray[np.int64]
_MOST_MARKS = 1 << 22
"""Codes up to which distinct ones are marked in a table; more are sorted."""


class Column(NamedTuple):
    """What something is at many points: the place of each point's value among the values."""

    codes: Codes
    values: Sequence[Any]

    def at(self, rows: Codes) -> "Column":
        """Return the column at some of the points."""
        return Column(self.codes[rows], self.values)


Columns = Mapping[str, Column]


def column(numbers: Codes) -> Column:
    """Return the column of whole numbers, one a point."""
    values, codes = np.unique(numbers, return_inverse=True)
    return Column(codes.reshape(-1).astype(np.int64), values.tolist())


def combined(parts: Sequence[tuple[Codes, int]]) -> tuple[Codes, Codes]:
    """Return codes that tell combinations of codes apart, and one point of each combination.

    Parameters
    ----------
    parts
        Codes, each with a number that none of them reaches.
    """
    codes, width = _compact(*parts[0])
    for each, wide in parts[1:]:
        codes, width = _compact(codes * wide + each, width * wide)
    some = np.empty(width, np.int64)
    some[codes] = np.arange(len(codes))
    return codes, some


def kinds(rule: Rule, inputs: Mapping[str, Any], columns: Columns) -> tuple[Codes, int]:
    """Return numbers, one a point, that are equal only where the rule's branch and value are.

    With them comes one that none of them reaches.

    Parameters
    ----------
    inputs
        What is the same at all points.
    columns
        What differs, by name; all of one length.

    Raises
    ------
    UnknownConstructError, or what a mistake in a rule raises (`NO_VALUE`)
        At some point the rule has no plain answer: it must be evaluated point by point.
    """
    many = _Many(rule, inputs)
    size = len(next(iter(columns.values())).codes)
    taken = np.full(size, -1)
    count = 0
    for _, when, value in rule.branches:
        rows, here = np.arange(size), columns
        for condition in when:
            held = _truth(many.value(condition, here, len(rows)))
            rows, here = _where(rows, here, np.flatnonzero(held))
        if not len(rows):
            continue
        if (taken[rows] >= 0).any():
            raise UnknownConstructError("two branches apply at a point")
        found = many.value(value, here, len(rows))
        taken[rows] = found.codes + count
        count += len(found.values)
    if (taken < 0).any():
        raise UnknownConstructError("no branch applies at a point")
    return taken, count


def told_apart(rule: Rule, inputs: Mapping[str, Any], columns: Columns) -> list[tuple[Codes, int]]:
    """Return codes, each with a number that none reaches, equal only where a rule answers alike.

    The rule may rest on more, which is the same at points that are compared. What its conditions
    say of the columns is evaluated where that takes `inputs` alone; else each value counts.
    """
    many = _Many(rule, inputs)
    found: dict[str, Column] = {}
    for part in {part: None for _, when, value in rule.branches for part in (*when, value)}:
        for leaf in _leaves(part):
            names = variables(leaf)
            if not names & columns.keys():
                continue
            if names <= inputs.keys() | columns.keys():
                size = len(next(iter(columns.values())).codes)
                found[ast.dump(leaf)] = many.value(leaf, columns, size)
            else:
                found |= {name: columns[name] for name in names & columns.keys()}
    return [(each.codes, len(each.values)) for each in found.values()]


def _leaves(node: ast.expr) -> Iterator[ast.expr]:
    """Yield what a condition joins by `and`, `or` and `not`."""
    match node:
        case ast.BoolOp():
            for part in node.values:
                yield from _leaves(part)
        case ast.UnaryOp(op=ast.Not()):
            yield from _leaves(node.operand)
        case _:
            yield node


class _Many:
    def __init__(self, rule: Rule, inputs: Mapping[str, Any]) -> None:
        self._closures, self._inputs = rule.closures, dict(inputs)

    def value(self, node: ast.expr, columns: Columns, size: int) -> Column:
        """Return an expression's values at some points."""
        if not size:
            return Column(np.zeros(0, np.int64), [])
        names = sorted(variables(node) & columns.keys())
        if not names:
            run = self._closures.of(node)
            return Column(np.zeros(size, np.int64), [run(self._inputs)])
        if len(names) > 1:
            match node:
                case ast.BoolOp():
                    return self._either(node, columns, size)
                case ast.IfExp():
                    return self._choice(node, columns, size)
                case ast.BinOp() | ast.Compare() | ast.Tuple() | ast.Call(func=ast.Name()):
                    return self._of_parts(node, columns, size)
        return _distinct(
            self._closures.of(node), self._inputs, {name: columns[name] for name in names}
        )

    def _of_parts(self, node: ast.expr, columns: Columns, size: int) -> Column:
        """Return the values of a node that is made of all of its parts: each part by itself."""
        called = node.func if isinstance(node, ast.Call) else None
        parts = [each for each in ast.iter_child_nodes(node) if isinstance(each, ast.expr)]
        holes = {str(place): part for place, part in enumerate(parts) if part is not called}
        given = {hole: self.value(part, columns, size) for hole, part in holes.items()}
        named = {id(part): ast.Name(hole, ast.Load()) for hole, part in holes.items()}
        return _distinct(self._closures.of(copy.deepcopy(node, dict(named))), {}, given)

    def _either(self, node: ast.BoolOp, columns: Columns, size: int) -> Column:
        stop = isinstance(node.op, ast.Or)
        rows, pieces = np.arange(size), []
        for number, each in enumerate(node.values):
            found = self.value(each, columns, len(rows))
            last = number == len(node.values) - 1
            ends = (_truth(found) == stop) | last
            done = np.flatnonzero(ends)
            pieces.append((rows[done], found.at(done)))
            rows, columns = _where(rows, columns, np.flatnonzero(~ends))
        return _merged(pieces, size)

    def _choice(self, node: ast.IfExp, columns: Columns, size: int) -> Column:
        test = _truth(self.value(node.test, columns, size))
        pieces = []
        for part, chosen in ((node.body, test), (node.orelse, ~test)):
            rows, here = _where(np.arange(size), columns, np.flatnonzero(chosen))
            pieces.append((rows, self.value(part, here, len(rows))))
        return _merged(pieces, size)


def _distinct(run: Run, inputs: Mapping[str, Any], columns: Columns) -> Column:
    """Return a closure's values: it is run once for each distinct combination."""
    codes, some = combined([(part.codes, len(part.values)) for part in columns.values()])
    picked = [
        [part.values[code] for code in part.codes[some].tolist()] for part in columns.values()
    ]
    names = dict(inputs)
    found = []
    for values in zip(*picked, strict=True):
        names.update(zip(columns, values, strict=True))
        found.append(run(names))
    return _few(codes, found)


def _compact(codes: Codes, width: int) -> tuple[Codes, int]:
    """Return codes without gaps, and how many there are."""
    if width > max(_MOST_MARKS, len(codes)):
        kept, short = np.unique(codes, return_inverse=True)
        return short.reshape(-1), len(kept)
    marks = np.zeros(width, bool)
    marks[codes] = True
    places = np.cumsum(marks) - 1
    return places[codes], int(places[-1]) + 1


def _few(codes: Codes, values: Sequence[Any]) -> Column:
    """Return a column in which equal values are one."""
    keys = typed_each(values)
    kept: dict[object, Any] = {}
    for key, value in zip(keys, values, strict=True):
        kept.setdefault(key, value)
    places = {key: place for place, key in enumerate(kept)}
    new = np.array([places[key] for key in keys], np.int64)
    return Column(new[codes], [*kept.values()])


def _merged(pieces: Sequence[tuple[Codes, Column]], size: int) -> Column:
    codes = np.empty(size, np.int64)
    values: list[Any] = []
    for rows, found in pieces:
        codes[rows] = found.codes + len(values)
        values += found.values
    return _few(codes, values)


def _truth(found: Column) -> NDArray[np.bool_]:
    return np.array([bool(part) for part in found.values], bool)[found.codes]


def _where(rows: Codes, columns: Columns, kept: Codes) -> tuple[Codes, Columns]:
    if len(kept) == len(rows):
        return rows, columns
    return rows[kept], {name: each.at(kept) for name, each in columns.items()}
