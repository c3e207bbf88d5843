"""The shape of a decoder: what of it decides how much work a forward is."""

from typing import Annotated

from msgspec import Meta, Struct

from nearfree.core.protocols import Positive
from nearfree.core.setting import Dtype

Count = Annotated[int, Meta(ge=0)]


class Experts(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The routed experts of a layer, all gated, and those that every token passes.

    `d_ff` is the width of one routed expert, `shared_d_ff` that of all shared experts together, 0
    without any; both in elements.
    """

    experts: Positive
    top_k: Positive
    d_ff: Positive
    shared_d_ff: Count = 0


class Decoder(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A decoder with `layers` layers of attention, each followed by one FFN.

    `moe_layers` of them have `experts` for an FFN, all others a gated Dense FFN of width `d_ff`
    (None where no layer has one). `window` is how many positions attention looks back at most in
    every layer, None for all of them. Widths are in elements.
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

    @property
    def dense_layers(self) -> int:
        """Layers with a Dense FFN."""
        return self.layers - self.moe_layers
