"""What runs the routed experts of a model: a core of torch, or an engine's call."""

import torch
from torch import Tensor

from nearfree.backends.adapters.experts import Aligned, controlled_ids
from nearfree.backends.adapters.flash_kernel import compute_capability
from nearfree.backends.adapters.fused_moe import Call
from nearfree.backends.adapters.kernel import ExecutionContext
from nearfree.backends.adapters.torch_moe import (
    GROUPED,
    PADDED,
    PLAIN,
    Activation,
    Core,
    core_of,
    moe_forward,
)
from nearfree.backends.records import in_models, load
from nearfree.core.routing_names import ModelRouting
from nearfree.decoders.decoder import Experts
from nearfree.errors import EvidenceError

_GROUPED = (9, 10)
"""The compute capabilities, before the point, that torch's grouped_mm has a kernel for."""


class _Torch:
    """A core of torch, given where the rows of each expert lie.

    What controlled routing decides is made when a number of tokens first comes, and kept.
    """

    def __init__(
        self, core: Core, experts: Experts, routing: ModelRouting, *, on_inputs: bool
    ) -> None:
        self._core, self._experts, self._routing = core, experts, routing
        self._on_inputs = on_inputs
        self._kept: dict[int, Aligned] = {}

    def run(
        self,
        rows: Tensor,
        weights: tuple[Tensor, Tensor],
        ids: Tensor,
        shares: Tensor,
        inner: Activation = PLAIN,
    ) -> Tensor:
        """Return [tokens, d_model], given as much.

        Parameters
        ----------
        rows
            [tokens, d_model].
        weights
            Of gate and up, [E, 2 d_ff, d_model], and of down, [E, d_model, d_ff].
        ids, shares
            What the layer's own router says, [tokens, k]: experts, int64, and what each weighs,
            float32. Controlled routing overrides both.
        inner
            What experts do between their products.
        """
        own, on_inputs = self._routing == "router", self._on_inputs
        if not own and len(rows) not in self._kept:
            self._kept[len(rows)] = self._aligned(_controlled(self._routing, rows, self._experts))
        aligned = self._aligned(ids) if own else self._kept[len(rows)]
        weighed = shares if own else None
        return moe_forward(
            self._core, rows, aligned, weights, weighed, inner=inner, on_inputs=on_inputs
        )

    def _aligned(self, ids: Tensor) -> Aligned:
        experts = self._experts.experts
        return Aligned(ids, experts, self._core.block_rows(len(ids), experts))


class _Engine:
    """An engine's call, given ids and shares, as it is when serving."""

    def __init__(self, call: Call, experts: Experts, routing: ModelRouting) -> None:
        self._call, self._experts, self._routing = call, experts, routing
        self._kept: dict[int, tuple[Tensor, Tensor]] = {}

    def run(
        self,
        rows: Tensor,
        weights: tuple[Tensor, Tensor],
        ids: Tensor,
        shares: Tensor,
        inner: Activation = PLAIN,
    ) -> Tensor:
        del inner  # a model with others is refused
        if self._routing == "router":
            return self._call(rows, *weights, shares, ids.to(torch.int32))
        if len(rows) not in self._kept:
            kept = _controlled(self._routing, rows, self._experts).to(torch.int32)
            even = torch.full(kept.shape, 1.0 / self._experts.top_k, device=rows.device)
            self._kept[len(rows)] = kept, even
        kept, even = self._kept[len(rows)]
        return self._call(rows, *weights, even, kept)


ExpertRunner = _Torch | _Engine
"""Rows through the experts that they are routed to; one object serves all layers."""


def _controlled(routing: ModelRouting, rows: Tensor, experts: Experts) -> Tensor:
    return controlled_ids(routing, len(rows), experts.experts, experts.top_k, rows.device)


def make_expert_runner(
    backend: str,
    experts: Experts,
    routing: ModelRouting,
    dtype: torch.dtype,
    execution: ExecutionContext,
    *,
    on_inputs: bool = False,
    plain: bool = True,
) -> ExpertRunner:
    """Return what runs a model's experts on a backend.

    Shares multiply what goes into experts with `on_inputs`; they have SiLU and no biases if
    `plain`.

    Raises
    ------
    EvidenceError
        No such backend runs the experts of a model, or not such ones, or it would wait for the GPU.
    """
    known = in_models("moe_ffn")
    if backend not in known:
        raise EvidenceError(
            f"no adapter runs a model's experts on {backend!r:.80}",
            remedy=f"Choose from {', '.join(known)}",
        )
    core = core_of(backend)
    if core is None and (on_inputs or not plain):
        raise EvidenceError(
            f"{backend} is run here with experts that have SiLU, no biases, and shares on outputs",
            remedy="Choose torch_grouped or torch_padded",
        )
    if core is None:
        return _Engine(load(known[backend])(experts.experts).call, experts, routing)
    if execution.device == "cuda":
        _refuse_waiting(core, routing, dtype, compute_capability(execution))
    return _Torch(core, experts, routing, on_inputs=on_inputs)


def _refuse_waiting(core: Core, routing: ModelRouting, dtype: torch.dtype, sm: int) -> None:
    """Raise EvidenceError where the host reads what lies on a GPU in the middle of a forward.

    Without a kernel for the dtype and the GPU, grouped_mm multiplies expert by expert, up to ends
    that it copies to the host (ATen/native/cuda/GroupedBlas.cpp of torch 2.13).
    """
    if core is PADDED and routing == "router":
        raise EvidenceError(
            "torch_padded lays out blocks on the host, so a GPU would wait for its own router",
            remedy="Choose torch_grouped, vllm or sglang, or balanced or skewed routing",
        )
    if core is GROUPED and (dtype != torch.bfloat16 or sm // 10 not in _GROUPED):
        raise EvidenceError(
            f"torch_grouped has no kernel in {dtype} for compute capability {sm / 10}",
            remedy="Choose vllm or sglang, or bfloat16 on compute capability 9.0 or 10.0",
        )
