"""The blocks of MoE kernels other than Triton's fused one: Marlin's, and those of triton_kernels.

Each has one rule of the release for the rows of a block. Tokens are always aligned to blocks, and
the kernel chooses the other sizes.
"""

from collections.abc import Mapping
from typing import Any

from nearfree.backends.moe_kernels import ALIGNED, MARLIN, TRITON_KERNELS
from nearfree.errors import EvidenceError
from nearfree.sources.answers.moe import Block, MoeQuery
from nearfree.sources.language.rule import Answer, Rule
from nearfree.sources.language.thresholds import UnsettledError, change_points

_WIDTH_MULTIPLE = 128
"""The multiple that Marlin takes of a layer's widths: `check_moe_marlin_supports_layer`, in
quantization/utils/marlin_utils.py of vLLM 0.20.2, lines 229-245, with groups of 128.
"""
_PADDED_FORMAT = "mxfp4"
"""The format whose widths vLLM rounds up to what Marlin takes, when it loads them: gpt-oss's 2880
to 2944 and 3072 (`mxfp4_round_up_hidden_size_and_intermediate_size` of fused_moe/oracle/mxfp4.py,
before that `Mxfp4MoEMethod.create_weights`).
"""


class BlockRowRules:
    """A kernel's block rule of one release, specialised for one layer.

    Raises
    ------
    EvidenceError
        The release has no such rule, or the kernel does not take the layer.
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
        self._rule = rules[self.RULE].narrowed(self._fixed, ())

    def facts(self, query: MoeQuery) -> dict[str, Any]:
        """Return the layer's facts that the rule reads."""
        raise NotImplementedError

    def token_facts(self, tokens: int) -> dict[str, int]:
        """Return the rule's inputs that depend on the number of tokens."""
        return {"M": tokens}

    def at(self, tokens: int) -> Block:
        """Return the block at a number of tokens; the kernel chooses its other sizes."""
        answer = self._answer(tokens)
        return Block(
            path=ALIGNED,
            value=answer.value,
            source="fallback",
            branch=answer.branch,
            path_branch=answer.branch,
        )

    def step(self, tokens: int) -> tuple[str, int]:
        """Return the path and the rows of a block, as `at` does."""
        return ALIGNED, self._answer(tokens).value

    def changes(self, limit: int) -> list[int]:
        """Return every number of tokens at which `step` may change, as `MoeRules.changes` does."""
        return change_points(self._rule, self._fixed, "M", limit)

    def inputs(self) -> dict[str, Any]:
        """Return the layer's facts that the answers depend on."""
        return self._fixed

    def _answer(self, tokens: int) -> Answer:
        return self._rule.value({**self._fixed, **self.token_facts(tokens)})


class MarlinRules(BlockRowRules):
    """The rule of Marlin, which engines run for weights of few bits."""

    RULE, KERNEL = "marlin_block_size_m", "Marlin"

    def facts(self, query: MoeQuery) -> dict[str, Any]:
        """Return experts and top_k; refuse a layer of unsupported widths."""
        fits = query.dtype == _PADDED_FORMAT or not (
            query.d_model % _WIDTH_MULTIPLE or query.d_ff % _WIDTH_MULTIPLE
        )
        if not fits:
            raise EvidenceError(
                f"Marlin takes widths that are multiples of {_WIDTH_MULTIPLE}, not d_model"
                f" {query.d_model} and d_ff {query.d_ff}",
                remedy="Ask for such a layer, or for a format that Triton runs",
            )
        return {"E": query.experts, "topk": query.top_k}


class TritonKernelsRules(BlockRowRules):
    """The rule of triton_kernels, which vLLM runs for gpt-oss: by the routed rows per expert."""

    RULE, KERNEL = "triton_kernels_block_m", "triton_kernels"

    def facts(self, query: MoeQuery) -> dict[str, Any]:
        """Return experts, top_k, the compute capability, and whether results are deterministic."""
        if query.sm is None:
            raise EvidenceError(
                "blocks of triton_kernels depend on the compute capability, which is not known",
                remedy="Name the device with --device, or give --sm",
            )
        self._top_k = query.top_k
        return {"E": query.experts, "sm": query.sm, "deterministic": query.deterministic,
                "topk": query.top_k}  # fmt: skip

    def token_facts(self, tokens: int) -> dict[str, int]:
        """Return the number of routed rows."""
        return {"m": tokens * self._top_k}

    def changes(self, limit: int) -> list[int]:
        """Raise UnsettledError: the block is computed from the routed rows."""
        del limit
        raise UnsettledError


OTHER_KERNEL_RULES: Mapping[str, type[BlockRowRules]] = {
    MARLIN: MarlinRules,
    TRITON_KERNELS: TritonKernelsRules,
}
"""The kernels with such a rule, by name."""
