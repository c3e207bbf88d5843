"""The tile rows of a dense product's kernel, as a release's own text chooses them."""

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from msgspec import Struct

from nearfree.backends.dense_kernels import MACHETE, dense_kernel, dense_rule, unread_product_error
from nearfree.backends.moe_kernels import MARLIN
from nearfree.errors import EvidenceError
from nearfree.log.events import Branch
from nearfree.sources.language.rule import Answer, Rule

_ACTIVATION_BITS = 16
"""Bits of the activations if only weights are quantised, or are dequantised for the product."""
_INTEGER_FORMATS = ("int4", "int8_w8a16")
"""Weight-only integer formats."""
_MACHETE_MULTIPLES = 128, 64
"""Multiples of columns and depth that Machete takes."""


class DenseQuery(Struct, frozen=True, kw_only=True):
    """One product, [rows, depth] by [depth, columns], in elements.

    `format` is that of activations and weights as `dense_format` names it, `sm` the compute
    capability (90 for 9.0), `sms` the number of SMs. `kernel` is the one that an engine's option
    sets; None for the release's own choice.
    """

    columns: int
    depth: int
    format: str
    sm: int
    sms: int | None = None
    kernel: str | None = None


class Rows(Struct, frozen=True, kw_only=True):
    """How a kernel divides the rows of a product into tiles and passes.

    `value` is the rows of a tile; if the rows take several passes over the weights, of the first
    pass's tile. `padded` is the number of rows of all tiles, `passes` how often the weights are
    read.
    """

    path: str
    value: int
    padded: int
    passes: int
    branch: Branch


def _require_supported(query: DenseQuery) -> None:
    """Raise EvidenceError for a product that the named kernel does not take.

    Machete takes weight-only integer formats, on 9.0: `can_implement` of
    vllm/model_executor/kernels/linear/mixed_precision/machete.py in vLLM 0.20.2, and
    `check_machete_supports_shape`. Marlin takes no 8-bit integer activations.
    """
    columns, depth = _MACHETE_MULTIPLES
    supports = {
        MACHETE: query.format in _INTEGER_FORMATS and query.sm == 90
        and not (query.columns % columns or query.depth % depth),
        MARLIN: query.format != "int8",
    }  # fmt: skip
    if not supports.get(query.kernel or "", True):
        raise EvidenceError(
            f"{query.kernel} takes no {query.format} of {query.columns} columns by {query.depth} "
            f"on compute capability {query.sm}",
            remedy="Ask without --kernel; Machete takes int4 and int8_w8a16 on 90 where columns "
            "are a multiple of 128 and the depth one of 64",
        )


class DenseRules:
    """The rule of one release, specialised for one product.

    Raises
    ------
    EvidenceError
        The kernel that runs or its tile rows are unknown, or the named kernel does not take the
        product.
    """

    def __init__(self, rules: Mapping[str, Rule], version: str, query: DenseQuery) -> None:
        sides = query.columns, query.depth
        _require_supported(query)
        self.kernel = query.kernel or dense_kernel(version, query.format, query.sm, *sides)
        name = dense_rule(self.kernel, query.format, query.sm)
        if name is None or name not in rules:
            raise unread_product_error(version, query.format, query.sm, self.kernel)
        self.rule = name
        facts = {
            "columns": query.columns,
            "depth": query.depth,
            "activation_bits": _ACTIVATION_BITS,
        }
        self._facts: dict[str, Any] = facts | ({} if query.sms is None else {"sms": query.sms})
        self._rule = rules[name].specialised(self._facts)

    def at(self, rows: int) -> Rows:
        """Return the tiles and passes of a number of rows."""
        first = self._answer(rows)
        if self.kernel != MARLIN:
            return self._rows(first, first.value, -(-rows // first.value) * first.value, 1)
        padded, passes, rows_left = 0, 0, rows
        while rows_left:
            tile, pass_rows = self._answer(rows_left).value
            if not 0 < pass_rows <= rows_left:
                raise EvidenceError(
                    f"a pass takes {pass_rows} of {rows_left} rows", remedy="Report it"
                )
            equal_passes = self._equal_passes(rows_left, tile, pass_rows)
            padded += equal_passes * -(-pass_rows // tile) * tile
            passes += equal_passes
            rows_left -= equal_passes * pass_rows
        return self._rows(first, first.value[0], padded, passes)

    def _equal_passes(self, rows_left: int, tile: int, pass_rows: int) -> int:
        """Return the number of equal consecutive passes from here on.

        More rows never give a pass of fewer rows, so all passes between two equal ones are equal.
        """
        further = rows_left // pass_rows - 1
        last_answer = self._answer(rows_left - further * pass_rows)
        return 1 + further if last_answer.value == (tile, pass_rows) else 1

    def step(self, rows: int) -> tuple[int, int, int]:
        """Return the values whose change is a change of the granularity."""
        tiles = self.at(rows)
        return tiles.value, tiles.padded, tiles.passes

    @cached_property
    def inputs(self) -> dict[str, Any]:
        """The product's facts that its answers depend on, besides the rows."""
        names = self._rule.open_inputs
        return {name: value for name, value in self._facts.items() if name in names}

    def _rows(self, answer: Answer, tile: int, padded: int, passes: int) -> Rows:
        return Rows(
            path=self.kernel, value=tile, padded=padded, passes=passes, branch=answer.branch
        )

    def _answer(self, rows: int) -> Answer:
        return self._rule.value({**self._facts, "rows": rows})
