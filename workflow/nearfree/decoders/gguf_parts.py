"""Parts of a model's matrices by the types that a GGUF file has them in, to the byte."""

from collections.abc import Mapping
from pathlib import Path
from typing import cast

from nearfree.core.precision import PLAIN as WITHOUT_SCALES
from nearfree.core.precision import QUANTISED, Dtype
from nearfree.decoders.config_file import config_file
from nearfree.decoders.gguf_config import plain_format
from nearfree.decoders.gguf_tensors import held_tensors
from nearfree.decoders.precision import StoredPrecision
from nearfree.decoders.schemes import Scheme
from nearfree.decoders.stored_parts import Part
from nearfree.decoders.weights import Matrix, Stored, stored
from nearfree.errors import Refusal, RefusedError
from nearfree.gguf.header import GgufHeader
from nearfree.gguf.reader import is_gguf, read_header
from nearfree.gguf.types import PLAIN, GgmlType

_FORMATS: dict[str, Dtype] = {
    **{name: cast("Dtype", dtype) for name, dtype in PLAIN.items()},
    "mxfp4": "mxfp4",
}
"""The types that forwards here have, by ggml's name: blocks of 32 with a scale of 8 bits are
MXFP4's own. Others share no scale as any format here does."""
_REMEDY = (
    "Name what a forward to answer for has instead, such as --dtype bfloat16, or give the "
    "model's config.json; of the file as it is, on a CPU, `nearfree predict --engine llama_cpp` "
    "answers"
)


def gguf_parts(
    header: GgufHeader, kept: Stored
) -> tuple[StoredPrecision, list[Part], tuple[Refusal, ...]]:
    """Return a file's plain format, its weights by type, and why no forward here has their types.

    The bits of each part are those of its type, so that bytes are the file's own; a part in a type
    that no forward here has is said to be in the plain format.

    Raises
    ------
    RefusedError
        The tensors are not those of the metadata, with every reason.
    """
    plain = cast("Dtype", plain_format(header))
    said = StoredPrecision(file=header.file, plain=plain)
    counts: dict[tuple[Matrix, GgmlType], int] = {}
    for matrix, tensor in held_tensors(header, kept):
        alike = matrix, tensor.type
        counts[alike] = counts.get(alike, 0) + tensor.elements
    parts = [
        Part(matrix, _scheme(matrix, type_, plain), elements)
        for (matrix, type_), elements in counts.items()
    ]
    tied = not any(each.kind == "lm_head" for each in kept.weights)
    return said, parts, _unsaid(header.file, counts, tied=tied)


def check_gguf(path: Path) -> None:
    """Raise ConfigError if a path is that of a GGUF file with weights that no forward here runs.

    Those are other tensors than its metadata say, and types that have scales.
    """
    file = config_file(path)
    if not is_gguf(file):
        return
    header = read_header(file)
    _, _, unsaid = gguf_parts(header, stored(file))
    if unsaid:
        (only,) = unsaid
        remedy = "Give the file in BF16, F16 or F32, or the model's config.json"
        raise RefusedError([only._replace(remedy=remedy)])


def _scheme(matrix: Matrix, type_: GgmlType, plain: Dtype) -> Scheme:
    """Return how a matrix is stored and multiplied, with the bits of its type.

    Files have routers in F32 whatever the checkpoint had; engines that are predicted here compute
    them in the plain format.
    """
    format_ = plain if matrix.kind == "router" else _FORMATS.get(type_.name, plain)
    entering = format_ if format_ in WITHOUT_SCALES else plain
    group = type_.elements if format_ not in WITHOUT_SCALES else 0
    return Scheme(weights=format_, activations=entering, bits=type_.bits, group=group)


def _unsaid(
    file: str, counts: Mapping[tuple[Matrix, GgmlType], int], *, tied: bool
) -> tuple[Refusal, ...]:
    """Return why no forward here has the types of a file, nothing where one has."""
    kinds = (*QUANTISED, "embedding") if tied else QUANTISED
    found: dict[str, int] = {}
    for (matrix, type_), elements in counts.items():
        if matrix.inputs > 1 and matrix.kind in kinds and type_.name not in _FORMATS:
            found[type_.name] = found.get(type_.name, 0) + elements
    if not found:
        return ()
    whole = sum(counts.values())
    shares = ", ".join(
        f"{name} ({count / whole:.0%} of all)"
        for name, count in sorted(found.items(), key=lambda item: -item[1])
    )
    reason = f"stores matrices in types whose products no forward here has: {shares}"
    return (Refusal(file, "", reason, _REMEDY),)
