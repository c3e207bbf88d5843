"""Parts of a model's matrices by their types in a GGUF file, to the byte."""

from collections.abc import Mapping
from pathlib import Path
from typing import cast

from nearfree.core.precision import PLAIN as WITHOUT_SCALES
from nearfree.core.precision import QUANTISED, Dtype
from nearfree.decoders.config_file import config_file
from nearfree.decoders.gguf_files.config import plain_format
from nearfree.decoders.gguf_files.tensors import matrix_tensors
from nearfree.decoders.layouts.pieces import Matrix
from nearfree.decoders.stored.parts import Part
from nearfree.decoders.stored.precision import StoredPrecision
from nearfree.decoders.stored.schemes import Scheme
from nearfree.decoders.weights import Stored, stored
from nearfree.errors import Refusal, RefusedError
from nearfree.gguf.header import GgufHeader
from nearfree.gguf.reader import is_gguf, read_header
from nearfree.gguf.types import PLAIN, GgmlType

_FORMATS: dict[str, Dtype] = {
    **{name: cast("Dtype", dtype) for name, dtype in PLAIN.items()},
    "mxfp4": "mxfp4",
}
"""The formats of ggml's types for which there is a forward here. MXFP4 has the same blocks of 32
with a scale of 8 bits in ggml; no other type shares scales as a format here does."""
_REMEDY = (
    "Name the format of the forward instead, such as --dtype bfloat16, or give the model's "
    "config.json; for the file as it is, on a CPU, use `nearfree predict --engine llama_cpp`, and "
    "`nearfree tune llama_cpp` to measure how many tokens to draft"
)


def gguf_parts(
    header: GgufHeader, model: Stored
) -> tuple[StoredPrecision, list[Part], tuple[Refusal, ...]]:
    """Return a file's precision, its weights by type, and a refusal of types without a forward.

    The bits of each part are those of its type, so that bytes are those of the file. A part in a
    type that no forward here has counts as stored in the unquantised dtype.

    Raises
    ------
    RefusedError
        The tensors are not those that the metadata imply. The error gives every reason.
    """
    plain = cast("Dtype", plain_format(header))
    precision = StoredPrecision(file=header.file, plain=plain)
    counts: dict[tuple[Matrix, GgmlType], int] = {}
    for matrix, tensor in matrix_tensors(header, model):
        key = matrix, tensor.type
        counts[key] = counts.get(key, 0) + tensor.elements
    parts = [
        Part(matrix, _scheme(matrix, type_, plain), elements)
        for (matrix, type_), elements in counts.items()
    ]
    tied = not any(matrix.kind == "lm_head" for matrix in model.weights)
    return precision, parts, _type_refusals(header.file, counts, tied=tied)


def check_gguf(path: Path) -> None:
    """Raise ConfigError for a GGUF file with weights that no forward here runs.

    Those are types with scales, and tensors that differ from what the metadata imply.
    """
    file = config_file(path)
    if not is_gguf(file):
        return
    header = read_header(file)
    _, _, refusals = gguf_parts(header, stored(file))
    if refusals:
        (refusal,) = refusals
        remedy = "Give the file in BF16, F16 or F32, or the model's config.json"
        raise RefusedError([refusal._replace(remedy=remedy)])


def _scheme(matrix: Matrix, type_: GgmlType, plain: Dtype) -> Scheme:
    """Return how a matrix is stored and multiplied, with the bits of its type.

    GGUF files have routers in F32 whatever their dtype in the checkpoint; the engines that are
    predicted here compute them in the unquantised dtype.
    """
    format_ = plain if matrix.kind == "router" else _FORMATS.get(type_.name, plain)
    activations = format_ if format_ in WITHOUT_SCALES else plain
    group = type_.elements if format_ not in WITHOUT_SCALES else 0
    return Scheme(weights=format_, activations=activations, bits=type_.bits, group=group)


def _type_refusals(
    file: str, counts: Mapping[tuple[Matrix, GgmlType], int], *, tied: bool
) -> tuple[Refusal, ...]:
    """Return the refusal of a file's types for which there is no forward here, if there are any."""
    kinds = (*QUANTISED, "embedding") if tied else QUANTISED
    elements_by_type: dict[str, int] = {}
    for (matrix, type_), elements in counts.items():
        if matrix.inputs > 1 and matrix.kind in kinds and type_.name not in _FORMATS:
            elements_by_type[type_.name] = elements_by_type.get(type_.name, 0) + elements
    if not elements_by_type:
        return ()
    all_elements = sum(counts.values())
    shares = ", ".join(
        f"{name} ({count / all_elements:.0%} of all)"
        for name, count in sorted(elements_by_type.items(), key=lambda item: -item[1])
    )
    reason = f"stores matrices in types whose products no forward here has: {shares}"
    return (Refusal(file, "", reason, _REMEDY),)
