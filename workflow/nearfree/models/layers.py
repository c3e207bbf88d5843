"""The parts of a decoder's layer without experts, and their weights by Hugging Face's names.

They are norms, attention with grouped queries and the Dense FFN.
"""

import re
from collections.abc import Mapping, MutableMapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from nearfree.backends.adapters.gates import Gate, silu
from nearfree.backends.adapters.kernel import ExecutionContext
from nearfree.backends.adapters.tensors import filled
from nearfree.decoders.attention_kinds import Grouped
from nearfree.decoders.details import Details
from nearfree.decoders.forms import AttentionForm
from nearfree.decoders.modules import ATTENTION, BETWEEN, DENSE, OUTPUT, QKV, Laps
from nearfree.models.attention import AttentionRunner, Sdpa
from nearfree.models.rotation import Rotation, rotate

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
    feed: str = "mlp"
    router: str = "gate"
    expert_bias: str = "gate.expert_bias"
    """What is added to scores when experts are chosen."""
    shared: str = "shared_expert"


_LING = Names(
    embedding="model.word_embeddings",
    attention="attention",
    qkv=("query_key_value",),
    output="dense",
    query_norm="query_layernorm",
    key_norm="key_layernorm",
    shared="shared_experts",
)
_DEEPSEEK = Names(expert_bias="gate.e_score_correction_bias", shared="shared_experts")
NAMES = {
    **dict.fromkeys(("bailing_moe", "bailing_moe_v2", "llada2_moe"), _LING),
    **dict.fromkeys(
        (
            "deepseek_v2", "deepseek_v3", "deepseek_v32", "glm4_moe_lite", "glm_moe_dsa",
            "kimi_k2", "mistral4",
        ),
        _DEEPSEEK,
    ),
    "gpt_oss": Names(router="router"),
    "llama4_text": Names(feed="feed_forward", router="router"),
}  # fmt: skip
"""By model type; all others have those of `Names()`.
Source: the modules of transformers 5.23, inclusionAI/Ling-V2 and inclusionAI/dFactory."""


_FACTORS = re.compile(r"norm(_\d)?\.weight$|scal(e|ar)$")


class RandomWeights:
    """Normal random weights of variance 1 / in; factors, such as those of norms, are one, biases 0.

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
        value = 1.0 if _FACTORS.search(name) else 0.0
        return torch.full(shape, value, dtype=self._dtype, device=self._execution.device)


class Norm:
    """RMS norm over the last dimension, by its weight, or by one more than that."""

    def __init__(
        self, weights: RandomWeights, name: str, width: int, eps: float, *, from_one: bool = False
    ) -> None:
        weight = weights(f"{name}.weight", (width,))
        self._weight, self._eps = (weight + 1.0 if from_one else weight), eps

    def forward(self, states: Tensor) -> Tensor:
        """Return states of the same shape."""
        return functional.rms_norm(states, self._weight.shape, self._weight, self._eps)


def divided(states: Tensor, eps: float) -> Tensor:
    """Return states over the root mean square of their last dimension."""
    return functional.rms_norm(states, states.shape[-1:], None, eps)


class Cache(NamedTuple):
    """A layer's cache, [b, kv_heads, L + most or more, head_dim] each.

    A latent is one head, of which the values are the first elements. `index_keys` are those of
    an indexer, [b, L + most, index_dim].
    """

    keys: Tensor
    values: Tensor
    index_keys: Tensor | None = None


class Places(NamedTuple):
    """What layers of one kind are told of N new positions.

    How they attend, what their modules are called, the rotations of heads and of an indexer, and
    what queries are multiplied by, [N, 1] or a number, None for nothing.
    """

    runner: AttentionRunner
    roles: Mapping[str, str]
    rotation: Rotation | None = None
    index_rotation: Rotation | None = None
    weights: Tensor | float | None = None

    def upto(self, n: int) -> "Places":
        """Return what is told of the first N of them."""
        weights = self.weights[:n] if isinstance(self.weights, Tensor) else self.weights
        rotation, index = (each and each.upto(n) for each in (self.rotation, self.index_rotation))
        return Places(self.runner, self.roles, rotation, index, weights)

    def lap(self, laps: Laps, role: str) -> None:
        """Tell of a module of attention that has run, by the name that this kind's has."""
        laps.lap(self.roles.get(role, role))

    def new(self, n: int) -> slice:
        """Return where N new positions lie in a cache."""
        context = self.runner.attention_mask.context
        return slice(context, context + n)


class Attention:
    """Grouped-query attention of N new positions, whose keys and values are put into the cache.

    A layer that shares makes neither: its cache is another layer's, which has put them there.
    """

    def __init__(
        self,
        kind: Grouped,
        d_model: int,
        weights: RandomWeights,
        prefix: str,
        *,
        form: AttentionForm,
        details: Details,
        names: Names,
    ) -> None:
        self._form, self._eps, width = form, details.norm_eps, kind.head_dim
        at = f"{prefix}.{names.attention}"
        products = 1 if kind.shares else 2 if kind.keys_are_values else 3
        qkv = names.qkv[:products]
        self._heads = [kind.heads, kind.kv_heads, kind.kv_heads][:products]
        counts = self._heads if len(qkv) > 1 else [sum(self._heads)]
        outs = [(f"{at}.{n}", count * width) for n, count in zip(qkv, counts, strict=True)]
        self._qkv = weights.joined([(f"{name}.weight", (out, d_model)) for name, out in outs])
        self._qkv_bias = (
            weights.joined([(f"{name}.bias", (out,)) for name, out in outs])
            if details.qkv_bias
            else None
        )
        output = f"{at}.{names.output}"
        self._output = weights(f"{output}.weight", (d_model, kind.heads * width))
        self._output_bias = weights(f"{output}.bias", (d_model,)) if details.output_bias else None
        from_one = bool(details.form and details.form.norms_from_one)
        self._norms = [
            Norm(weights, f"{at}.{name}", width, details.norm_eps, from_one=from_one)
            for name in ((names.query_norm, names.key_norm) if details.qk_norm else ())[:products]
        ]
        self._sinks = weights(f"{at}.sinks", (kind.heads,)) if kind.sinks else None

    def forward(self, hidden: Tensor, places: Places, cache: Cache, laps: Laps) -> Tensor:
        """Return [b, N, d_model], given as much, with the layer's keys and values."""
        states = functional.linear(hidden, self._qkv, self._qkv_bias)
        places.lap(laps, QKV)
        states = states.unflatten(-1, (sum(self._heads), -1)).transpose(1, 2)
        queries, *stored = states.split(self._heads, 1)
        queries = self._placed(queries, 0, places)
        if places.weights is not None:
            queries = queries * places.weights
        if stored:
            values = divided(stored[-1], self._eps) if self._form.value_norm else stored[-1]
            new = places.new(hidden.shape[1])
            cache.keys[:, :, new] = self._placed(stored[0], 1, places)
            cache.values[:, :, new] = values
        laps.lap(BETWEEN)
        out = self._attend(places.runner, queries, cache)
        places.lap(laps, ATTENTION)
        out = functional.linear(out.flatten(2), self._output, self._output_bias)
        places.lap(laps, OUTPUT)
        return out

    def _placed(self, states: Tensor, norm: int, places: Places) -> Tensor:
        """Return queries or keys normalised, by their own norm, and turned."""
        states = rotate(
            self._norms[norm].forward(states) if self._norms else states, places.rotation
        )
        return divided(states, self._eps) if self._form.unit_norm else states

    def _attend(self, runner: AttentionRunner, queries: Tensor, cache: Cache) -> Tensor:
        if self._sinks is not None and isinstance(runner, Sdpa):
            return runner.attend(queries, cache.keys, cache.values, self._sinks)
        return runner.attend(queries, cache.keys, cache.values)


class DenseFfn:
    """A gated FFN; gate and up are one product. `role` is what its laps are called."""

    def __init__(
        self,
        weights: RandomWeights,
        prefix: str,
        d_model: int,
        d_ff: int,
        *,
        role: str = DENSE,
        gate: Gate = silu,
    ) -> None:
        self._role, self._gate = role, gate
        self._gate_up = weights.joined(
            [(f"{prefix}.{name}_proj.weight", (d_ff, d_model)) for name in ("gate", "up")]
        )
        self._down = weights(f"{prefix}.down_proj.weight", (d_model, d_ff))

    def forward(self, rows: Tensor, laps: Laps) -> Tensor:
        """Return rows of d_model, given as many."""
        inner = self._gate(functional.linear(rows, self._gate_up))
        out = functional.linear(inner, self._down)
        laps.lap(self._role)
        return out
