"""A rule at many points at once: a part is evaluated once for each distinct value it rests on.

A column holds the distinct values of something and which one each point has. Parts are evaluated
only at the points where the rule comes to them, by the same closures as at a single point.
"""

import ast
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nearfree.sources.language.closures import Run
from nearfree.sources.language.expressions import UnknownConstructError, variables
from nearfree.sources.language.interpret import typed
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
    rule
        The rule.
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
            parts = _operands(node)
            if parts:
                given = [self.value(part, columns, size) for part in parts]
                holes = [str(number) for number in range(len(parts))]
                run = self._closures.of(_with_operands(node, holes))
                return _distinct(run, {}, dict(zip(holes, given, strict=True)))
        return _distinct(
            self._closures.of(node), self._inputs, {name: columns[name] for name in names}
        )

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


def _operands(node: ast.expr) -> list[ast.expr]:
    """Return the parts that a node's value is made of, if it is made of all of them."""
    match node:
        case ast.BinOp():
            return [node.left, node.right]
        case ast.Compare():
            return [node.left, *node.comparators]
        case ast.Tuple():
            return node.elts
        case ast.Call(func=ast.Name(), keywords=[]):
            return node.args
    return []


def _with_operands(node: ast.expr, names: list[str]) -> ast.expr:
    """Return a node with names for its operands."""
    parts: list[ast.expr] = [ast.Name(name, ast.Load()) for name in names]
    match node:
        case ast.BinOp():
            return ast.BinOp(parts[0], node.op, parts[1])
        case ast.Compare():
            return ast.Compare(parts[0], node.ops, parts[1:])
        case ast.Call():
            return ast.Call(node.func, parts, [])
    return ast.Tuple(parts, ast.Load())


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
    places: dict[object, int] = {}
    kept: list[Any] = []
    new = np.empty(len(values), np.int64)
    for number, value in enumerate(values):
        key = typed([value])
        if key not in places:
            places[key] = len(kept)
            kept.append(value)
        new[number] = places[key]
    return Column(new[codes], kept)


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
