"""The shape of a decoder, and how a config.json says its FFNs and its attention's window."""

from collections.abc import Sequence
from typing import Annotated, NamedTuple

from msgspec import UNSET, Meta, Struct, UnsetType, structs

from nearfree.core.precision import Dtype
from nearfree.core.protocols import Positive
from nearfree.decoders.attention_kinds import (
    Compressed,
    DeltaNet,
    Grouped,
    Kind,
    Mamba2,
    Matrices,
    ShortConv,
    State,
    in_blocks,
)
from nearfree.decoders.keys import Keys

Count = Annotated[int, Meta(ge=0)]


class Experts(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The routed experts of a layer, and those that every token passes.

    `d_ff` is the width of one routed expert, `shared_d_ff` that of all shared experts together, 0
    without any. With a `latent` routed experts take and make rows so wide, between two products
    that lead there and back (Nemotron 3 Super). All in elements.
    """

    experts: Positive
    top_k: Positive
    d_ff: Positive
    shared_d_ff: Count = 0
    latent: Positive | UnsetType = UNSET


class States(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a drafter's head reads of another model: states of `layers` of its layers.

    Each is `width` elements of a token wide. The head makes them as wide as itself by one product.
    Where they are of one layer the embedding of the token enters that product beside the state, at
    each run; where they are of several it runs once a draft, and each run's layer then takes
    embedding and state side by side.
    """

    width: Positive
    layers: Positive

    @property
    def once(self) -> bool:
        """Whether their product runs once a draft, not at each of its runs."""
        return self.layers > 1


class Decoder(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A decoder with `layers` layers of attention, each followed by one FFN.

    `moe_layers` of them have `experts` for an FFN, all others a Dense FFN of width `d_ff` (None
    where no layer has one); with `beside` those with experts have it, too. Where a layer is one
    piece alone, attention, a state or an FFN, `ffn_layers` have a Dense FFN (Nemotron-H). Where
    Dense FFNs differ, `ffn_widths` has each width and its layers (Llama-Nemotron). FFNs and
    experts have a gate, and so three matrices, but where `gated` is false. `window` is how
    many positions attention looks back at most in every layer, None for all of them. Each layer may
    have an input of its own of every token, `layer_inputs` wide (Gemma 4). A drafter's head reads
    `states` of its model. The residual is `streams` states wide where layers mix several of them
    (DeepSeek V4's hyper connections), else one. With a `residual_block` layers attend to what each
    block of so many layers before them left (Kimi K3). With `sees_images` all positions of an image
    attend to each other (Gemma 3). Widths are in elements.

    Where layers differ, or have more to say, `kinds` part them; `heads`, `kv_heads`, `head_dim` and
    `window` are then those of the first kind that has a cache, a latent one head as wide as what is
    cached of it. A layer may be of two kinds, which run side by side (Falcon-H1).
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
    residual_block: Positive | UnsetType = UNSET
    sees_images: bool | UnsetType = UNSET
    kinds: tuple[Kind, ...] | UnsetType = UNSET

    @property
    def attention(self) -> tuple[Kind, ...]:
        """The kinds of attention that its layers have: in most models each layer is of one."""
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
        """Whether layers of attention are one module each, with all of their products."""
        return self.in_blocks or any(isinstance(kind, Compressed) for kind in self.attention)

    @property
    def entering(self) -> int:
        """How wide the rows are that query, key and value are made of."""
        beside = self.states is not UNSET and self.states.once
        return 2 * self.d_model if beside else self.d_model

    @property
    def dense_layers(self) -> int:
        """Layers with a Dense FFN."""
        if self.ffn_layers is not UNSET:
            return self.ffn_layers
        return self.layers if self.beside is True else self.layers - self.moe_layers

    @property
    def dense_ffns(self) -> tuple[tuple[int, int], ...]:
        """Widths of its Dense FFNs, each with its layers."""
        if self.ffn_widths is not UNSET:
            return self.ffn_widths
        return ((self.d_ff, self.dense_layers),) if self.d_ff and self.dense_layers else ()

    @property
    def pairs(self) -> float:
        """Layers as most models have them, of two pieces with a norm before each."""
        if self.ffn_layers is UNSET:
            return self.layers
        attends = {layer for kind in self.attention for layer in kind.layers}
        return (len(attends) + self.ffn_layers + self.moe_layers) / 2


def keeping_states(decoder: Decoder, dtype: Dtype | None) -> Decoder:
    """Return a decoder whose states are in a format where its file does not say in what."""
    if decoder.kinds is UNSET or dtype is None:
        return decoder
    kinds = tuple(
        structs.replace(kind, state=kind.state or dtype) if isinstance(kind, Matrices) else kind
        for kind in decoder.kinds
    )
    return structs.replace(decoder, kinds=kinds)


def first_said(kinds: Sequence[Kind]) -> Kind:
    """Return the kind whose sizes a decoder says: the first that has a cache, if any has."""
    return next((kind for kind in kinds if not isinstance(kind, State)), kinds[0])


def said_of(kind: Kind) -> dict[str, int | None]:
    """Return the sizes that a decoder says of its first kind."""
    if isinstance(kind, Grouped):
        return {name: getattr(kind, name) for name in ("heads", "kv_heads", "head_dim", "window")}
    if isinstance(kind, DeltaNet):
        of = {"kv_heads": kind.key_heads, "head_dim": kind.key_dim}
        return {"heads": kind.heads, **of, "window": None}
    if isinstance(kind, Mamba2):
        of = {"kv_heads": kind.groups, "head_dim": kind.head_dim}
        return {"heads": kind.heads, **of, "window": None}
    if isinstance(kind, ShortConv):
        return {"heads": kind.channels, "kv_heads": kind.channels, "head_dim": 1, "window": None}
    width = kind.width if isinstance(kind, Compressed) else kind.cached
    return {"heads": kind.heads, "kv_heads": 1, "head_dim": width, "window": None}


class Ffn(NamedTuple):
    """Width of the Dense FFN, None if no layer has one; layers with experts, counted from 0.

    `beside` holds where those have the Dense FFN, too. `dense` counts the layers with the Dense FFN
    where they are not all others, and without `gated` no FFN has a gate. `widths` are those of
    Dense FFNs with the layers of each, where they differ; `d_ff` is then the widest.
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
    return Ffn(None, range(layers), routed(keys, count, width="intermediate_size"))


SHARING = ("qwen2_moe", "qwen3_next", "qwen3_5_moe_text")
"""Qwen's model types that have experts which every token passes."""


def qwen_moe(keys: Keys, layers: int) -> Ffn:
    """Return the FFN of Qwen's MoE models: every `decoder_sparse_step`-th layer has experts.

    Layers in `mlp_only_layers` have none. The experts that every token passes are one FFN, whose
    width the file says; Qwen3 has none.
    Source: Qwen2MoeDecoderLayer, Qwen3MoeDecoderLayer, Qwen3NextDecoderLayer and
    Qwen3_5MoeDecoderLayer of transformers 5.23.
    """
    step = keys.whole("decoder_sparse_step")
    moe_at: Sequence[int] = range(step - 1, layers, step)
    without = set(keys.list_of("mlp_only_layers", int))
    if without:
        moe_at = [layer for layer in moe_at if layer not in without]
    shares = keys.text("model_type") in SHARING
    shared = keys.whole("shared_expert_intermediate_size", least=0) if shares else 0
    count = keys.one_of("num_experts", "num_local_experts")
    return mixed(keys, layers, moe_at, routed(keys, count, shared_d_ff=shared))


def first_dense(keys: Keys, layers: int) -> Ffn:
    """Return the FFN of models whose first layers alone are dense: Ling, LLaDA2, GLM-4.5.

    The experts that every token passes are one FFN, as wide as all of them.
    Source: BailingMoeV2SparseMoeBlock of inclusionAI/Ling-V2, LLaDA2MoeSparseMoeBlock of
    inclusionAI/dFactory, Glm4MoeMoE of transformers 5.23.
    """
    count = keys.one_of("num_experts", "n_routed_experts")
    shared = keys.one_of("num_shared_experts", "n_shared_experts")
    shared_experts = keys.whole(shared, least=0)
    shared_d_ff = shared_experts * keys.whole("moe_intermediate_size")
    key = "moe_shared_expert_intermediate_size"
    if keys.has(key) and shared_experts and keys.whole(key) * shared_experts != shared_d_ff:
        raise keys.wrong(key, "differs from moe_intermediate_size, and engines disagree on it")
    moe_at = range(keys.whole("first_k_dense_replace", least=0), layers)
    return mixed(keys, layers, moe_at, routed(keys, count, shared_d_ff=shared_d_ff))


def ernie_moe(keys: Keys, layers: int) -> Ffn:
    """Return the FFN of ERNIE 4.5: every `moe_layer_interval`-th layer of a range has experts.

    Source: Ernie4_5_MoeDecoderLayer of transformers 5.23.
    """
    interval = keys.whole("moe_layer_interval")
    start = keys.whole("moe_layer_start_index", least=0)
    end = keys.whole("moe_layer_end_index", least=-1)
    end = layers - 1 if end == -1 else min(end, layers - 1)
    moe_at = range(start // interval * interval + interval - 1, end + 1, interval)
    shared = keys.whole("moe_num_shared_experts", least=0) * keys.whole("moe_intermediate_size")
    experts = routed(keys, "moe_num_experts", top_k="moe_k", shared_d_ff=shared)
    return mixed(keys, layers, moe_at, experts)


def hunyuan_moe(keys: Keys, layers: int) -> Ffn:
    """Return the FFN of Hunyuan's MoE models: experts in every layer, as wide as the shared ones.

    Source: HunYuanMoEV1Moe of transformers 5.23; vllm 0.33.0,
    vllm/model_executor/models/hunyuan_v1.py, has shared ones where `use_mixed_mlp_moe` says so.
    """
    width, key = keys.whole("intermediate_size"), "use_mixed_mlp_moe"
    if keys.whole("moe_intermediate_size", default=width) != width:
        raise keys.wrong("moe_intermediate_size", f"differs from intermediate_size {width}")
    if keys.has(key) and keys.empty(key):
        raise keys.wrong(key, "leaves out shared experts in some engines alone")
    shared = width * keys.whole("num_shared_expert", least=0, default=1)
    experts = routed(keys, "num_experts", width="intermediate_size", shared_d_ff=shared)
    return Ffn(None, range(layers), experts)


def mixed(
    keys: Keys,
    layers: int,
    moe_at: Sequence[int],
    experts: Experts,
    width: str = "intermediate_size",
) -> Ffn:
    """Return the FFN of layers of which those in `moe_at` have experts, others a Dense FFN."""
    d_ff = keys.whole(width) if len(moe_at) < layers else None
    return Ffn(d_ff, moe_at, experts if moe_at else None)


def routed(
    keys: Keys,
    count: str,
    *,
    top_k: str = "num_experts_per_tok",
    width: str = "moe_intermediate_size",
    shared_d_ff: int = 0,
) -> Experts:
    """Return the experts whose count, top k and width stand under some keys."""
    of, chosen, d_ff = keys.wholes(count, top_k, width)
    experts = Experts(experts=of, top_k=chosen, d_ff=d_ff, shared_d_ff=shared_d_ff)
    if experts.top_k > experts.experts:
        raise keys.wrong(top_k, f"is larger than {count} {experts.experts}")
    return experts


def head_width(keys: Keys) -> int:
    """Return `head_dim`, or how wide a head is where the heads part the model's width."""
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
    """Return None, for models that look at all positions."""
    if keys.has("sliding_window"):
        raise keys.wrong("sliding_window", "is no key of this model type", "Leave it out")
    return None


def windowed(keys: Keys, layers: int) -> int | None:  # noqa: ARG001
    """Return `sliding_window`, for models where it holds wherever it is given.

    A file must say null to have none: without the key, Mistral's class has a window of 4096.
    Source: MistralConfig of transformers 5.23.
    """
    return keys.whole_or_null("sliding_window")


def switched_off(keys: Keys, layers: int) -> int | None:  # noqa: ARG001
    """Return None, for models whose window, switched on, holds for some layers or is not known."""
    if keys.flag("use_sliding_window"):
        raise keys.wrong("use_sliding_window", "is not understood for this model type", _MIXED)
    return None


def switched(keys: Keys, layers: int) -> int | None:
    """Return the window of models in which layers from `max_window_layers` on have one.

    Source: Qwen2Config and Qwen3Config of transformers 5.23.
    """
    if not keys.flag("use_sliding_window"):
        return None
    without = keys.whole("max_window_layers", least=0)
    if 0 < without < layers:
        raise keys.wrong(
            "max_window_layers", f"leaves a window to some of {layers} layers alone", _MIXED
        )
    return None if without else keys.whole("sliding_window")


def check_layer_types(keys: Keys, window: int | None) -> None:
    """Raise ConfigError unless `layer_types`, where given, says the same of every layer."""
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
