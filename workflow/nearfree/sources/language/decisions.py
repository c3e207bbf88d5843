"""One path through a function: its decisions, and the later conditions that they settle."""

import ast
import copy
from collections.abc import Mapping
from math import inf

from nearfree.log.events import Quote
from nearfree.sources.language.expressions import negated, text_of, truth_of
from nearfree.sources.language.program import at, quote

Interval = tuple[float, float]


class Bounds:
    """Intervals of expressions, by the expressions' text.

    `minimums` are lower bounds of inputs, such as sizes, by name.
    """

    def __init__(self, minimums: Mapping[str, int]) -> None:
        self.intervals: dict[str, Interval] = {name: (low, inf) for name, low in minimums.items()}

    def interval(self, node: ast.expr) -> Interval:
        """Return an expression's lower and upper bound, both included."""
        low, high = self._composed(node)
        recorded = self.intervals.get(text_of(node), (-inf, inf))
        return max(low, recorded[0]), min(high, recorded[1])

    def _composed(self, node: ast.expr) -> Interval:
        match node:
            case ast.Constant(value=int() | float() as value):
                return value, value
            case ast.UnaryOp(op=ast.USub()):
                low, high = self.interval(node.operand)
                return -high, -low
            case ast.BinOp(op=ast.Add() | ast.Sub() | ast.Mult() as op):
                left, right = self.interval(node.left), self.interval(node.right)
                if isinstance(op, ast.Add):
                    return left[0] + right[0], left[1] + right[1]
                if isinstance(op, ast.Sub):
                    return left[0] - right[1], left[1] - right[0]
                if min(left[0], right[0]) >= 0:
                    return left[0] * right[0], inf
        return -inf, inf

    def truth(self, node: ast.expr) -> bool | None:
        """Return whether a comparison holds; None where the bounds do not decide it."""
        if not isinstance(node, ast.Compare) or len(node.ops) != 1:
            return None
        if text_of(node.left) == text_of(node.comparators[0]):
            return isinstance(node.ops[0], ast.Eq | ast.LtE | ast.GtE | ast.Is)
        left, right = self.interval(node.left), self.interval(node.comparators[0])
        below, above = left[1] < right[0], left[0] > right[1]
        match node.ops[0]:
            case ast.Lt() | ast.GtE():
                less = True if below else False if left[0] >= right[1] else None
                return less if less is None or isinstance(node.ops[0], ast.Lt) else not less
            case ast.Gt() | ast.LtE():
                more = True if above else False if left[1] <= right[0] else None
                return more if more is None or isinstance(node.ops[0], ast.Gt) else not more
            case ast.Eq() | ast.NotEq() if below or above:
                return isinstance(node.ops[0], ast.NotEq)
        return None

    def learn(self, node: ast.expr, *, answer: bool) -> None:
        """Record the bound that a decided comparison gives; a strict one as a non-strict one."""
        if not isinstance(node, ast.Compare) or len(node.ops) != 1:
            return
        right = node.comparators[0]
        if not isinstance(right, ast.Constant) or not isinstance(right.value, int | float):
            return
        text, value = text_of(node.left), right.value
        low, high = self.intervals.get(text, (-inf, inf))
        match node.ops[0], answer:
            case (ast.Eq(), True) | (ast.NotEq(), False):
                low = high = value
            case (ast.LtE() | ast.Lt(), True) | (ast.Gt() | ast.GtE(), False):
                high = min(high, value)
            case (ast.GtE() | ast.Gt(), True) | (ast.Lt() | ast.LtE(), False):
                low = max(low, value)
        self.intervals[text] = (low, high)


class Decisions:
    """The decisions of one path, their conditions and quotes.

    The path starts with a given prefix of choices; each further choice is true, and its alternative
    is recorded.
    """

    def __init__(self, prefix: list[bool], minimums: Mapping[str, int]) -> None:
        self.prefix = prefix
        self.bounds = Bounds(minimums)
        self.choices: list[bool] = []
        self.alternatives: list[list[bool]] = []
        self.truths: dict[str, bool] = {}
        self.conditions: list[ast.expr] = []
        self.quotes: list[Quote] = []

    def decide(self, condition: ast.expr, source: ast.AST) -> bool:
        """Return the branch to take at a condition, and record the condition and its quote."""
        condition = simplified_test(condition)
        settled = self.truth(condition)
        if settled is not None:
            return settled
        index = len(self.choices)
        if index == len(self.prefix):
            self.prefix = [*self.prefix, True]
            self.alternatives.append([*self.choices, False])
        choice = self.prefix[index]
        self.choices.append(choice)
        self.learn(condition, answer=choice)
        self.conditions.append(condition if choice else negated(condition))
        self.quotes.append(quote(source))
        return choice

    def truth(self, condition: ast.expr) -> bool | None:
        """Return a condition's truth if constants or earlier decisions settle it, else None."""
        if isinstance(condition, ast.Constant):
            return bool(condition.value)
        truth = truth_of(condition, self.truth)
        if truth is not None:
            return truth
        recorded = self.truths.get(text_of(condition))
        return self.bounds.truth(condition) if recorded is None else recorded

    def learn(self, condition: ast.expr, *, answer: bool) -> None:
        """Record the truth of a condition, and of its parts where it implies theirs."""
        self.truths[text_of(condition)] = answer
        self.truths[text_of(negated(condition))] = not answer
        self.bounds.learn(condition, answer=answer)
        if isinstance(condition, ast.BoolOp) and answer is isinstance(condition.op, ast.And):
            for part in condition.values:
                self.learn(part, answer=answer)


def simplified_test(condition: ast.expr) -> ast.expr:
    """Return a condition reduced to its truth value, without constants that do not change it."""
    if isinstance(condition, ast.UnaryOp) and isinstance(condition.op, ast.Not):
        return at(ast.UnaryOp(ast.Not(), simplified_test(condition.operand)), condition)
    match condition:
        case ast.Call(func=ast.Name(id="bool"), args=[inner]):
            return simplified_test(inner)
        case ast.Call(func=ast.Name(id="int"), args=[inner]) if _is_boolean(inner):
            return simplified_test(inner)
    if not isinstance(condition, ast.BoolOp):
        return condition
    dominant = isinstance(condition.op, ast.Or)
    operands = [
        operand
        for operand in map(simplified_test, condition.values)
        if not isinstance(operand, ast.Constant) or bool(operand.value) is dominant
    ]
    if not operands:
        return at(ast.Constant(not dominant), condition)
    junction = copy.copy(condition)
    junction.values = operands
    return operands[0] if len(operands) == 1 else junction


def _is_boolean(node: ast.expr) -> bool:
    """Return whether an expression is a boolean whatever its inputs are."""
    match node:
        case ast.Compare() | ast.UnaryOp(op=ast.Not()):
            return True
        case ast.BoolOp():
            return all(map(_is_boolean, node.values))
        case ast.Call(func=ast.Name(id="bool")):
            return True
    return isinstance(node, ast.Constant) and isinstance(node.value, bool)
