"""Types of tensors against the constants of the `gguf` package."""

import gguf
from nearfree.gguf.types import BY_NAME, FILE_TYPES, PLAIN, TYPES

OUTDATED = 9
"""The package has 40 bytes for a block of q8_1, as ggml once had; ggml-common.h line 269 has 36.
No file holds weights in it."""
NEWER = {"q1_0", "q2_0", "nvfp4"}
"""Types that releases of the package may not have yet; compared where it has them."""


def test_blocks_are_those_of_the_package() -> None:
    """Each type has the number, elements and bytes of a block that the package has for it."""
    theirs = {
        kind.value: (kind.name.lower(), *gguf.GGML_QUANT_SIZES[kind])
        for kind in gguf.GGMLQuantizationType
        if kind != OUTDATED
    }
    ours = {
        tensor_type.number: (tensor_type.name, tensor_type.elements, tensor_type.size)
        for tensor_type in TYPES.values()
    }
    assert {number: ours[number] for number in theirs} == theirs
    assert {ours[number][0] for number in ours.keys() - theirs.keys()} <= {"q8_1", *NEWER}


def test_file_types_are_those_of_the_package() -> None:
    """Each file type has the package's name."""
    prefix = ("ALL_", "MOSTLY_")
    theirs = {
        file_type.value: file_type.name.removeprefix(prefix[0]).removeprefix(prefix[1])
        for file_type in gguf.LlamaFileType
        if file_type.name != "GUESSED"
    }
    assert {number: name for number, name in FILE_TYPES.items() if number in theirs} == theirs
    assert {FILE_TYPES[number].lower() for number in FILE_TYPES.keys() - theirs.keys()} <= NEWER


def test_types_without_scales_have_the_bits_of_their_names() -> None:
    """A block of 4 bits has its scales beside them."""
    assert BY_NAME["q4_k"].bits == 4.5
    assert {name: BY_NAME[name].bits for name in PLAIN} == {"f32": 32, "f16": 16, "bf16": 16}
