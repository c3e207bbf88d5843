"""The types in which GGUF files store tensors: elements and bytes of a block of each type.

Source: llama.cpp v0.5.0: numbers of ggml/include/ggml.h lines 389-434, names and blocks of
ggml/src/ggml.c lines 632-930, bytes of the structs of ggml/src/ggml-common.h lines 180-460, names
of file types of include/llama.h lines 118-159.
"""

from msgspec import Struct


class GgmlType(Struct, frozen=True):
    """A type, with its number in files.

    A row of a tensor is stored in blocks of `elements` elements and `size` bytes, scales included.
    """

    number: int
    name: str
    elements: int
    size: int

    @property
    def bits(self) -> float:
        """Bits per element, with its share of the block's scales."""
        return 8 * self.size / self.elements

    def row_bytes(self, columns: int) -> int:
        """Return the bytes of a row of `columns` elements, a multiple of a block's elements."""
        return columns // self.elements * self.size


_SUPER = 256
"""Elements of a block of the types named K, IQ and TQ, QK_K."""
_TYPES = {
    0: ("f32", 1, 4), 1: ("f16", 1, 2), 2: ("q4_0", 32, 18), 3: ("q4_1", 32, 20),
    6: ("q5_0", 32, 22), 7: ("q5_1", 32, 24), 8: ("q8_0", 32, 34), 9: ("q8_1", 32, 36),
    10: ("q2_k", _SUPER, 84), 11: ("q3_k", _SUPER, 110), 12: ("q4_k", _SUPER, 144),
    13: ("q5_k", _SUPER, 176), 14: ("q6_k", _SUPER, 210), 15: ("q8_k", _SUPER, 292),
    16: ("iq2_xxs", _SUPER, 66), 17: ("iq2_xs", _SUPER, 74), 18: ("iq3_xxs", _SUPER, 98),
    19: ("iq1_s", _SUPER, 50), 20: ("iq4_nl", 32, 18), 21: ("iq3_s", _SUPER, 110),
    22: ("iq2_s", _SUPER, 82), 23: ("iq4_xs", _SUPER, 136), 24: ("i8", 1, 1), 25: ("i16", 1, 2),
    26: ("i32", 1, 4), 27: ("i64", 1, 8), 28: ("f64", 1, 8), 29: ("iq1_m", _SUPER, 56),
    30: ("bf16", 1, 2), 34: ("tq1_0", _SUPER, 54), 35: ("tq2_0", _SUPER, 66), 39: ("mxfp4", 32, 17),
    40: ("nvfp4", 64, 36), 41: ("q1_0", 128, 18), 42: ("q2_0", 64, 18),
}  # fmt: skip
"""Name, elements and bytes of a block, by number."""
TYPES = {number: GgmlType(number, *block) for number, block in _TYPES.items()}
"""By number. Numbers 4, 5, 31 to 33 and 36 to 38 were types that engines no longer read."""
BY_NAME = {type_.name: type_ for type_ in TYPES.values()}
"""By the name that ggml prints, in lower case, which the command line accepts."""
PLAIN = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}
"""Types without scales, with the name of each in the rest of the program."""
FILE_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K",
    11: "Q3_K_S", 12: "Q3_K_M", 13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S",
    17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS", 20: "IQ2_XS", 21: "Q2_K_S", 22: "IQ3_XS",
    23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S", 29: "IQ2_M",
    30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4_MOE", 39: "NVFP4",
    40: "Q1_0", 41: "Q2_0",
}  # fmt: skip
"""Names of file types, by the `general.file_type` of files. A name stands for the type of most
weights, and may mean a mixture of types."""
