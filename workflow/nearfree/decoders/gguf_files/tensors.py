"""The tensors of a GGUF file matched to the weights of its model, without missing or extra ones.

Source: shapes of llama.cpp v0.5.0, src/models/NAME.cpp (load_arch_tensors).
"""

import re
from math import prod
from typing import NamedTuple

from msgspec import structs

from nearfree.decoders.gguf_files.names import INSIDE, other_names, tensor_names
from nearfree.decoders.layouts.pieces import Matrix
from nearfree.decoders.weights import Stored
from nearfree.errors import Refusal, RefusedError
from nearfree.gguf.header import GgufHeader, Tensor

_TABLES = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
"""Factors of rotations, which are not weights in a config.json."""
_JOINTS = {
    **dict.fromkeys(INSIDE["attention.wqkv"], "attn_qkv"),
    **dict.fromkeys(INSIDE["mlp.experts.gate_up_proj"], "ffn_gate_up_exps"),
}
"""Names of a layer's tensors, with that of the one that may hold several of them."""
_BUFFERS = ("exp_probs_b.bias", "layer_output_scale.weight")
"""Tensors of a layer that are buffers of the class, not weights: the bias by which a router
corrects scores, and the factor of Gemma 4's layers."""
_DROPPED = dict.fromkeys(("gemma3n_text", "gemma4_text"), ("attn_k", "attn_v", "attn_k_norm"))
"""By model type, weights that files also have of layers whose class has none: layers that share a
cache make no keys and values (Gemma3nTextModel of transformers 5.23 ignores them on load)."""
_OF_LATENT = (".attn_k_b.weight", ".attn_v_b.weight")
_BY_GROUP = re.compile(r"\.ssm_(?:a|d|norm\.weight)$")
"""Vectors of a mixer, which files may have with an axis for groups or heads."""
_MOST_NAMED = 4
_ANEW = "Convert the model anew with a release of llama.cpp that is read here"


class MatrixTensor(NamedTuple):
    """A tensor of a file, with the weights of the model that it holds."""

    matrix: Matrix
    tensor: Tensor


def matrix_tensors(header: GgufHeader, model: Stored) -> tuple[MatrixTensor, ...]:
    """Return the tensors of a file, each with the weight of the model that it holds.

    Those of layers that predict further tokens, which engines load only to draft, are left out.

    Raises
    ------
    RefusedError
        Tensors are missing, have other shapes than the metadata imply, or belong to no weight. The
        error gives every reason.
    """
    unmatched, matched, reasons = _parted(header, model), list[MatrixTensor](), dict[str, str]()
    for matrix in model.weights:
        for layer in matrix.layers or (None,):
            names = tensor_names(model.model_type, matrix.name, layer)
            if unmatched.keys().isdisjoint(names):
                others = other_names(matrix.name, layer)
                names = names if unmatched.keys().isdisjoint(others) else others
            tensors = [unmatched.pop(name) for name in names if name in unmatched]
            if not names or len(tensors) < len(names):
                _note(reasons, matrix.name, f"{' and '.join(names) or matrix.name} is missing")
            elif not _fits(matrix, tensors):
                _note(reasons, matrix.name, _misfit(matrix, tensors))
            matched += [MatrixTensor(matrix, tensor) for tensor in tensors]
    endings = (*_BUFFERS, *(f"{part}.weight" for part in _DROPPED.get(model.model_type, ())))
    unused = [f"blk.{layer}.{end}" for layer in range(_layers(model)) for end in endings]
    for table in (*_TABLES, *unused):
        if table in unmatched:
            matched.append(_table(unmatched.pop(table)))
    for layer in _drafting(header, _layers(model)):
        for name in [name for name in unmatched if name.startswith(f"blk.{layer}.")]:
            del unmatched[name]
    if unmatched:
        more = f" and {len(unmatched) - _MOST_NAMED} more" if len(unmatched) > _MOST_NAMED else ""
        named = ", ".join(list(unmatched)[:_MOST_NAMED])
        _note(reasons, "", f"has tensors that no {model.model_type} has: {named}{more}")
    if reasons:
        raise RefusedError([Refusal(header.file, "", why, _ANEW) for why in reasons.values()])
    return tuple(matched)


def _drafting(header: GgufHeader, layers: int) -> range:
    """Return the layers that predict further tokens; they are behind the `layers` of the model."""
    count = header.metadata.get(f"{header.architecture}.nextn_predict_layers")
    return range(layers, layers + count) if isinstance(count, int) else range(0)


def _parted(header: GgufHeader, model: Stored) -> dict[str, Tensor]:
    """Return the tensors by name, with a joint one as its parts.

    Files of models whose checkpoints have weights apart may have either (create_tensor_qkv and
    create_tensor_gate_up_exps of src/llama-model.cpp). Each output is a row of the tensor, so the
    parts have whole rows of it, in each expert; the offset is that of the first row.
    """
    tensors, rows_by_joint = dict(header.by_name), dict[str, dict[str, int]]()
    for matrix in model.weights:
        for layer in matrix.layers:
            names = tensor_names(model.model_type, matrix.name, layer)
            for part, joint in _JOINTS.items():
                if names in ((f"blk.{layer}.{part}.weight",), (f"blk.{layer}.{part}.bias",)):
                    name = names[0].replace(part, joint)
                    rows_by_joint.setdefault(name, {})[names[0]] = matrix.outputs
    for joint, rows_by_name in rows_by_joint.items():
        if joint not in tensors or tensors[joint].dims[:2][-1] != sum(rows_by_name.values()):
            continue
        tensor, first = tensors.pop(joint), 0
        axis = min(1, len(tensor.dims) - 1)
        columns, (all_rows, *copies) = tensor.dims[:axis], tensor.dims[axis:]
        row_bytes = tensor.size_bytes // prod((all_rows, *copies))
        for name, rows in rows_by_name.items():
            tensors[name] = structs.replace(
                tensor,
                name=name,
                dims=(*columns, rows, *copies),
                offset=tensor.offset + first * row_bytes,
                size_bytes=rows * row_bytes * prod(copies),
            )
            first += rows
    return tensors


def _layers(model: Stored) -> int:
    return 1 + max(max(matrix.layers, default=-1) for matrix in model.weights)


def _note(reasons: dict[str, str], name: str, why: str) -> None:
    """Keep only the first reason per weight: an error in one layer is mostly one in all layers."""
    reasons.setdefault(name, why)


def _shape(matrix: Matrix) -> tuple[int, ...]:
    """Return the shape of a weight in files: the innermost size first, without trailing 1s."""
    sizes = (matrix.outputs,) if matrix.inputs == 1 else (matrix.inputs, matrix.outputs)
    return _stripped((*sizes, matrix.copies))


def _stripped(sizes: tuple[int, ...]) -> tuple[int, ...]:
    while len(sizes) > 1 and sizes[-1] == 1:
        sizes = sizes[:-1]
    return sizes


def _fits(matrix: Matrix, tensors: list[Tensor]) -> bool:
    """Return whether tensors make up a weight; several are concatenated along the outputs."""
    first = tensors[0].dims
    if len(tensors) == 1:
        (tensor,) = tensors
        if matrix.inputs == 1 and _BY_GROUP.search(tensor.name):
            return tensor.elements == matrix.outputs
        return _stripped(first) == _shape(matrix)
    if all(tensor.name.endswith(_OF_LATENT) for tensor in tensors):
        return _fits_latent(matrix, *tensors)
    axis = 0 if matrix.inputs == 1 else 1
    other_sizes = {(*tensor.dims[:axis], *tensor.dims[axis + 1 :]) for tensor in tensors}
    if len(other_sizes) > 1 or len(first) <= axis:
        return False
    outputs = sum(tensor.dims[axis] for tensor in tensors)
    return _stripped((*first[:axis], outputs, *first[axis + 1 :])) == _shape(matrix)


def _fits_latent(matrix: Matrix, of_key: Tensor, of_value: Tensor) -> bool:
    """Return whether tensors for absorbed products make up one: by head, and keys transposed."""
    if len(of_key.dims) != 3 or len(of_value.dims) != 3:
        return False
    nope_dim, *of_keys = of_key.dims
    latent, value_dim, heads = of_value.dims
    sizes = latent, heads * (nope_dim + value_dim)
    return of_keys == [latent, heads] and sizes == (matrix.inputs, matrix.outputs)


def _misfit(matrix: Matrix, tensors: list[Tensor]) -> str:
    names = " and ".join(tensor.name for tensor in tensors)
    shapes = " and ".join(" x ".join(map(str, tensor.dims)) for tensor in tensors)
    expected = " x ".join(map(str, _shape(matrix)))
    return f"{names} has {shapes} elements, and the metadata say {expected}"


def _table(tensor: Tensor) -> MatrixTensor:
    matrix = Matrix(name=tensor.name, kind="other", inputs=1, outputs=tensor.elements)
    return MatrixTensor(matrix, tensor)
