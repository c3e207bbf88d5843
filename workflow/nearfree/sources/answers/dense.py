"""The rows that a dense product's kernel takes at a time, as a release's own text chooses them."""

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from msgspec import Struct

from nearfree.backends.dense_kernels import (
    MACHETE,
    MARLIN,
    dense_kernel,
    dense_rule,
    dense_unread,
)
from nearfree.errors import EvidenceError
from nearfree.log.events import Branch
from nearfree.sources.language.rule import Answer, Rule

_BITS = 16
"""Of the activations of a product whose weights alone are quantised, or are unpacked for it."""
_WHOLE = ("int4", "int8_w8a16")
"""Formats of weights alone, in whole numbers."""
_SIDES = 128, 64
"""Columns and depth of which Machete takes multiples."""


class DenseQuery(Struct, frozen=True, kw_only=True):
    """One product, [rows, depth] by [depth, columns], in elements.

    `format` is that of activations and weights as `dense_format` names it, `sm` the compute
    capability (90 for 9.0), `sms` the number of SMs. `kernel` is the one that an option of the
    engine sets; the release's own choice where it is None.
    """

    columns: int
    depth: int
    format: str
    sm: int
    sms: int | None = None
    kernel: str | None = None


class Rows(Struct, frozen=True, kw_only=True):
    """How a kernel takes the rows of a product.

    `value` is the rows of a tile; where rows are taken in several passes over the weights, the
    first pass's. `padded` counts the rows of all tiles, `passes` how often weights are read.
    """

    path: str
    value: int
    padded: int
    passes: int
    branch: Branch


def _refuse_others(query: DenseQuery) -> None:
    """Raise EvidenceError for a product that the named kernel does not take.

    Machete takes weights alone in whole numbers, on 9.0: `can_implement` of
    vllm/model_executor/kernels/linear/mixed_precision/machete.py in vLLM 0.20.2, and
    `check_machete_supports_shape`. Marlin takes no 8-bit whole numbers of activations.
    """
    columns, depth = _SIDES
    takes = {
        MACHETE: query.format in _WHOLE and query.sm == 90
        and not (query.columns % columns or query.depth % depth),
        MARLIN: query.format != "int8",
    }  # fmt: skip
    if not takes.get(query.kernel or "", True):
        raise EvidenceError(
            f"{query.kernel} takes no {query.format} of {query.columns} columns by {query.depth} "
            f"on compute capability {query.sm}",
            remedy="Ask without --kernel; Machete takes int4 and int8_w8a16 on 90 where columns "
            "are a multiple of 128 and the depth one of 64",
        )


class DenseRules:
    """The rule of one release, ready for one product.

    Raises
    ------
    EvidenceError
        Which kernel runs is not read, no rows of it are, or the one that is named takes no such
        product.
    """

    def __init__(self, rules: Mapping[str, Rule], version: str, query: DenseQuery) -> None:
        sides = query.columns, query.depth
        _refuse_others(query)
        self.kernel = query.kernel or dense_kernel(version, query.format, query.sm, *sides)
        name = dense_rule(self.kernel, query.format, query.sm)
        if name is None or name not in rules:
            raise dense_unread(version, query.format, query.sm, self.kernel)
        self.rule = name
        facts = {"columns": query.columns, "depth": query.depth, "activation_bits": _BITS}
        self._facts: dict[str, Any] = facts | ({} if query.sms is None else {"sms": query.sms})
        self._rule = rules[name].specialised(self._facts)

    def at(self, rows: int) -> Rows:
        """Return how so many rows are taken."""
        first = self._answer(rows)
        if self.kernel != MARLIN:
            return self._rows(first, first.value, -(-rows // first.value) * first.value, 1)
        padded, passes, left = 0, 0, rows
        while left:
            tile, taken = self._answer(left).value
            if not 0 < taken <= left:
                raise EvidenceError(f"a pass takes {taken} of {left} rows", remedy="Report it")
            alike = self._alike(left, tile, taken)
            padded, passes = padded + alike * -(-taken // tile) * tile, passes + alike
            left -= alike * taken
        return self._rows(first, first.value[0], padded, passes)

    def _alike(self, left: int, tile: int, taken: int) -> int:
        """Return how many passes from one on are the same: of more rows none takes fewer.

        So those between two that are the same are, too.
        """
        more = left // taken - 1
        same = more > 0 and self._answer(left - more * taken).value == (tile, taken)
        return 1 + more if same else 1

    def step(self, rows: int) -> tuple[int, int, int]:
        """Return what a change of the granularity is a change of."""
        found = self.at(rows)
        return found.value, found.padded, found.passes

    @cached_property
    def inputs(self) -> dict[str, Any]:
        """Return the product's facts that its answers depend on, besides the rows."""
        asked = self._rule.open_inputs
        return {name: value for name, value in self._facts.items() if name in asked}

    def _rows(self, answer: Answer, tile: int, padded: int, passes: int) -> Rows:
        return Rows(
            path=self.kernel, value=tile, padded=padded, passes=passes, branch=answer.branch
        )

    def _answer(self, rows: int) -> Answer:
        return self._rule.value({**self._facts, "rows": rows})
