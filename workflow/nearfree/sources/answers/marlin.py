"""The blocks of MoE kernels other than Triton's fused one: Marlin's, and those of triton_kernels.

Each has one rule of the release for the rows of a block. Tokens are always aligned to blocks, and
the kernel chooses the other sizes.
"""

from collections.abc import Callable, Mapping
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


def _marlin_facts(query: MoeQuery) -> dict[str, Any]:
    """Return the layer's facts that Marlin's rule reads; refuse a layer of unsupported widths."""
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


def _triton_kernels_facts(query: MoeQuery) -> dict[str, Any]:
    """Return the layer's facts that the rule of triton_kernels reads, which vLLM runs for gpt-oss.

    The rule is by the routed rows per expert, `m`.
    """
    if query.sm is None:
        raise EvidenceError(
            "blocks of triton_kernels depend on the compute capability, which is not known",
            remedy="Name the device with --device, or give --sm",
        )
    return {"E": query.experts, "sm": query.sm, "deterministic": query.deterministic,
            "topk": query.top_k}  # fmt: skip


OTHER_KERNEL_RULES: Mapping[str, tuple[str, str, Callable[[MoeQuery], dict[str, Any]]]] = {
    MARLIN: ("marlin_block_size_m", "Marlin", _marlin_facts),
    TRITON_KERNELS: ("triton_kernels_block_m", "triton_kernels", _triton_kernels_facts),
}
"""The kernels with such a rule: the rule, the kernel's name, and a layer's facts."""


class BlockRowRules:
    """A kernel's block rule of one release, specialised for one layer.

    Raises
    ------
    EvidenceError
        The release has no such rule, or the kernel does not take the layer.
    """

    def __init__(self, rules: Mapping[str, Rule], query: MoeQuery, kernel: str) -> None:
        name, kernel_name, facts = OTHER_KERNEL_RULES[kernel]
        if name not in rules:
            raise EvidenceError(
                f"no rule of {kernel_name}'s blocks is read of this release",
                remedy="Ask for another release, or for a format that Triton runs",
            )
        self._kernel = kernel_name
        self.inputs, self._top_k = facts(query), query.top_k
        """The layer's facts that the answers depend on."""
        self._rule = rules[name].narrowed(self.inputs, ())

    def at(self, tokens: int) -> Block:
        """Return the block at a number of tokens; the kernel chooses its other sizes."""
        answer = self._answer(tokens)
        return Block(
            path=ALIGNED,
            value=answer.value,
            kernel=self._kernel,
            source="fallback",
            branch=answer.branch,
            path_branch=answer.branch,
        )

    def step(self, tokens: int) -> tuple[str, int]:
        """Return the path and the rows of a block, as `at` does."""
        return ALIGNED, self._answer(tokens).value

    def changes(self, limit: int) -> list[int]:
        """Return every number of tokens at which `step` may change, as `MoeRules.changes` does."""
        if "m" in self._rule.open_inputs:
            raise UnsettledError  # the block is computed from the routed rows
        return change_points(self._rule, self.inputs, "M", limit)

    def _answer(self, tokens: int) -> Answer:
        return self._rule.value({**self.inputs, "M": tokens, "m": tokens * self._top_k})
