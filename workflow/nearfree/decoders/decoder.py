"""The shape of a decoder, and rules that read its FFNs and its attention window from a file."""

from collections.abc import Sequence
from typing import Annotated, NamedTuple

from msgspec import UNSET, Meta, Struct, UnsetType, structs

from nearfree.core.precision import Dtype
from nearfree.core.protocols import Positive
from nearfree.decoders.altup import AltUp
from nearfree.decoders.attention_kinds import Compressed, Grouped, Kind, in_blocks
from nearfree.decoders.keys import Keys
from nearfree.decoders.state_kinds import Matrices, State

Count = Annotated[int, Meta(ge=0)]


class Experts(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The routed experts of a layer, and its shared experts, which every token passes.

    `d_ff` is the width of one routed expert; `shared_d_ff` is that of all shared experts together,
    0 if there are none. With `latent` the rows that routed experts take and return are that wide,
    and two products project into that width and back (Nemotron 3 Super). With `idle` experts, which
    do nothing, the router has as many outputs more (LongCat-Flash); `top_k` counts the others.
    Widths are in elements.
    """

    experts: Positive
    top_k: Positive
    d_ff: Positive
    shared_d_ff: Count = 0
    latent: Positive | UnsetType = UNSET
    idle: Count | UnsetType = UNSET


class States(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The hidden states of the target model that a drafter's head reads, of `layers` layers.

    Each state is `width` elements per token. One product projects them to the head's width. With
    states of one layer, that product also takes the token's embedding and runs at each draft step.
    With states of several layers it runs once per draft, and at each step the head's layer takes
    embedding and state side by side.
    """

    width: Positive
    layers: Positive

    @property
    def once(self) -> bool:
        """Whether the product of states runs once per draft, not at each draft step."""
        return self.layers > 1


class Decoder(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A decoder with `layers` layers of attention, each followed by one FFN.

    `moe_layers` of the layers have `experts` as their FFN; all others have a Dense FFN of width
    `d_ff` (None if no layer has one). With `beside`, layers with experts have a Dense FFN as well.
    Where each layer is only attention, only a state mixer or only an FFN (Nemotron-H), or is
    several of them (LongCat-Flash), `ffn_layers` counts the Dense FFNs. Where Dense FFNs differ,
    `ffn_widths` holds each width with its number of layers (Llama-Nemotron). FFNs and experts have
    a gate, hence three matrices, unless `gated` is false. `window` is the number of positions that
    attention sees at most in every layer, None for all. Each layer may have its own input for every
    token, `layer_inputs` wide (Gemma 4). A drafter's head reads `states` of its target model. The
    residual consists of `streams` states where layers mix several of them (DeepSeek V4's hyper
    connections), of those of `altup` (Gemma 3n), or else of one. With a `residual_block`, layers
    attend to the output of each earlier block of that many layers (Kimi K3). With `sees_images`,
    all positions of an image attend to each other (Gemma 3). Widths are in elements.

    Where layers differ or need more fields, `kinds` describes their attention by kind. `heads`,
    `kv_heads`, `head_dim` and `window` are then those of the first kind with a cache; a latent
    counts as one head as wide as its cache entry. A layer may be of two kinds, which run side by
    side (Falcon-H1), or occur twice in one, whose attention it then runs twice (LongCat-Flash).
    """

    name: str
    model_type: str
    dtype: Dtype
    d_model: Positive
    layers: Positive
    vocabulary: Positive
    heads: Positive
    kv_heads: Positive
    head_dim: Positive
    d_ff: Positive | None = None
    moe_layers: Count = 0
    experts: Experts | None = None
    window: Positive | None = None
    beside: bool | UnsetType = UNSET
    ffn_layers: Count | UnsetType = UNSET
    ffn_widths: tuple[tuple[Positive, Positive], ...] | UnsetType = UNSET
    gated: bool | UnsetType = UNSET
    layer_inputs: Positive | UnsetType = UNSET
    states: States | UnsetType = UNSET
    streams: Positive | UnsetType = UNSET
    altup: AltUp | UnsetType = UNSET
    residual_block: Positive | UnsetType = UNSET
    sees_images: bool | UnsetType = UNSET
    kinds: tuple[Kind, ...] | UnsetType = UNSET

    @property
    def attention(self) -> tuple[Kind, ...]:
        """The kinds of attention of its layers; in most models each layer is of one kind."""
        if self.kinds is not UNSET:
            return self.kinds
        return (
            Grouped(
                layers=tuple(range(self.layers)),
                heads=self.heads,
                kv_heads=self.kv_heads,
                head_dim=self.head_dim,
                window=self.window,
            ),
        )

    @property
    def in_blocks(self) -> bool:
        """Whether layers attend to blocks that an indexer selects."""
        return any(in_blocks(kind) for kind in self.attention)

    @property
    def in_one(self) -> bool:
        """Whether each attention layer is one module, which includes all of its products."""
        return self.in_blocks or any(isinstance(kind, Compressed) for kind in self.attention)

    @property
    def entering(self) -> int:
        """Width of the rows from which query, key and value are projected."""
        takes_embedding = self.states is not UNSET and self.states.once
        return 2 * self.d_model if takes_embedding else self.d_model

    @property
    def dense_layers(self) -> int:
        """Number of layers with a Dense FFN."""
        if self.ffn_layers is not UNSET:
            return self.ffn_layers
        return self.layers if self.beside is True else self.layers - self.moe_layers

    @property
    def dense_ffns(self) -> tuple[tuple[int, int], ...]:
        """Widths of its Dense FFNs, each with its number of layers."""
        if self.ffn_widths is not UNSET:
            return self.ffn_widths
        return ((self.d_ff, self.dense_layers),) if self.d_ff and self.dense_layers else ()

    @property
    def pairs(self) -> float:
        """Number of layers, counted as two pieces each: attention (or a state mixer) and an FFN."""
        if self.ffn_layers is UNSET:
            return self.layers
        attentions = sum(len(kind.layers) for kind in self.attention)
        return (attentions + self.ffn_layers + self.moe_layers) / 2


def with_state_dtype(decoder: Decoder, dtype: Dtype | None) -> Decoder:
    """Return the decoder with a dtype for states whose dtype its file does not say."""
    if decoder.kinds is UNSET or dtype is None:
        return decoder
    kinds = tuple(
        structs.replace(kind, state=kind.state or dtype) if isinstance(kind, Matrices) else kind
        for kind in decoder.kinds
    )
    return structs.replace(decoder, kinds=kinds)


def main_kind(kinds: Sequence[Kind]) -> Kind:
    """Return the kind whose sizes a `Decoder` reports: the first with a cache, else the first."""
    return next((kind for kind in kinds if not isinstance(kind, State)), kinds[0])


def head_sizes(kind: Kind) -> dict[str, int | None]:
    """Return the fields `heads`, `kv_heads`, `head_dim` and `window` of a `Decoder` for a kind."""
    if isinstance(kind, Grouped):
        return {name: getattr(kind, name) for name in ("heads", "kv_heads", "head_dim", "window")}
    if isinstance(kind, State):
        kv_heads, head_dim = kind.reported
    else:
        kv_heads, head_dim = 1, kind.width if isinstance(kind, Compressed) else kind.cached
    return {"heads": kind.heads, "kv_heads": kv_heads, "head_dim": head_dim, "window": None}


class Ffn(NamedTuple):
    """The FFNs of a model: the width of the Dense FFN, and the layers with experts.

    `d_ff` is None if no layer has a Dense FFN. `moe_at` counts layers from 0. With `beside`, layers
    with experts also have the Dense FFN. `dense` is the number of layers with a Dense FFN where
    that is not all others. Without `gated` no FFN has a gate. Where Dense FFNs differ, `widths`
    holds each width with its number of layers, and `d_ff` is the widest.
    """

    d_ff: int | None
    moe_at: Sequence[int] = ()
    experts: Experts | None = None
    beside: bool = False
    dense: int | None = None
    gated: bool = True
    widths: tuple[tuple[int, int], ...] = ()


def dense(keys: Keys, layers: int) -> Ffn:  # noqa: ARG001 (one signature for all)
    """Return the FFN of models without experts."""
    return Ffn(keys.whole("intermediate_size"))


def ungated(keys: Keys, layers: int) -> Ffn:  # noqa: ARG001
    """Return the FFN of models without experts, whose FFNs have two matrices and no gate."""
    return Ffn(keys.whole("intermediate_size"), gated=False)


def all_experts(keys: Keys, layers: int) -> Ffn:
    """Return the FFN of models with experts in every layer, such as Mixtral and OLMoE."""
    count = keys.one_of("num_local_experts", "num_experts")
    return Ffn(None, range(layers), routed_experts(keys, count, width="intermediate_size"))


SHARING = ("qwen2_moe", "qwen3_next", "qwen3_5_moe_text")
"""Qwen's model types with shared experts."""


def qwen_moe(keys: Keys, layers: int) -> Ffn:
    """Return the FFN of Qwen's MoE models: every `decoder_sparse_step`-th layer has experts.

    Layers in `mlp_only_layers` have none. The shared experts are one FFN, whose width the file
    gives; Qwen3 has none.
    Source: Qwen2MoeDecoderLayer, Qwen3MoeDecoderLayer, Qwen3NextDecoderLayer and
    Qwen3_5MoeDecoderLayer of transformers 5.23.
    """
    step = keys.whole("decoder_sparse_step")
    moe_at: Sequence[int] = range(step - 1, layers, step)
    dense_layers = set(keys.list_of("mlp_only_layers", int))
    if dense_layers:
        moe_at = [layer for layer in moe_at if layer not in dense_layers]
    has_shared = keys.text("model_type") in SHARING
    shared_d_ff = keys.whole("shared_expert_intermediate_size", least=0) if has_shared else 0
    count = keys.one_of("num_experts", "num_local_experts")
    return partly_moe(keys, layers, moe_at, routed_experts(keys, count, shared_d_ff=shared_d_ff))


def first_dense(keys: Keys, layers: int) -> Ffn:
    """Return the FFN of models of which only the first layers are dense: Ling, LLaDA2, GLM-4.5.

    The shared experts are one FFN, as wide as all of them together.
    Source: BailingMoeV2SparseMoeBlock of inclusionAI/Ling-V2, LLaDA2MoeSparseMoeBlock of
    inclusionAI/dFactory, Glm4MoeMoE of transformers 5.23.
    """
    count = keys.one_of("num_experts", "n_routed_experts")
    shared_key = keys.one_of("num_shared_experts", "n_shared_experts")
    shared_experts = keys.whole(shared_key, least=0)
    shared_d_ff = shared_experts * keys.whole("moe_intermediate_size")
    key = "moe_shared_expert_intermediate_size"
    if keys.has(key) and shared_experts and keys.whole(key) * shared_experts != shared_d_ff:
        raise keys.wrong(key, "differs from moe_intermediate_size, and engines disagree on it")
    moe_at = range(keys.whole("first_k_dense_replace", least=0), layers)
    return partly_moe(keys, layers, moe_at, routed_experts(keys, count, shared_d_ff=shared_d_ff))


def ernie_moe(keys: Keys, layers: int) -> Ffn:
    """Return the FFN of ERNIE 4.5: every `moe_layer_interval`-th layer of a range has experts.

    Source: Ernie4_5_MoeDecoderLayer of transformers 5.23.
    """
    interval = keys.whole("moe_layer_interval")
    start = keys.whole("moe_layer_start_index", least=0)
    end = keys.whole("moe_layer_end_index", least=-1)
    end = layers - 1 if end == -1 else min(end, layers - 1)
    moe_at = range(start // interval * interval + interval - 1, end + 1, interval)
    shared_d_ff = keys.whole("moe_num_shared_experts", least=0) * keys.whole(
        "moe_intermediate_size"
    )
    experts = routed_experts(keys, "moe_num_experts", top_k="moe_k", shared_d_ff=shared_d_ff)
    return partly_moe(keys, layers, moe_at, experts)


def hunyuan_moe(keys: Keys, layers: int) -> Ffn:
    """Return the FFN of Hunyuan's MoE models: routed and shared experts of one width in each layer.

    Source: HunYuanMoEV1Moe of transformers 5.23; vllm 0.33.0,
    vllm/model_executor/models/hunyuan_v1.py, has shared experts only with `use_mixed_mlp_moe`.
    """
    width, key = keys.whole("intermediate_size"), "use_mixed_mlp_moe"
    if keys.whole("moe_intermediate_size", default=width) != width:
        raise keys.wrong("moe_intermediate_size", f"differs from intermediate_size {width}")
    if keys.has(key) and keys.empty(key):
        raise keys.wrong(key, "leaves out shared experts in some engines alone")
    shared_d_ff = width * keys.whole("num_shared_expert", least=0, default=1)
    experts = routed_experts(
        keys, "num_experts", width="intermediate_size", shared_d_ff=shared_d_ff
    )
    return Ffn(None, range(layers), experts)


def partly_moe(
    keys: Keys,
    layers: int,
    moe_at: Sequence[int],
    experts: Experts,
    width: str = "intermediate_size",
) -> Ffn:
    """Return the FFNs where layers in `moe_at` have experts and the others a Dense FFN."""
    d_ff = keys.whole(width) if len(moe_at) < layers else None
    return Ffn(d_ff, moe_at, experts if moe_at else None)


def routed_experts(
    keys: Keys,
    count: str,
    *,
    top_k: str = "num_experts_per_tok",
    width: str = "moe_intermediate_size",
    shared_d_ff: int = 0,
) -> Experts:
    """Return the experts whose number, top k and width stand under the given keys."""
    expert_count, expert_top_k, d_ff = keys.wholes(count, top_k, width)
    experts = Experts(experts=expert_count, top_k=expert_top_k, d_ff=d_ff, shared_d_ff=shared_d_ff)
    if experts.top_k > experts.experts:
        raise keys.wrong(top_k, f"is larger than {count} {experts.experts}")
    return experts


def head_width(keys: Keys) -> int:
    """Return `head_dim`, or without it the hidden size divided by the number of heads."""
    if keys.has("head_dim"):
        return keys.whole("head_dim")
    d_model, heads = keys.whole("hidden_size"), keys.whole("num_attention_heads")
    if d_model % heads:
        raise keys.wrong(
            "hidden_size", f"is no multiple of num_attention_heads {heads}", "Add head_dim"
        )
    return d_model // heads


_MIXED = "Give a model whose layers all have the same attention"


def unwindowed(keys: Keys, layers: int) -> int | None:  # noqa: ARG001 (one signature for all)
    """Return None, for models that attend to all positions and whose files give no window."""
    if keys.has("sliding_window"):
        raise keys.wrong("sliding_window", "is no key of this model type", "Leave it out")
    return None


def windowed(keys: Keys, layers: int) -> int | None:  # noqa: ARG001
    """Return `sliding_window`, for models where it applies whenever it is given.

    A file must say null to have no window: without the key, Mistral's class has one of 4096.
    Source: MistralConfig of transformers 5.23.
    """
    return keys.whole_or_null("sliding_window")


def switched_off(keys: Keys, layers: int) -> int | None:  # noqa: ARG001
    """Return None, for models whose window must be switched off: it is not read for them."""
    if keys.flag("use_sliding_window"):
        raise keys.wrong("use_sliding_window", "is not understood for this model type", _MIXED)
    return None


def switched(keys: Keys, layers: int) -> int | None:
    """Return the window of models in which layers from `max_window_layers` on have one.

    Source: Qwen2Config and Qwen3Config of transformers 5.23.
    """
    if not keys.flag("use_sliding_window"):
        return None
    first_windowed = keys.whole("max_window_layers", least=0)
    if 0 < first_windowed < layers:
        raise keys.wrong(
            "max_window_layers", f"leaves a window to only some of {layers} layers", _MIXED
        )
    return None if first_windowed else keys.whole("sliding_window")


def check_layer_types(keys: Keys, window: int | None) -> None:
    """Raise ConfigError unless `layer_types`, if present, gives every layer the expected kind."""
    kind = "sliding_attention" if window else "full_attention"
    kinds = keys.list_of("layer_types", str)
    if not kinds:
        return
    layers = keys.whole("num_hidden_layers")
    if len(kinds) != layers:
        raise keys.wrong("layer_types", f"has {len(kinds)} entries for {layers} layers")
    others = sorted(set(kinds) - {kind})
    if others:
        raise keys.wrong("layer_types", f"has {others[0]!r:.40} where {kind} is read", _MIXED)
