"""The experts of a decoder's layer: its router, routed experts and shared experts."""

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from nearfree.backends.adapters.gates import Gate, clamped, gelu_tanh, silu
from nearfree.backends.adapters.torch_moe import Activation
from nearfree.decoders.decoder import Decoder, Experts
from nearfree.decoders.details import Details
from nearfree.decoders.forms import Form
from nearfree.decoders.ranks.modules import BETWEEN, MOE, ROUTER, SHARED, Laps
from nearfree.decoders.routers import RouterRule
from nearfree.models.expert_runners import ExpertRunner
from nearfree.models.layers import DenseFfn, Names, Norm, RandomWeights


class Router:
    """A router with a weight [E, d_model] and optional biases [E] of scores and of logits."""

    def __init__(
        self,
        rule: RouterRule,
        top_k: int,
        weight: Tensor,
        bias: Tensor | None,
        logit_bias: Tensor | None = None,
    ) -> None:
        self._rule, self._top_k = rule, top_k
        self._weight = weight.float() if rule.scores == "sigmoid" else weight
        self._bias = None if bias is None else bias.float()
        self._logit_bias = logit_bias

    def route(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the experts of each row, [rows, k], int64, and their weights, float32."""
        if self._rule.scores == "softmax":
            logits = functional.linear(rows, self._weight, self._logit_bias)
            scores = logits.softmax(-1, dtype=torch.float32)
        else:
            scores = functional.linear(rows.float(), self._weight).sigmoid()
        ids = self._choice(scores).topk(self._top_k, -1).indices
        shares = scores.gather(1, ids)
        if self._rule.normalised:
            shares = shares / shares.sum(-1, keepdim=True)
        return ids, shares if self._rule.scale == 1.0 else shares * self._rule.scale

    def _choice(self, scores: Tensor) -> Tensor:
        """Return the scores by which experts are chosen, -inf in groups that are not kept."""
        scores_ = scores if self._bias is None else scores + self._bias
        rule = self._rule
        if rule.groups == rule.kept_groups:
            return scores_
        grouped = scores_.unflatten(1, (rule.groups, -1))
        group_scores = grouped.topk(1 if rule.by_best else 2, -1).values.sum(-1)
        group_scores = group_scores.topk(rule.kept_groups, -1).indices
        dropped = torch.ones_like(grouped[..., 0], dtype=torch.bool).scatter_(
            1, group_scores, value=False
        )
        return grouped.masked_fill(dropped.unsqueeze(-1), float("-inf")).flatten(1)


def expert_weights(
    form: Form | None, experts: Experts, d_model: int, weights: RandomWeights, module: str
) -> tuple[tuple[Tensor, Tensor], Activation]:
    """Return both products of a layer's experts, and what is between them, with their biases."""
    count, prefix, gate = experts.experts, f"{module}.experts", gate_of(form)
    products = (
        weights(f"{prefix}.gate_up_proj", (count, 2 * experts.d_ff, d_model)),
        weights(f"{prefix}.down_proj", (count, d_model, experts.d_ff)),
    )
    if form is None or not form.expert_biases:
        return products, Activation(gate)
    return products, Activation(
        gate,
        weights(f"{prefix}.gate_up_proj_bias", (count, 2 * experts.d_ff)),
        weights(f"{prefix}.down_proj_bias", (count, d_model)),
    )


def gate_of(form: Form | None, *, routed: bool = True) -> Gate:
    """Return the gate of a model's FFNs; routed experts may have a different one."""
    if form is None:
        return silu
    if routed and form.clamp is not None:
        return partial(clamped, slope=form.clamp.slope, limit=form.clamp.limit)
    return gelu_tanh if form.activation == "gelu_tanh" else silu


class Routing(NamedTuple):
    """The routed experts of a model's layers, the rule that chooses them, and what runs them."""

    experts: Experts
    rule: RouterRule
    runner: ExpertRunner


class MoeFfn:
    """Routed experts, chosen by a router or by controlled routing, and shared experts.

    Controlled routing overrides the router's choice; the router runs all the same.
    """

    def __init__(
        self,
        decoder: Decoder,
        details: Details,
        weights: RandomWeights,
        names: Names,
        prefix: str,
        *,
        routing: Routing,
    ) -> None:
        """Create a layer's weights, whose names begin with `prefix`."""
        experts, rule, self._runner = routing
        d_model, count = decoder.d_model, experts.experts
        router = f"{prefix}.{names.router}"
        self._router = Router(
            rule,
            experts.top_k,
            weights(f"{router}.weight", (count, d_model)),
            weights(f"{prefix}.{names.expert_bias}", (count,)) if rule.expert_bias else None,
            weights(f"{router}.bias", (count,)) if rule.logit_bias else None,
        )
        form = details.form or None
        self._weights, self._inner = expert_weights(form, experts, d_model, weights, prefix)
        shared = f"{prefix}.{names.shared}"
        gate = gate_of(form, routed=False)
        self._shared = (
            DenseFfn(weights, shared, d_model, experts.shared_d_ff, role=SHARED, gate=gate)
            if experts.shared_d_ff
            else None
        )
        gated = details.shared_gate
        self._shared_gate = weights(f"{shared}_gate.weight", (1, d_model)) if gated else None

    def forward(self, hidden: Tensor, laps: Laps) -> Tensor:
        """Return the FFN's output, [b, N, d_model], given states of the same shape."""
        rows = hidden.flatten(0, 1)
        ids, shares = self._router.route(rows)
        laps.lap(ROUTER)
        out = self._runner.run(rows, self._weights, ids, shares, self._inner)
        laps.lap(MOE)
        if self._shared is not None:
            out = out + self._gated(rows, self._shared.forward(rows, laps))
        return out.view_as(hidden)

    def _gated(self, rows: Tensor, out: Tensor) -> Tensor:
        if self._shared_gate is None:
            return out
        return functional.linear(rows, self._shared_gate).sigmoid() * out


class ParallelExperts:
    """Routed experts beside a layer's Dense FFN, both with their own norms (Gemma 4).

    Source: Gemma4TextDecoderLayer and Gemma4TextRouter of transformers 5.23.
    """

    def __init__(
        self,
        decoder: Decoder,
        details: Details,
        weights: RandomWeights,
        prefix: str,
        routing: Routing,
    ) -> None:
        experts, rule, self._runner = routing
        d_model, count, self._eps = decoder.d_model, experts.experts, details.norm_eps
        self._input_norm, self._dense_norm, self._expert_norm = (
            Norm(weights, f"{prefix}.{name}", d_model, details.norm_eps)
            for name in (
                "pre_feedforward_layernorm_2",
                "post_feedforward_layernorm_1",
                "post_feedforward_layernorm_2",
            )
        )
        self._factors = weights(f"{prefix}.router.scale", (d_model,)) * d_model**-0.5
        proj = weights(f"{prefix}.router.proj.weight", (count, d_model))
        self._router = Router(rule, experts.top_k, proj, None)
        self._per_expert = weights(f"{prefix}.router.per_expert_scale", (count,)).float()
        self._weights, self._inner = expert_weights(
            details.form or None, experts, d_model, weights, prefix
        )

    def forward(self, hidden: Tensor, dense: Tensor, laps: Laps) -> Tensor:
        """Return the sum of both FFNs, given their input and the Dense FFN's output."""
        rows = hidden.flatten(0, 1)
        normed = functional.rms_norm(rows, rows.shape[-1:], self._factors, self._eps)
        laps.lap(BETWEEN)
        ids, shares = self._router.route(normed)
        shares = shares * self._per_expert[ids]
        laps.lap(ROUTER)
        expert_rows = self._input_norm.forward(rows)
        laps.lap(BETWEEN)
        out = self._runner.run(expert_rows, self._weights, ids, shares, self._inner)
        laps.lap(MOE)
        return self._dense_norm.forward(dense) + self._expert_norm.forward(out).view_as(hidden)
