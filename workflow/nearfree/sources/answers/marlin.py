"""The blocks of MoE kernels beside Triton's fused one: Marlin's, and those of triton_kernels.

Each has one rule of the release for the rows of a block; tokens are always aligned to blocks, and
the kernel chooses the other sizes.
"""

from collections.abc import Mapping
from typing import Any

from nearfree.backends.moe_kernels import ALIGNED, MARLIN, TRITON_KERNELS
from nearfree.errors import EvidenceError
from nearfree.sources.answers.moe import Block, MoeQuery
from nearfree.sources.language.rule import Answer, Rule
from nearfree.sources.language.thresholds import UnsettledError, changes

_WIDTHS = 128
"""Widths of a layer, of which Marlin takes multiples: `check_moe_marlin_supports_layer`, in
quantization/utils/marlin_utils.py of vLLM 0.20.2, lines 229-245, with groups of 128."""
_ROUNDED_UP = "mxfp4"
"""The format whose widths vLLM rounds up to what Marlin takes, as it loads them: gpt-oss's 2880 to
2944 and 3072 (`mxfp4_round_up_hidden_size_and_intermediate_size` of fused_moe/oracle/mxfp4.py,
before that `Mxfp4MoEMethod.create_weights`)."""


class RowsOfBlocks:
    """A kernel's rule of one release, ready for one layer.

    Raises
    ------
    EvidenceError
        The release states no rule, or its engine runs another kernel for the layer.
    """

    tuned = None
    aligned = True
    RULE: str
    KERNEL: str

    def __init__(self, rules: Mapping[str, Rule], query: MoeQuery) -> None:
        if self.RULE not in rules:
            raise EvidenceError(
                f"no rule of {self.KERNEL}'s blocks is read of this release",
                remedy="Ask for another release, or for a format that Triton runs",
            )
        self._fixed = self.facts(query)
        self._rule = rules[self.RULE].steady(self._fixed, ())

    def facts(self, query: MoeQuery) -> dict[str, Any]:
        """Return what the rule asks of a layer."""
        raise NotImplementedError

    def asked(self, tokens: int) -> dict[str, int]:
        """Return what the rule asks of a number of tokens."""
        return {"M": tokens}

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
        return self._rule.value({**self._fixed, **self.asked(tokens)})


class MarlinRules(RowsOfBlocks):
    """Marlin's, which engines run for weights of few bits."""

    RULE, KERNEL = "marlin_block_size_m", "Marlin"

    def facts(self, query: MoeQuery) -> dict[str, Any]:
        """Return experts and experts a token; refuse a layer of other widths."""
        fits = query.dtype == _ROUNDED_UP or not (query.d_model % _WIDTHS or query.d_ff % _WIDTHS)
        if not fits:
            raise EvidenceError(
                f"Marlin takes widths that are multiples of {_WIDTHS}, not d_model"
                f" {query.d_model} and d_ff {query.d_ff}",
                remedy="Ask for such a layer, or for a format that Triton runs",
            )
        return {"E": query.experts, "topk": query.top_k}


class TritonKernelsRules(RowsOfBlocks):
    """Those of triton_kernels, which vLLM runs for gpt-oss: by the routed rows of an expert."""

    RULE, KERNEL = "triton_kernels_block_m", "triton_kernels"

    def facts(self, query: MoeQuery) -> dict[str, Any]:
        """Return the experts, the compute capability, and how many rows a token is."""
        if query.sm is None:
            raise EvidenceError(
                "blocks of triton_kernels depend on the compute capability, which is not known",
                remedy="Name the device with --device, or give --sm",
            )
        self._top_k = query.top_k
        return {"E": query.experts, "sm": query.sm, "deterministic": query.deterministic,
                "topk": query.top_k}  # fmt: skip

    def asked(self, tokens: int) -> dict[str, int]:
        """Return the routed rows."""
        return {"m": tokens * self._top_k}

    def changes(self, most: int) -> list[int]:
        """Raise UnsettledError: a block is made of the routed rows, so each number is tried."""
        del most
        raise UnsettledError


BESIDE_TRITON: Mapping[str, type[RowsOfBlocks]] = {
    MARLIN: MarlinRules,
    TRITON_KERNELS: TritonKernelsRules,
}
"""The kernels with such a rule, by name."""
