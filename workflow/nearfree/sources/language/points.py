"""Evaluate a rule at many points at once: each part once for each distinct value that it reads.

A column holds distinct values, and for each point the index of its value. A part is evaluated only
at the points where the rule reaches it, by the same closures as at a single point.
"""

import ast
import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nearfree.sources.language.arrays import OPERAND_LIMIT, whole_numbers
from nearfree.sources.language.expressions import UnknownConstructError, variables
from nearfree.sources.language.interpret import typed_each
from nearfree.sources.language.rule import Rule

Codes = NDArray[np.int64]
_ARRAY_POINTS = 64
"""From so many points on, arithmetic is evaluated in arrays."""
_MARKS_LIMIT = 1 << 22
"""Limit of codes that are made dense by marks in a table; above it they are sorted."""


class Column(NamedTuple):
    """A quantity at many points: for each point the index of its value."""

    codes: Codes
    values: Sequence[Any]

    def at(self, rows: Codes) -> "Column":
        """Return the column at a subset of the points."""
        return Column(self.codes[rows], self.values)


Columns = Mapping[str, Column]


def column(numbers: Codes) -> Column:
    """Return the column of one integer per point."""
    values, codes = np.unique(numbers, return_inverse=True)
    return Column(codes.reshape(-1).astype(np.int64), values.tolist())


def combined_codes(parts: Sequence[tuple[Codes, int]]) -> tuple[Codes, Codes]:
    """Return codes that distinguish combinations of codes, and one example point of each.

    `parts` are codes, each with an exclusive upper bound.
    """
    codes, width = _compact(*parts[0])
    for part_codes, part_width in parts[1:]:
        codes, width = _compact(codes * part_width + part_codes, width * part_width)
    examples = np.empty(width, np.int64)
    examples[codes] = np.arange(len(codes))
    return codes, examples


def answer_codes(rule: Rule, inputs: Mapping[str, Any], columns: Columns) -> tuple[Codes, int]:
    """Return one code per point and their upper bound; equal codes have equal branch and value.

    `inputs` are the same at all points; `columns` differ, and are all of one length.

    Raises
    ------
    UnknownConstructError, or another exception of `NO_VALUE`
        The rule has no single branch or no value at some point: evaluate it point by point.
    """
    evaluator = _ColumnEvaluator(rule, inputs)
    size = len(next(iter(columns.values())).codes)
    codes = np.full(size, -1)
    count = 0
    for _, conditions, value in rule.branches:
        rows, selected = np.arange(size), columns
        for condition in conditions:
            truths = _truths(evaluator.value(condition, selected, len(rows)))
            rows, selected = _selected(rows, selected, np.flatnonzero(truths))
        if not len(rows):
            continue
        if (codes[rows] >= 0).any():
            raise UnknownConstructError("two branches apply at a point")
        result = evaluator.value(value, selected, len(rows))
        codes[rows] = result.codes + count
        count += len(result.values)
    if (codes < 0).any():
        raise UnknownConstructError("no branch applies at a point")
    return codes, count


def distinguishing_codes(
    rule: Rule, inputs: Mapping[str, Any], columns: Columns
) -> list[tuple[Codes, int]]:
    """Return codes with their upper bounds; a rule answers alike where all are equal.

    The rule may depend on further inputs, if they are equal at the points that are compared. A part
    of the rule is evaluated if it reads only `inputs` and columns; else each value of its columns
    counts.
    """
    evaluator = _ColumnEvaluator(rule, inputs)
    distinguishing: dict[str, Column] = {}
    parts = (part for _, conditions, value in rule.branches for part in (*conditions, value))
    for part in dict.fromkeys(parts):
        for leaf in _leaves(part):
            names = variables(leaf)
            if not names & columns.keys():
                continue
            if names <= inputs.keys() | columns.keys():
                size = len(next(iter(columns.values())).codes)
                distinguishing[ast.dump(leaf)] = evaluator.value(leaf, columns, size)
            else:
                distinguishing |= {name: columns[name] for name in names & columns.keys()}
    return [(part.codes, len(part.values)) for part in distinguishing.values()]


def _leaves(node: ast.expr) -> Iterator[ast.expr]:
    """Yield the operands that a condition joins by `and`, `or` and `not`."""
    match node:
        case ast.BoolOp():
            for part in node.values:
                yield from _leaves(part)
        case ast.UnaryOp(op=ast.Not()):
            yield from _leaves(node.operand)
        case _:
            yield node


class _ColumnEvaluator:
    def __init__(self, rule: Rule, inputs: Mapping[str, Any]) -> None:
        self._closures, self._inputs = rule.closures, dict(inputs)
        self._bound = rule.rule.inputs

    def value(self, node: ast.expr, columns: Columns, size: int) -> Column:
        """Return an expression's values at the points of the columns."""
        if not size:
            return Column(np.zeros(0, np.int64), [])
        names = sorted(variables(node) & columns.keys())
        if not names:
            run = self._closures.of(node)
            return Column(np.zeros(size, np.int64), [run(self._inputs)])
        if len(names) > 1:
            match node:
                case ast.BoolOp():
                    return self._junction(node, columns, size)
                case ast.IfExp():
                    return self._choice(node, columns, size)
                case ast.BinOp() | ast.Compare() | ast.Tuple() | ast.Call(func=ast.Name()):
                    return self._of_parts(node, columns, size)
        return self._distinct(node, self._inputs, {name: columns[name] for name in names})

    def _of_parts(self, node: ast.expr, columns: Columns, size: int) -> Column:
        """Return the values of a node that evaluates all its parts: each part by itself."""
        function_name = node.func if isinstance(node, ast.Call) else None
        operands = [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
        placeholders = {
            str(index): operand
            for index, operand in enumerate(operands)
            if operand is not function_name
        }
        operand_columns = {
            placeholder: self.value(operand, columns, size)
            for placeholder, operand in placeholders.items()
        }
        substitutes = {
            id(operand): ast.Name(placeholder, ast.Load())
            for placeholder, operand in placeholders.items()
        }
        return self._distinct(copy.deepcopy(node, dict(substitutes)), {}, operand_columns)

    def _distinct(self, node: ast.expr, inputs: Mapping[str, Any], columns: Columns) -> Column:
        """Return a node's values: each distinct combination of values is evaluated once."""
        parts = [(part.codes, len(part.values)) for part in columns.values()]
        codes, examples = combined_codes(parts)
        if len(examples) >= _ARRAY_POINTS and "quotient" not in self._bound:
            arrays = {name: _whole(part, examples) for name, part in columns.items()}
            numbers = whole_numbers(node, {**inputs, **arrays})
            if numbers is not None:
                values, index_of = np.unique(numbers, return_inverse=True)
                return Column(index_of.reshape(-1)[codes], values.tolist())
        run, names, results = self._closures.of(node), dict(inputs), []
        example_values = [
            [part.values[code] for code in part.codes[examples].tolist()]
            for part in columns.values()
        ]
        for point_values in zip(*example_values, strict=True):
            names.update(zip(columns, point_values, strict=True))
            results.append(run(names))
        return _deduplicated(codes, results)

    def _junction(self, node: ast.BoolOp, columns: Columns, size: int) -> Column:
        stop = isinstance(node.op, ast.Or)
        rows, pieces = np.arange(size), []
        for index, operand in enumerate(node.values):
            result = self.value(operand, columns, len(rows))
            is_last = index == len(node.values) - 1
            decided = (_truths(result) == stop) | is_last
            decided_rows = np.flatnonzero(decided)
            pieces.append((rows[decided_rows], result.at(decided_rows)))
            rows, columns = _selected(rows, columns, np.flatnonzero(~decided))
        return _merged(pieces, size)

    def _choice(self, node: ast.IfExp, columns: Columns, size: int) -> Column:
        test = _truths(self.value(node.test, columns, size))
        pieces = []
        for part, chosen in ((node.body, test), (node.orelse, ~test)):
            rows, selected = _selected(np.arange(size), columns, np.flatnonzero(chosen))
            pieces.append((rows, self.value(part, selected, len(rows))))
        return _merged(pieces, size)


def _whole(part: Column, rows: Codes) -> Codes | None:
    """Return a column's values at some points as an array; None unless all are whole numbers."""
    if set(map(type, part.values)) != {int} or max(map(abs, part.values)) > OPERAND_LIMIT:
        return None
    return np.array(part.values, np.int64)[part.codes[rows]]


def _compact(codes: Codes, width: int) -> tuple[Codes, int]:
    """Return codes without gaps, and their number."""
    if width > max(_MARKS_LIMIT, len(codes)):
        distinct, dense = np.unique(codes, return_inverse=True)
        return dense.reshape(-1), len(distinct)
    marks = np.zeros(width, bool)
    marks[codes] = True
    ranks = np.cumsum(marks) - 1
    return ranks[codes], int(ranks[-1]) + 1


def _deduplicated(codes: Codes, values: Sequence[Any]) -> Column:
    """Return a column in which equal values have one code."""
    keys = typed_each(values)
    distinct: dict[object, Any] = {}
    for key, value in zip(keys, values, strict=True):
        distinct.setdefault(key, value)
    index_of = {key: index for index, key in enumerate(distinct)}
    new_codes = np.array([index_of[key] for key in keys], np.int64)
    return Column(new_codes[codes], [*distinct.values()])


def _merged(pieces: Sequence[tuple[Codes, Column]], size: int) -> Column:
    codes = np.empty(size, np.int64)
    values: list[Any] = []
    for rows, piece in pieces:
        codes[rows] = piece.codes + len(values)
        values += piece.values
    return _deduplicated(codes, values)


def _truths(values: Column) -> NDArray[np.bool_]:
    return np.array([bool(value) for value in values.values], bool)[values.codes]


def _selected(rows: Codes, columns: Columns, positions: Codes) -> tuple[Codes, Columns]:
    if len(positions) == len(rows):
        return rows, columns
    return rows[positions], {name: values.at(positions) for name, values in columns.items()}
