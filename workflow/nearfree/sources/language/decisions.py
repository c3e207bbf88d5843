"""One way through a function: the decisions taken on it, and what they settle about later ones."""

import ast
import copy
from collections.abc import Mapping
from math import inf

from nearfree.log.events import Quote
from nearfree.sources.language.expressions import negated, truth_of
from nearfree.sources.language.program import at, quote

Interval = tuple[float, float]


class Bounds:
    """Intervals of expressions, by their text.

    Parameters
    ----------
    least
        Inputs that are never smaller than a number, such as sizes.
    """

    def __init__(self, least: Mapping[str, int]) -> None:
        self.known: dict[str, Interval] = {name: (low, inf) for name, low in least.items()}

    def interval(self, node: ast.expr) -> Interval:
        """Return bounds of an expression, both included."""
        low, high = self._composed(node)
        known = self.known.get(ast.unparse(node), (-inf, inf))
        return max(low, known[0]), min(high, known[1])

    def _composed(self, node: ast.expr) -> Interval:
        match node:
            case ast.Constant(value=int() | float() as value):
                return value, value
            case ast.UnaryOp(op=ast.USub()):
                low, high = self.interval(node.operand)
                return -high, -low
            case ast.BinOp(op=ast.Add()):
                left, right = self.interval(node.left), self.interval(node.right)
                return left[0] + right[0], left[1] + right[1]
            case ast.BinOp(op=ast.Sub()):
                left, right = self.interval(node.left), self.interval(node.right)
                return left[0] - right[1], left[1] - right[0]
            case ast.BinOp(op=ast.Mult()):
                left, right = self.interval(node.left), self.interval(node.right)
                if min(left[0], right[0]) >= 0:
                    return left[0] * right[0], inf
        return -inf, inf

    def truth(self, node: ast.expr) -> bool | None:
        """Return whether a comparison holds, where the bounds decide it."""
        if not isinstance(node, ast.Compare) or len(node.ops) != 1:
            return None
        if ast.unparse(node.left) == ast.unparse(node.comparators[0]):
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
        """Draw bounds from a comparison that was decided; strict ones as if they were not."""
        if not isinstance(node, ast.Compare) or len(node.ops) != 1:
            return
        right = node.comparators[0]
        if not isinstance(right, ast.Constant) or not isinstance(right.value, int | float):
            return
        text, value = ast.unparse(node.left), right.value
        low, high = self.known.get(text, (-inf, inf))
        match node.ops[0], answer:
            case (ast.Eq(), True) | (ast.NotEq(), False):
                low = high = value
            case (ast.LtE() | ast.Lt(), True) | (ast.Gt() | ast.GtE(), False):
                high = min(high, value)
            case (ast.GtE() | ast.Gt(), True) | (ast.Lt() | ast.LtE(), False):
                low = max(low, value)
        self.known[text] = (low, high)


class Decisions:
    """The decisions of one way, and what they are about.

    The first ones are given, further ones are taken as true.

    Parameters
    ----------
    least
        Inputs that are never smaller than a number.
    """

    def __init__(self, given: list[bool], least: Mapping[str, int]) -> None:
        self.given = given
        self.bounds = Bounds(least)
        self.taken: list[bool] = []
        self.others: list[list[bool]] = []
        self.known: dict[str, bool] = {}
        self.when: list[ast.expr] = []
        self.quotes: list[Quote] = []

    def decide(self, condition: ast.expr, place: ast.AST) -> bool:
        """Return which way to go at a condition, and keep the condition."""
        condition = tested(condition)
        decided = self.truth(condition)
        if decided is not None:
            return decided
        number = len(self.taken)
        if number == len(self.given):
            self.given = [*self.given, True]
            self.others.append([*self.taken, False])
        answer = self.given[number]
        self.taken.append(answer)
        self.learn(condition, answer=answer)
        self.when.append(condition if answer else negated(condition))
        self.quotes.append(quote(place))
        return answer

    def truth(self, condition: ast.expr) -> bool | None:
        """Return a condition's truth where constants or earlier decisions settle it."""
        if isinstance(condition, ast.Constant):
            return bool(condition.value)
        settled = truth_of(condition, self.truth)
        if settled is not None:
            return settled
        decided = self.known.get(ast.unparse(condition))
        return self.bounds.truth(condition) if decided is None else decided

    def learn(self, condition: ast.expr, *, answer: bool) -> None:
        """Keep what a decision says, about the parts of the condition too."""
        self.known[ast.unparse(condition)] = answer
        self.known[ast.unparse(negated(condition))] = not answer
        self.bounds.learn(condition, answer=answer)
        if isinstance(condition, ast.BoolOp) and answer is isinstance(condition.op, ast.And):
            for part in condition.values:
                self.learn(part, answer=answer)


def tested(condition: ast.expr) -> ast.expr:
    """Return a condition of which only the truth counts, without constants that change nothing."""
    if isinstance(condition, ast.UnaryOp) and isinstance(condition.op, ast.Not):
        return at(ast.UnaryOp(ast.Not(), tested(condition.operand)), condition)
    match condition:
        case ast.Call(func=ast.Name(id="bool"), args=[inner]):
            return tested(inner)
        case ast.Call(func=ast.Name(id="int"), args=[inner]) if _is_truth(inner):
            return tested(inner)
    if not isinstance(condition, ast.BoolOp):
        return condition
    stop = isinstance(condition.op, ast.Or)
    kept = [
        each
        for each in map(tested, condition.values)
        if not isinstance(each, ast.Constant) or bool(each.value) is stop
    ]
    if not kept:
        return at(ast.Constant(not stop), condition)
    whole = copy.copy(condition)
    whole.values = kept
    return kept[0] if len(kept) == 1 else whole


def _is_truth(node: ast.expr) -> bool:
    """Return whether an expression is `True` or `False` whatever its inputs are."""
    match node:
        case ast.Compare() | ast.UnaryOp(op=ast.Not()):
            return True
        case ast.BoolOp():
            return all(map(_is_truth, node.values))
        case ast.Call(func=ast.Name(id="bool")):
            return True
    return isinstance(node, ast.Constant) and isinstance(node.value, bool)
