"""The experts of a decoder's layer: its router or controlled routing, routed and shared experts."""

import torch
from torch import Tensor
from torch.nn import functional

from nearfree.decoders.decoder import Decoder, Experts
from nearfree.decoders.modules import MOE, ROUTER, SHARED, Laps
from nearfree.decoders.routers import RouterRule
from nearfree.models.expert_backends import ExpertRunner
from nearfree.models.layers import DenseFfn
from nearfree.models.weights import Names, Weights


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
        weights: Weights,
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
