"""Ling 2.0 and LLaDA 2 against their definition, token by token in float64."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from nearfree.models.attention import Mask
from torch import Tensor

from models.given_weights import GivenWeights
from models.small import BATCH, CONTEXT, POSITIONS, document, error, make_forward, tokens

Tensors = dict[str, Tensor]
HEADS, KV_HEADS, WIDTH, EXPERTS, TOP_K, GROUPS, KEPT = 8, 2, 16, 16, 4, 4, 2
SHAPES: dict[str, tuple[int, ...]] = {
    "attention.query_key_value.weight": ((HEADS + 2 * KV_HEADS) * WIDTH, 64),
    "attention.dense.weight": (64, HEADS * WIDTH),
    "attention.query_layernorm.weight": (WIDTH,), "attention.key_layernorm.weight": (WIDTH,),
    "input_layernorm.weight": (64,), "post_attention_layernorm.weight": (64,),
}  # fmt: skip
DENSE: dict[str, tuple[int, ...]] = {
    "mlp.gate_proj.weight": (96, 64), "mlp.up_proj.weight": (96, 64),
    "mlp.down_proj.weight": (64, 96),
}  # fmt: skip
MOE: dict[str, tuple[int, ...]] = {
    "mlp.gate.weight": (EXPERTS, 64), "mlp.gate.expert_bias": (EXPERTS,),
    "mlp.experts.gate_up_proj": (EXPERTS, 48, 64), "mlp.experts.down_proj": (EXPERTS, 64, 24),
    "mlp.shared_experts.gate_proj.weight": (48, 64), "mlp.shared_experts.up_proj.weight": (48, 64),
    "mlp.shared_experts.down_proj.weight": (64, 48),
}  # fmt: skip


def make_weights(*, biases: bool) -> Tensors:
    """Return weights in float64 whose values float32 holds, of three layers, the first dense."""
    shapes = {"model.word_embeddings.weight": (97, 64), "lm_head.weight": (97, 64)}
    shapes |= {"model.norm.weight": (64,)}
    layer = SHAPES | (
        {"attention.query_key_value.bias": (192,), "attention.dense.bias": (64,)} if biases else {}
    )
    for index in range(3):
        own = layer | (MOE if index else DENSE)
        shapes |= {f"model.layers.{index}.{name}": shape for name, shape in own.items()}
    random = torch.Generator().manual_seed(4)
    weights = {}
    for name, shape in shapes.items():
        scale, centre = (shape[-1] ** -0.5, 0.0) if len(shape) > 1 else (0.2, 1.0)
        weights[name] = (centre + scale * torch.randn(shape, generator=random)).double()
    return weights


def normed(vector: Tensor, weight: Tensor) -> Tensor:
    """Return a vector over its root mean square, scaled."""
    return vector / (vector.pow(2).mean() + 1e-6).sqrt() * weight


def rotated(head: Tensor, position: int) -> Tensor:
    """Return a head whose first half is turned: elements i and i + 4 of its 8 are a pair."""
    out = head.clone()
    for i in range(4):
        angle = position * 10000.0 ** (-2 * i / 8)
        out[i] = head[i] * math.cos(angle) - head[i + 4] * math.sin(angle)
        out[i + 4] = head[i + 4] * math.cos(angle) + head[i] * math.sin(angle)
    return out


def gated(vector: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """Return a vector through a gated FFN."""
    inner = gate @ vector
    return down @ (inner / (1 + (-inner).exp()) * (up @ vector))


def experts(vector: Tensor, own: Tensors) -> Tensor:
    """Return a vector through the experts of the two best groups, and the shared one."""
    scores = 1 / (1 + (-(own["mlp.gate.weight"] @ vector)).exp())
    choice = (scores + own["mlp.gate.expert_bias"]).tolist()
    size = EXPERTS // GROUPS
    best = sorted(
        range(GROUPS), key=lambda g: -sum(sorted(choice[g * size : (g + 1) * size])[-2:])
    )[:KEPT]
    allowed = [expert for expert in range(EXPERTS) if expert // size in best]
    chosen = sorted(allowed, key=lambda expert: -choice[expert])[:TOP_K]
    total = sum(float(scores[expert]) for expert in chosen)
    shared = [own[f"mlp.shared_experts.{name}_proj.weight"] for name in ("gate", "up", "down")]
    out = gated(vector, *shared)
    for expert in chosen:
        gate, up = own["mlp.experts.gate_up_proj"][expert].split(24)
        part = gated(vector, gate, up, own["mlp.experts.down_proj"][expert])
        out = out + 2.5 * float(scores[expert]) / total * part
    return out


def attention(inputs: Tensor, own: Tensors, keys: Tensor, values: Tensor, mask: Mask) -> Tensor:
    """Return the attention of a request's N positions, given its cache of L."""
    queries, own_keys, own_values = [], list(keys.unbind(1)), list(values.unbind(1))
    for i, vector in enumerate(inputs):
        states = own["attention.query_key_value.weight"] @ vector
        states = states + own.get("attention.query_key_value.bias", torch.zeros(()))
        heads = states.view(HEADS + 2 * KV_HEADS, WIDTH)
        names = ["query"] * HEADS + ["key"] * KV_HEADS
        rotate = [
            rotated(normed(head, own[f"attention.{name}_layernorm.weight"]), CONTEXT + i)
            for name, head in zip(names, heads, strict=False)
        ]
        queries.append(rotate[:HEADS])
        own_keys.append(torch.stack(rotate[HEADS:]))
        own_values.append(heads[HEADS + KV_HEADS :])
    outputs = []
    for i, by_head in enumerate(queries):
        seen = CONTEXT + (i + 1 if mask == "causal" else len(queries))
        parts = []
        for head, query in enumerate(by_head):
            group = head // (HEADS // KV_HEADS)
            scores = torch.stack([key[group] @ query for key in own_keys[:seen]]) / WIDTH**0.5
            shares = scores.softmax(0)
            parts.append(shares @ torch.stack([value[group] for value in own_values[:seen]]))
        out = own["attention.dense.weight"] @ torch.cat(parts)
        outputs.append(out + own.get("attention.dense.bias", torch.zeros(())))
    return torch.stack(outputs)


def reference(
    weights: Tensors, given: Tensor, keys: list[Tensor], values: list[Tensor], mask: Mask
) -> Tensor:
    """Return the logits of a request's tokens, given its cache by layer, [kv_heads, L, 16]."""
    hidden = weights["model.word_embeddings.weight"][given]
    for index in range(3):
        start = f"model.layers.{index}."
        own = {k.removeprefix(start): v for k, v in weights.items() if k.startswith(start)}
        inputs = torch.stack([normed(row, own["input_layernorm.weight"]) for row in hidden])
        hidden = hidden + attention(inputs, own, keys[index], values[index], mask)
        rows = [normed(row, own["post_attention_layernorm.weight"]) for row in hidden]
        dense = [own.get(f"mlp.{name}_proj.weight") for name in ("gate", "up", "down")]
        out = [experts(row, own) if index else gated(row, *dense) for row in rows]
        hidden = hidden + torch.stack(out)
    last = torch.stack([normed(row, weights["model.norm.weight"]) for row in hidden])
    return last @ weights["lm_head.weight"].t()


@pytest.mark.slow
@pytest.mark.parametrize("mask", ["causal", "block"])
@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("bailing_moe", {}),
        ("bailing_moe_v2", {"use_bias": True, "use_qkv_bias": True}),
        ("llada2_moe", {}),
    ],
)
def test_logits_are_those_of_the_definition(
    tmp_path: Path, kind: str, changes: dict[str, Any], mask: Mask
) -> None:
    """Norms by head, half a head turned, groups of experts by sigmoid and bias, a shared expert."""
    weights = make_weights(biases=bool(changes))
    forward = make_forward(
        tmp_path,
        document(kind, **changes),
        weights=GivenWeights(weights, torch.float32),
        mask=mask,
    )
    for n in POSITIONS:
        expected = [
            reference(
                weights,
                row,
                [keys[request, :, :CONTEXT].double() for keys in forward.keys],
                [values[request, :, :CONTEXT].double() for values in forward.values],
                mask,
            )
            for request, row in enumerate(tokens(n))
        ]
        assert len(expected) == BATCH
        assert error(forward.forward(tokens(n)), torch.stack(expected)) < 1e-5
