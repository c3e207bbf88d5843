"""Formats of numbers: what an element of each takes in memory, and which peak its products have."""

from typing import Literal, get_args

from msgspec import Struct

Dtype = Literal[
    "auto", "bfloat16", "float16", "float32", "float8",
    "float8_block", "int8", "int4", "nvfp4", "mxfp4",
]  # fmt: skip
"""`auto` stands in plans alone: bfloat16 where the machine has it, else float32."""


class Format(Struct, frozen=True):
    """One format: `bits` of an element, and `scale_bits` that `group` elements share.

    A scale of a whole row or matrix is not counted: group 0. `peak` names the FLOP/s of products
    of two matrices in it, as platforms.yaml does.
    """

    bits: int
    peak: str
    group: int = 0
    scale_bits: int = 0

    @property
    def element_bytes(self) -> float:
        """Bytes of an element with its part of a scale, the paper's s."""
        return (self.bits + (self.scale_bits / self.group if self.group else 0)) / 8


FORMATS: dict[str, Format] = {
    "bfloat16": Format(16, "bfloat16"),
    "float16": Format(16, "float16"),
    "float32": Format(32, "float32"),
    "float8": Format(8, "float8"),
    "float8_block": Format(8, "float8", group=128 * 128, scale_bits=32),
    "int8": Format(8, "int8"),
    "int4": Format(4, "int4", group=128, scale_bits=16),
    "nvfp4": Format(4, "float4", group=16, scale_bits=8),
    "mxfp4": Format(4, "float4", group=32, scale_bits=8),
}
"""By dtype, in its usual form: FP8 in blocks of 128 x 128 with a float32 scale (DeepSeek-V3's),
int4 in groups of 128 with a 16-bit scale (AWQ, GPTQ), NVFP4 in groups of 16 and OCP's MXFP4 of 32
with a scale of 8 bits."""
DTYPES: tuple[Dtype, ...] = tuple(name for name in get_args(Dtype) if name in FORMATS)
"""The formats of numbers."""
ELEMENT_BYTES = {name: format_.element_bytes for name, format_ in FORMATS.items()}
"""Bytes of an element with its part of a scale, the paper's s, by dtype."""
RESULT_BYTES = {name: max(size, 2.0) for name, size in ELEMENT_BYTES.items()}
"""Bytes of an element of what a product writes, by the dtype of what enters it: 16 bits at least,
since engines quantise anew before each product."""
PLAIN: tuple[Dtype, ...] = ("bfloat16", "float16", "float32")
"""The formats that have no scales."""


class Precision(Struct, frozen=True, kw_only=True):
    """In what numbers a forward computes.

    `weights` is what most matrices are stored in, `activations` what enters their products, `kv`
    what the cache holds.
    """

    weights: Dtype
    activations: Dtype
    kv: Dtype
