"""What earlier decisions say about later ones: bounds of expressions, from comparisons.

Only bounds that hold for all real numbers are drawn; where none decides, a condition stays open.
"""

import ast
from collections.abc import Mapping
from math import inf

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
