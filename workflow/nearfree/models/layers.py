"""The parts of a decoder's layer without experts, and their weights by Hugging Face's names.

They are rotary positions, norms, attention and the Dense FFN.
"""

import math
from collections.abc import MutableMapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from nearfree.backends.adapters.kernel import ExecutionContext
from nearfree.backends.adapters.tensors import filled
from nearfree.decoders.decoder import Decoder
from nearfree.decoders.details import Details, Llama3, Rope
from nearfree.decoders.modules import ATTENTION, BETWEEN, DENSE, OUTPUT, QKV, Laps
from nearfree.models.attention import AttentionRunner

Part = tuple[str, tuple[int, ...]]
"""The name and shape of a weight."""


class Names(NamedTuple):
    """The names in which the families differ."""

    embedding: str = "model.embed_tokens"
    attention: str = "self_attn"
    qkv: tuple[str, ...] = ("q_proj", "k_proj", "v_proj")
    """Query, key and value, or the one weight that holds all three."""
    output: str = "o_proj"
    query_norm: str = "q_norm"
    key_norm: str = "k_norm"
    shared: str = "shared_expert"


_LING = Names(
    "model.word_embeddings",
    "attention",
    ("query_key_value",),
    "dense",
    "query_layernorm",
    "key_layernorm",
    "shared_experts",
)
NAMES = dict.fromkeys(("bailing_moe", "bailing_moe_v2", "llada2_moe"), _LING)
"""By model type; all others have those of `Names()`.
Source: the modules of transformers 5.23, inclusionAI/Ling-V2 and inclusionAI/dFactory."""


class RandomWeights:
    """Normal random weights of variance 1 / in; those of norms are one, biases zero.

    A forward that asks for them in the same order gets the same: the seed is torch's own, set now.
    With `kept`, what was made once is what is given again. Weights of products are [..., out, in].
    The experts of a layer are two weights, `mlp.experts.gate_up_proj` [E, 2 d_ff, d_model] and
    `mlp.experts.down_proj` [E, d_model, d_ff], as transformers 5 holds them.
    """

    def __init__(
        self,
        dtype: torch.dtype,
        device: str = "cpu",
        seed: int = 0,
        kept: MutableMapping[tuple[object, ...], Tensor] | None = None,
        key: tuple[object, ...] = (),
    ) -> None:
        """Set the seed; `key` tells the weights of models and copies apart in `kept`."""
        torch.manual_seed(seed)
        self._dtype, self._execution = dtype, ExecutionContext(device=device)
        self._kept: MutableMapping[tuple[object, ...], Tensor] = {} if kept is None else kept
        self._key = (*key, str(dtype), seed)

    def __call__(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Return the weight of a name and shape."""
        key = (*self._key, name, *shape)
        if key not in self._kept:
            self._kept[key] = self._made(name, shape)
        return self._kept[key]

    def joined(self, parts: Sequence[Part]) -> Tensor:
        """Return weights of one input as one product's, first outputs first."""
        names, shapes = zip(*parts, strict=True)
        return self("+".join(names), (sum(shape[0] for shape in shapes), *shapes[0][1:]))

    def _made(self, name: str, shape: tuple[int, ...]) -> Tensor:
        if len(shape) > 1:
            return filled(self._execution, self._dtype, *shape, scale=shape[-1] ** -0.5)
        value = 1.0 if name.endswith("norm.weight") else 0.0
        return torch.full(shape, value, dtype=self._dtype, device=self._execution.device)


Rotation = tuple[Tensor, Tensor]
"""Cosines and sines, [positions, width] each."""


def frequencies(rope: Rope) -> Tensor:
    """Return the angle that each pair of elements turns by a position, [width / 2], float32."""
    powers = torch.arange(0, rope.width, 2, dtype=torch.int64).float() / rope.width
    plain = 1.0 / rope.theta**powers
    return plain if rope.llama3 is None else _scaled(plain, rope.llama3)


def _scaled(plain: Tensor, scaling: Llama3) -> Tensor:
    """Return Llama 3's frequencies: divided where slow, kept where fast, mixed between."""
    turns = scaling.original_positions * plain / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return plain * (kept + (1.0 - kept) / scaling.factor)


def rotation(rope: Rope, first: int, count: int, dtype: torch.dtype, device: str) -> Rotation:
    """Return cosines and sines of `count` positions from `first` on, in a model's dtype."""
    positions = torch.arange(first, first + count, dtype=torch.float32)
    angles = torch.outer(positions, frequencies(rope)).repeat(1, 2)
    return angles.cos().to(device, dtype), angles.sin().to(device, dtype)


def rotate(states: Tensor, by: Rotation) -> Tensor:
    """Return states [b, heads, N, head_dim] turned in their first `width` elements.

    Element i and the one half a width later are a pair.
    """
    cosines, sines = by
    width = cosines.shape[-1]
    part, rest = states[..., :width], states[..., width:]
    first, second = part.chunk(2, -1)
    out = part * cosines + torch.cat((-second, first), -1) * sines
    return out if width == states.shape[-1] else torch.cat((out, rest), -1)


class Norm:
    """RMS norm over the last dimension."""

    def __init__(self, weights: RandomWeights, name: str, width: int, eps: float) -> None:
        self._weight, self._eps = weights(f"{name}.weight", (width,)), eps

    def forward(self, states: Tensor) -> Tensor:
        """Return states of the same shape."""
        return functional.rms_norm(states, self._weight.shape, self._weight, self._eps)


class Attention:
    """Grouped-query attention of N new positions, whose keys and values are put into the cache.

    `keys` and `values` are the layer's cache, [b, kv_heads, L + most or more, head_dim].
    """

    def __init__(
        self, decoder: Decoder, details: Details, weights: RandomWeights, names: Names, prefix: str
    ) -> None:
        d_model, width = decoder.d_model, decoder.head_dim
        at = f"{prefix}.{names.attention}"
        self._heads = (decoder.heads, decoder.kv_heads, decoder.kv_heads)
        counts = self._heads if len(names.qkv) > 1 else (sum(self._heads),)
        outs = [(f"{at}.{n}", count * width) for n, count in zip(names.qkv, counts, strict=True)]
        self._qkv = weights.joined([(f"{name}.weight", (out, d_model)) for name, out in outs])
        self._qkv_bias = (
            weights.joined([(f"{name}.bias", (out,)) for name, out in outs])
            if details.qkv_bias
            else None
        )
        output = f"{at}.{names.output}"
        self._output = weights(f"{output}.weight", (d_model, decoder.heads * width))
        self._output_bias = weights(f"{output}.bias", (d_model,)) if details.output_bias else None
        norms = (names.query_norm, names.key_norm) if details.qk_norm else ()
        self._norms = [Norm(weights, f"{at}.{name}", width, details.norm_eps) for name in norms]

    def forward(
        self,
        hidden: Tensor,
        by: Rotation,
        runner: AttentionRunner,
        cache: tuple[Tensor, Tensor],
        laps: Laps,
    ) -> Tensor:
        """Return [b, N, d_model], given as much, with the layer's keys and values."""
        keys, values = cache
        states = functional.linear(hidden, self._qkv, self._qkv_bias)
        laps.lap(QKV)
        states = states.unflatten(-1, (sum(self._heads), -1)).transpose(1, 2)
        queries, new_keys, new_values = states.split(self._heads, 1)
        if self._norms:
            queries, new_keys = self._norms[0].forward(queries), self._norms[1].forward(new_keys)
        context = runner.attention_mask.context
        new = slice(context, context + hidden.shape[1])
        keys[:, :, new] = rotate(new_keys, by)
        values[:, :, new] = new_values
        queries = rotate(queries, by)
        laps.lap(BETWEEN)
        out = runner.attend(queries, keys, values)
        laps.lap(ATTENTION)
        out = functional.linear(out.flatten(2), self._output, self._output_bias)
        laps.lap(OUTPUT)
        return out


class DenseFfn:
    """A gated FFN with SiLU; gate and up are one product. `role` is what its laps are called."""

    def __init__(
        self, weights: RandomWeights, prefix: str, d_model: int, d_ff: int, role: str = DENSE
    ) -> None:
        self._role = role
        self._gate_up = weights.joined(
            [(f"{prefix}.{name}_proj.weight", (d_ff, d_model)) for name in ("gate", "up")]
        )
        self._down = weights(f"{prefix}.down_proj.weight", (d_model, d_ff))

    def forward(self, rows: Tensor, laps: Laps) -> Tensor:
        """Return rows of d_model, given as many."""
        gate, up = functional.linear(rows, self._gate_up).chunk(2, -1)
        out = functional.linear(functional.silu(gate) * up, self._down)
        laps.lap(self._role)
        return out
