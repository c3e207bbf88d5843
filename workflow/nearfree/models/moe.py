"""The experts of a decoder's layer: routed by the model itself or controlled, and shared ones."""

from torch import Tensor
from torch.nn import functional

from nearfree.decoders.decoder import Decoder, Experts
from nearfree.decoders.modules import MOE, ROUTER, SHARED, Laps
from nearfree.decoders.routers import RouterRule
from nearfree.models.expert_backends import Running
from nearfree.models.layers import DenseFfn
from nearfree.models.router import Router
from nearfree.models.weights import Names, Weights


class MoeFfn:
    """Routed experts, chosen by a router or controlled, and those that every token passes.

    Controlled routing overrides what the router says; the router runs all the same.
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
        running: Running,
    ) -> None:
        """Take a layer's weights, whose names begin with `prefix`.

        `rule` says how its router chooses; with `shared_gate` the experts that every token passes
        have a gate of their own.
        """
        self._running = running
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
        out = self._running.run(rows, self._weights, ids, shares)
        laps.lap(MOE)
        if self._shared is not None:
            out = out + self._gated(rows, self._shared.forward(rows, laps))
        return out.view_as(hidden)

    def _gated(self, rows: Tensor, out: Tensor) -> Tensor:
        if self._shared_gate is None:
            return out
        return functional.linear(rows, self._shared_gate).sigmoid() * out
