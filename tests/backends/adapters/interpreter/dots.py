"""Counting what the interpreter multiplies."""

from collections import Counter
from typing import Any

from triton.runtime.interpreter import InterpreterBuilder


class Dots:
    """Counts all dot products from its making on, by their shape [rows, inner, columns]."""

    def __init__(self) -> None:
        self.shapes: Counter[tuple[int, int, int]] = Counter()
        multiply = InterpreterBuilder.create_dot

        def create_dot(builder: InterpreterBuilder, a: Any, b: Any, *rest: Any) -> Any:
            self.shapes[*a.data.shape, b.data.shape[1]] += 1
            return multiply(builder, a, b, *rest)

        InterpreterBuilder.create_dot = create_dot

    def take(self) -> tuple[int, list[int]]:
        """Return the FLOPs since the last call, and the row counts of the dots that did them."""
        flop = sum(2 * m * k * n * times for (m, k, n), times in self.shapes.items())
        rows = sorted({m for m, _, _ in self.shapes})
        self.shapes.clear()
        return flop, rows
