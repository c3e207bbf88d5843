"""The experts of a decoder's layer: router, routed and shared experts, and their backends."""

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from nearfree.backends.adapters.experts import Aligned, controlled_ids
from nearfree.backends.adapters.flash_kernel import compute_capability
from nearfree.backends.adapters.fused_moe import Call
from nearfree.backends.adapters.kernel import ExecutionContext
from nearfree.backends.adapters.torch_moe import GROUPED, PADDED, Core, core_of, mixed
from nearfree.backends.records import in_models, load
from nearfree.core.setting import ModelRouting
from nearfree.decoders.decoder import Decoder, Experts
from nearfree.decoders.details import RouterRule
from nearfree.decoders.modules import MOE, ROUTER, SHARED, Laps
from nearfree.errors import EvidenceError
from nearfree.models.layers import DenseFfn, Names, RandomWeights

_GROUPED = (9, 10)
"""The compute capabilities, before the point, that torch's grouped_mm has a kernel for."""


class ExpertRunner(Protocol):
    """Rows through the experts that they are routed to; one object serves all layers.

    What controlled routing decides is made when a number of tokens first comes, and kept.
    """

    def run(
        self, rows: Tensor, weights: tuple[Tensor, Tensor], ids: Tensor, shares: Tensor
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
        """


class _Torch:
    """A core of torch, given where the rows of each expert lie."""

    def __init__(self, core: Core, experts: Experts, routing: ModelRouting) -> None:
        self._core, self._experts, self._routing = core, experts, routing
        self._kept: dict[int, Aligned] = {}

    def run(
        self, rows: Tensor, weights: tuple[Tensor, Tensor], ids: Tensor, shares: Tensor
    ) -> Tensor:
        if self._routing == "router":
            return mixed(self._core, rows, self._aligned(ids), weights, shares)
        if len(rows) not in self._kept:
            self._kept[len(rows)] = self._aligned(_controlled(self._routing, rows, self._experts))
        return mixed(self._core, rows, self._kept[len(rows)], weights)

    def _aligned(self, ids: Tensor) -> Aligned:
        experts = self._experts.experts
        return Aligned(ids, experts, self._core.block_rows(len(ids), experts))


class _Engine:
    """An engine's call, given ids and shares, as it is when serving."""

    def __init__(self, call: Call, experts: Experts, routing: ModelRouting) -> None:
        self._call, self._experts, self._routing = call, experts, routing
        self._kept: dict[int, tuple[Tensor, Tensor]] = {}

    def run(
        self, rows: Tensor, weights: tuple[Tensor, Tensor], ids: Tensor, shares: Tensor
    ) -> Tensor:
        if self._routing == "router":
            return self._call(rows, *weights, shares, ids.to(torch.int32))
        if len(rows) not in self._kept:
            kept = _controlled(self._routing, rows, self._experts).to(torch.int32)
            even = torch.full(kept.shape, 1.0 / self._experts.top_k, device=rows.device)
            self._kept[len(rows)] = kept, even
        kept, even = self._kept[len(rows)]
        return self._call(rows, *weights, even, kept)


def _controlled(routing: ModelRouting, rows: Tensor, experts: Experts) -> Tensor:
    return controlled_ids(routing, len(rows), experts.experts, experts.top_k, rows.device)


def make_expert_runner(
    backend: str,
    experts: Experts,
    routing: ModelRouting,
    dtype: torch.dtype,
    execution: ExecutionContext,
) -> ExpertRunner:
    """Return what runs a model's experts on a backend.

    Raises
    ------
    EvidenceError
        No such backend runs the experts of a model, or it would wait for the GPU.
    """
    known = in_models("moe_ffn")
    if backend not in known:
        raise EvidenceError(
            f"no adapter runs a model's experts on {backend!r:.80}",
            remedy=f"Choose from {', '.join(known)}",
        )
    core = core_of(backend)
    if core is None:
        return _Engine(load(known[backend])(experts.experts).call, experts, routing)
    if execution.device == "cuda":
        _refuse_waiting(core, routing, dtype, compute_capability(execution))
    return _Torch(core, experts, routing)


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


class Router:
    """A router's weight [E, d_model], and its bias [E] where its rule has one."""

    def __init__(self, rule: RouterRule, top_k: int, weight: Tensor, bias: Tensor | None) -> None:
        self._rule, self._top_k = rule, top_k
        self._weight = weight.float() if rule.scores == "sigmoid" else weight
        self._bias = None if bias is None else bias.float()

    def route(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the experts of each row, [rows, k], int64, and their shares, float32."""
        if self._rule.scores == "softmax":
            scores = functional.linear(rows, self._weight).softmax(-1, dtype=torch.float32)
        else:
            scores = functional.linear(rows.float(), self._weight).sigmoid()
        ids = self._choice(scores).topk(self._top_k, -1).indices
        shares = scores.gather(1, ids)
        if self._rule.normalised:
            shares = shares / shares.sum(-1, keepdim=True)
        return ids, shares if self._rule.scale == 1.0 else shares * self._rule.scale

    def _choice(self, scores: Tensor) -> Tensor:
        """Return the scores to choose by, those of groups that are not kept being lowest."""
        choice = scores if self._bias is None else scores + self._bias
        rule = self._rule
        if rule.groups == rule.kept_groups:
            return choice
        grouped = choice.unflatten(1, (rule.groups, -1))
        best = grouped.topk(2, -1).values.sum(-1).topk(rule.kept_groups, -1).indices
        dropped = torch.ones_like(grouped[..., 0], dtype=torch.bool).scatter_(1, best, value=False)
        return grouped.masked_fill(dropped.unsqueeze(-1), float("-inf")).flatten(1)


class MoeFfn:
    """Routed experts, chosen by a router or controlled, and those that every token passes.

    Controlled routing overrides the router's choice; the router runs all the same.
    """

    def __init__(
        self,
        decoder: Decoder,
        weights: RandomWeights,
        names: Names,
        prefix: str,
        *,
        experts: Experts,
        rule: RouterRule,
        shared_gate: bool,
        expert_runner: ExpertRunner,
    ) -> None:
        """Take a layer's weights, whose names begin with `prefix`.

        `rule` says how its router chooses; with `shared_gate` the experts that every token passes
        have a gate of their own.
        """
        self._expert_runner = expert_runner
        d_model, count = decoder.d_model, experts.experts
        bias = weights(f"{prefix}.gate.expert_bias", (count,)) if rule.expert_bias else None
        gate = weights(f"{prefix}.gate.weight", (count, d_model))
        self._router = Router(rule, experts.top_k, gate, bias)
        self._weights = (
            weights(f"{prefix}.experts.gate_up_proj", (count, 2 * experts.d_ff, d_model)),
            weights(f"{prefix}.experts.down_proj", (count, d_model, experts.d_ff)),
        )
        shared = f"{prefix}.{names.shared}"
        self._shared = (
            DenseFfn(weights, shared, d_model, experts.shared_d_ff, SHARED)
            if experts.shared_d_ff
            else None
        )
        self._shared_gate = weights(f"{shared}_gate.weight", (1, d_model)) if shared_gate else None

    def forward(self, hidden: Tensor, laps: Laps) -> Tensor:
        """Return [b, N, d_model], given as much."""
        rows = hidden.flatten(0, 1)
        ids, shares = self._router.route(rows)
        laps.lap(ROUTER)
        out = self._expert_runner.run(rows, self._weights, ids, shares)
        laps.lap(MOE)
        if self._shared is not None:
            out = out + self._gated(rows, self._shared.forward(rows, laps))
        return out.view_as(hidden)

    def _gated(self, rows: Tensor, out: Tensor) -> Tensor:
        if self._shared_gate is None:
            return out
        return functional.linear(rows, self._shared_gate).sigmoid() * out
