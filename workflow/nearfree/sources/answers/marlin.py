"""The blocks of Marlin's fused MoE kernel, which engines run for weights of few bits."""

from collections.abc import Mapping
from typing import Any

from nearfree.errors import EvidenceError
from nearfree.sources.answers.moe import Block, MoeQuery
from nearfree.sources.backends.fused_moe import ALIGNED
from nearfree.sources.language.rule import Answer, Rule
from nearfree.sources.language.thresholds import changes

RULE = "marlin_block_size_m"
_WIDTHS = 128
"""Widths of a layer, of which Marlin takes multiples: `check_moe_marlin_supports_layer`, in
quantization/utils/marlin_utils.py of vLLM 0.20.2, lines 229-245, with groups of 128."""


class MarlinRules:
    """The rule of one release, ready for one layer: tokens are always aligned to blocks.

    Raises
    ------
    EvidenceError
        The release states no rule, or its engine runs another kernel for a layer so wide.
    """

    tuned = None
    aligned = True

    def __init__(self, rules: Mapping[str, Rule], query: MoeQuery) -> None:
        if RULE not in rules:
            raise EvidenceError(
                "no rule of Marlin's blocks is read of this release",
                remedy="Ask for another release, or for a format that Triton runs",
            )
        if query.d_model % _WIDTHS or query.d_ff % _WIDTHS:
            raise EvidenceError(
                f"Marlin takes widths that are multiples of {_WIDTHS}, not d_model"
                f" {query.d_model} and d_ff {query.d_ff}",
                remedy="Ask for such a layer, or for a format that Triton runs",
            )
        self._fixed: dict[str, Any] = {"E": query.experts, "topk": query.top_k}
        self._rule = rules[RULE].steady(self._fixed, ())

    def at(self, tokens: int) -> Block:
        """Return the block at a number of tokens; of its sizes, the kernel chooses the others."""
        answer = self._answer(tokens)
        return Block(
            path=ALIGNED,
            value=answer.value,
            source="fallback",
            branch=answer.branch,
            path_branch=answer.branch,
        )

    def step(self, tokens: int) -> tuple[str, int]:
        """Return the path and the rows of a block that `at` returns."""
        return ALIGNED, self._answer(tokens).value

    def changes(self, most: int) -> list[int]:
        """Return every number of tokens at which `step` may change; as `MoeRules.changes`."""
        return changes(self._rule, self._fixed, "M", most)

    def inputs(self) -> dict[str, Any]:
        """Return the layer's facts that its answers depend on."""
        return self._fixed

    def _answer(self, tokens: int) -> Answer:
        return self._rule.value({**self._fixed, "M": tokens})
