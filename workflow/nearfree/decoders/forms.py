"""How layers compute where their shape and one rotation do not determine it."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from nearfree.core.protocols import Natural, Positive
from nearfree.decoders.rope import Above, Rope

Activation = Literal["silu", "gelu_tanh"]


class Warmth(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The factor on a query at position p: 1 + slope log(1 + floor((p + shift) / period)).

    Source: Llama4TextAttention and get_llama_4_attn_scale of Mistral 4, transformers 5.23.
    """

    slope: Above
    period: Positive
    shift: Natural


class AttentionForm(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """How layers of one kind attend.

    Logits are multiplied by `scale`. Without a `rope` there is no positional encoding. With
    `unit_norm` queries and keys are divided by their root mean square after rotation; with
    `value_norm` values are. `index_rope` rotates an indexer's queries and keys.
    """

    scale: Above
    rope: Rope | None = None
    unit_norm: bool = False
    value_norm: bool = False
    warmth: Warmth | None = None
    index_rope: Rope | None = None


class Clamp(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The gate of gpt-oss: g sigmoid(slope g) (up + 1).

    `up` is clamped to +-`limit`, g only from above.

    Source: GptOssExperts of transformers 5.23.
    """

    slope: Above
    limit: Above


class Form(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """How a decoder computes beyond what all families share.

    `attention` has an entry for each kind of `Decoder.attention`. With `four_norms` the outputs of
    attention and FFN are normalised, too. With `norms_from_one` norms multiply by one plus their
    weights. Embeddings are multiplied by `embedding_scale`; logits are capped to c tanh(logit / c)
    with c the `logits_cap`. Routed experts have the gate `clamp` and, with `expert_biases`, biases.
    With `layer_weight` the output of a layer is multiplied by a weight.
    """

    attention: Annotated[tuple[AttentionForm, ...], Meta(min_length=1)]
    activation: Activation = "silu"
    four_norms: bool = False
    norms_from_one: bool = False
    embedding_scale: Above | None = None
    logits_cap: Above | None = None
    clamp: Clamp | None = None
    expert_biases: bool = False
    layer_weight: bool = False

    @property
    def plain_experts(self) -> bool:
        """Whether routed experts have a SiLU gate and no biases."""
        return self.clamp is None and self.activation == "silu" and not self.expert_biases
