"""Runners of a model's routed experts: torch cores, and calls of engines."""

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
"""The major compute capabilities for which torch's grouped_mm has a kernel."""


class _Torch:
    """A torch core, which takes the layout of rows by expert.

    The layout of controlled routing is made on the first call with a number of tokens and kept.
    """

    def __init__(
        self, core: Core, experts: Experts, routing: ModelRouting, *, on_inputs: bool
    ) -> None:
        self._core, self._experts, self._routing = core, experts, routing
        self._on_inputs = on_inputs
        self._layouts: dict[int, Aligned] = {}

    def run(
        self,
        rows: Tensor,
        weights: tuple[Tensor, Tensor],
        ids: Tensor,
        shares: Tensor,
        inner: Activation = PLAIN,
    ) -> Tensor:
        """Return the experts' outputs, [tokens, d_model].

        Parameters
        ----------
        rows
            [tokens, d_model].
        weights
            Gate and up, [E, 2 d_ff, d_model], and down, [E, d_model, d_ff].
        ids, shares
            The choice of the layer's own router, [tokens, k]: experts, int64, and their weights,
            float32. Controlled routing overrides both.
        inner
            The operation of experts between their products.
        """
        by_router, on_inputs = self._routing == "router", self._on_inputs
        if not by_router and len(rows) not in self._layouts:
            self._layouts[len(rows)] = self._aligned(
                _controlled(self._routing, rows, self._experts)
            )
        aligned = self._aligned(ids) if by_router else self._layouts[len(rows)]
        router_weights = shares if by_router else None
        return moe_forward(
            self._core, rows, aligned, weights, router_weights, inner=inner, on_inputs=on_inputs
        )

    def _aligned(self, ids: Tensor) -> Aligned:
        experts = self._experts.experts
        return Aligned(ids, experts, self._core.block_rows(len(ids), experts))


class _Engine:
    """An engine's call with experts and weights of tokens, as in serving."""

    def __init__(self, call: Call, experts: Experts, routing: ModelRouting) -> None:
        self._call, self._experts, self._routing = call, experts, routing
        self._layouts: dict[int, tuple[Tensor, Tensor]] = {}

    def run(
        self,
        rows: Tensor,
        weights: tuple[Tensor, Tensor],
        ids: Tensor,
        shares: Tensor,
        inner: Activation = PLAIN,
    ) -> Tensor:
        del inner  # a model with another inner operation is refused
        if self._routing == "router":
            return self._call(rows, *weights, shares, ids.to(torch.int32))
        if len(rows) not in self._layouts:
            fixed_ids = _controlled(self._routing, rows, self._experts).to(torch.int32)
            even_shares = torch.full(fixed_ids.shape, 1.0 / self._experts.top_k, device=rows.device)
            self._layouts[len(rows)] = fixed_ids, even_shares
        fixed_ids, even_shares = self._layouts[len(rows)]
        return self._call(rows, *weights, even_shares, fixed_ids)


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
    """Return the runner of a model's experts on a backend.

    With `on_inputs` router weights multiply the experts' inputs. `plain` experts have SiLU and no
    biases.

    Raises
    ------
    EvidenceError
        The backend does not run the experts of models, or not experts of this form, or the host
        would wait for the GPU.
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
    """Raise EvidenceError if the host would read GPU memory in the middle of a forward.

    Without a kernel for the dtype and the GPU, grouped_mm multiplies expert by expert, for which it
    copies the ends of groups to the host (ATen/native/cuda/GroupedBlas.cpp of torch 2.13).
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
