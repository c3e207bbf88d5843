"""The parts of a decoder's layer without experts, and their weights by Hugging Face's names.

They are norms, grouped-query attention and the Dense FFN.
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
from nearfree.decoders.ranks.modules import ATTENTION, BETWEEN, DENSE, OUTPUT, QKV, Laps
from nearfree.models.attention import AttentionRunner, Sdpa
from nearfree.models.rotation import Rotation, rotate

Part = tuple[str, tuple[int, ...]]
"""The name and shape of a weight."""


class Names(NamedTuple):
    """The names of modules in which the families differ."""

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
    """The bias that is added to scores to choose experts."""
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
"""By model type; all others have the names of `Names()`.
Source: the modules of transformers 5.23, inclusionAI/Ling-V2 and inclusionAI/dFactory."""


_FACTORS = re.compile(r"norm(_\d)?\.weight$|scal(e|ar)$")


class RandomWeights:
    """Normal random weights of variance 1 / in; factors, such as those of norms, are 1, biases 0.

    The constructor sets torch's seed, so the same sequence of calls gives the same weights. With
    `kept` a weight is made once and then returned again. Weights of products are [..., out, in].
    The experts of a layer are two weights, `mlp.experts.gate_up_proj` [E, 2 d_ff, d_model] and
    `mlp.experts.down_proj` [E, d_model, d_ff], as in transformers 5.
    """

    def __init__(
        self,
        dtype: torch.dtype,
        device: str = "cpu",
        seed: int = 0,
        kept: MutableMapping[tuple[object, ...], Tensor] | None = None,
        key: tuple[object, ...] = (),
    ) -> None:
        """Set the seed; `key` distinguishes the weights of models and copies in `kept`."""
        torch.manual_seed(seed)
        self._dtype, self._execution = dtype, ExecutionContext(device=device)
        self._kept: MutableMapping[tuple[object, ...], Tensor] = {} if kept is None else kept
        self._key = (*key, str(dtype), seed)

    def __call__(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Return the weight of a name and shape."""
        key = (*self._key, name, *shape)
        if key not in self._kept:
            self._kept[key] = self._make(name, shape)
        return self._kept[key]

    def joined(self, parts: Sequence[Part]) -> Tensor:
        """Return weights with the same input, concatenated along their outputs."""
        names, shapes = zip(*parts, strict=True)
        return self("+".join(names), (sum(shape[0] for shape in shapes), *shapes[0][1:]))

    def _make(self, name: str, shape: tuple[int, ...]) -> Tensor:
        if len(shape) > 1:
            return filled(self._execution, self._dtype, *shape, scale=shape[-1] ** -0.5)
        value = 1.0 if _FACTORS.search(name) else 0.0
        return torch.full(shape, value, dtype=self._dtype, device=self._execution.device)


class Norm:
    """RMS norm over the last dimension; with `from_one` the factor is one plus the weight."""

    def __init__(
        self, weights: RandomWeights, name: str, width: int, eps: float, *, from_one: bool = False
    ) -> None:
        weight = weights(f"{name}.weight", (width,))
        self._weight, self._eps = (weight + 1.0 if from_one else weight), eps

    def forward(self, states: Tensor) -> Tensor:
        """Return states of the same shape."""
        return functional.rms_norm(states, self._weight.shape, self._weight, self._eps)


def rms_divided(states: Tensor, eps: float) -> Tensor:
    """Return states divided by the root mean square of their last dimension."""
    return functional.rms_norm(states, states.shape[-1:], None, eps)


class Cache(NamedTuple):
    """A layer's keys and values, [b, kv_heads, L + max_positions or more, head_dim] each.

    A latent is one head, whose first elements are the values. `index_keys` are those of an indexer,
    [b, L + max_positions, index_dim].
    """

    keys: Tensor
    values: Tensor
    index_keys: Tensor | None = None


class AttentionInputs(NamedTuple):
    """What the attention of layers of one kind needs for N new positions.

    That is the runner, the roles of its modules, the rotations of heads and of an indexer, and
    `query_scales`, the factors on queries: [N, 1], a number, or None.
    """

    runner: AttentionRunner
    roles: Mapping[str, str]
    rotation: Rotation | None = None
    index_rotation: Rotation | None = None
    query_scales: Tensor | float | None = None

    def truncated(self, n: int) -> "AttentionInputs":
        """Return the inputs of the first N positions."""
        scales = (
            self.query_scales[:n] if isinstance(self.query_scales, Tensor) else self.query_scales
        )
        rotation = self.rotation and self.rotation.truncated(n)
        index_rotation = self.index_rotation and self.index_rotation.truncated(n)
        return AttentionInputs(self.runner, self.roles, rotation, index_rotation, scales)

    def lap(self, laps: Laps, role: str) -> None:
        """Report that a module of attention has run, under the role of this kind of layers."""
        laps.lap(self.roles.get(role, role))

    def new(self, n: int) -> slice:
        """Return the slice of N new positions in a cache."""
        context = self.runner.attention_mask.context
        return slice(context, context + n)


class Attention:
    """Grouped-query attention of N new positions, whose keys and values are written into the cache.

    A layer that shares makes neither: its cache is another layer's, which has written them.
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
        module = f"{prefix}.{names.attention}"
        products = 1 if kind.shares else 2 if kind.keys_are_values else 3
        qkv = names.qkv[:products]
        self._heads = [kind.heads, kind.kv_heads, kind.kv_heads][:products]
        counts = self._heads if len(qkv) > 1 else [sum(self._heads)]
        projections = [
            (f"{module}.{n}", count * width) for n, count in zip(qkv, counts, strict=True)
        ]
        self._qkv = weights.joined(
            [(f"{name}.weight", (out, d_model)) for name, out in projections]
        )
        self._qkv_bias = (
            weights.joined([(f"{name}.bias", (out,)) for name, out in projections])
            if details.qkv_bias
            else None
        )
        output = f"{module}.{names.output}"
        self._output = weights(f"{output}.weight", (d_model, kind.heads * width))
        self._output_bias = weights(f"{output}.bias", (d_model,)) if details.output_bias else None
        from_one = bool(details.form and details.form.norms_from_one)
        self._norms = [
            Norm(weights, f"{module}.{name}", width, details.norm_eps, from_one=from_one)
            for name in ((names.query_norm, names.key_norm) if details.qk_norm else ())[:products]
        ]
        self._sinks = weights(f"{module}.sinks", (kind.heads,)) if kind.sinks else None

    def forward(self, hidden: Tensor, inputs: AttentionInputs, cache: Cache, laps: Laps) -> Tensor:
        """Return the attention output, [b, N, d_model], given states of the same shape."""
        states = functional.linear(hidden, self._qkv, self._qkv_bias)
        inputs.lap(laps, QKV)
        states = states.unflatten(-1, (sum(self._heads), -1)).transpose(1, 2)
        queries, *keys_values = states.split(self._heads, 1)
        queries = self._positioned(queries, 0, inputs)
        if inputs.query_scales is not None:
            queries = queries * inputs.query_scales
        if keys_values:
            values = (
                rms_divided(keys_values[-1], self._eps)
                if self._form.value_norm
                else keys_values[-1]
            )
            new = inputs.new(hidden.shape[1])
            cache.keys[:, :, new] = self._positioned(keys_values[0], 1, inputs)
            cache.values[:, :, new] = values
        laps.lap(BETWEEN)
        out = self._attend(inputs.runner, queries, cache)
        inputs.lap(laps, ATTENTION)
        out = functional.linear(out.flatten(2), self._output, self._output_bias)
        inputs.lap(laps, OUTPUT)
        return out

    def _positioned(self, states: Tensor, norm_index: int, inputs: AttentionInputs) -> Tensor:
        """Return queries or keys, normalised by their own norm and rotated."""
        states = rotate(
            self._norms[norm_index].forward(states) if self._norms else states, inputs.rotation
        )
        return rms_divided(states, self._eps) if self._form.unit_norm else states

    def _attend(self, runner: AttentionRunner, queries: Tensor, cache: Cache) -> Tensor:
        if self._sinks is not None and isinstance(runner, Sdpa):
            return runner.attend(queries, cache.keys, cache.values, self._sinks)
        return runner.attend(queries, cache.keys, cache.values)


class DenseFfn:
    """A gated FFN; gate and up are one product. `role` is the role in its laps."""

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
        """Return rows of d_model, given rows of the same shape."""
        inner = self._gate(functional.linear(rows, self._gate_up))
        out = functional.linear(inner, self._down)
        laps.lap(self._role)
        return out
