"""The matrices that a forward multiplies by, as a file stores them."""

import re
from collections.abc import Mapping
from math import prod

from msgspec import Struct, structs

from nearfree.gguf.header import GgufHeader, Tensor
from nearfree.gguf.types import GgmlType

EMBEDDING, HEAD = "token_embd.weight", "output.weight"
_LOOKED_UP = ("token_embd", "position_embd", "token_types", "per_layer_token_embd")
"""Embeddings, which are read by row per token and are in no product, unless tied to the head."""
_CONVOLUTIONS = ("ssm_conv1d", "shortconv.conv")
_BY_GROUP = ("ssm_norm",)
"""Vectors that files have with an axis for groups."""
_SHARED, _DRAFTING = "attention.shared_kv_layers", "nextn_predict_layers"
_UNREAD = {"attn_k": _SHARED, "attn_v": _SHARED, "": _DRAFTING}
"""Parts of the last layers that a forward does not read, all if empty, with the key of how many."""
_LAYER = re.compile(r"blk\.(\d{1,6})\.")
_ROUTED = re.compile(r"ffn_\w+_exps|ffn_(?:gate|up|down)\.\d+")
"""Experts: all in one tensor, or in files of early 2024 one per tensor."""


class WeightMatrix(Struct, frozen=True, kw_only=True):
    """`count` equal matrices that products read, stored as one tensor.

    `rows` are the outputs of one matrix and `columns` its inputs. `part` is the tensor's name
    without its layer, such as `attn_q`; `layer` is None outside of layers. `tied` marks the
    embedding in the role of the head. With `routed` the matrices are those of routed experts.
    """

    name: str
    part: str
    layer: int | None
    type: GgmlType
    rows: int
    columns: int
    count: int = 1
    routed: bool = False
    tied: bool = False

    @property
    def elements(self) -> int:
        """Elements of all matrices together."""
        return self.count * self.rows * self.columns

    @property
    def size_bytes(self) -> int:
        """Stored bytes of all matrices together."""
        return self.count * self.rows * self.type.row_bytes(self.columns)

    def read_bytes(self, count: int | None = None) -> int:
        """Return the stored bytes of a number of matrices, by default of all."""
        return self.size_bytes // self.count * (self.count if count is None else count)


def matrices(header: GgufHeader) -> tuple[WeightMatrix, ...]:
    """Return all matrices that the products of a forward read, in the file's order.

    Embeddings are not among them; but if the file has no head, the token embedding is, as the head.
    Vectors, biases and convolutions are not among them either, nor are keys and values of layers
    that attend to the cache of earlier ones, and layers that predict further tokens (llama.cpp
    v0.5.0, src/models/gemma3n.cpp, has_kv; src/models/glm4-moe.cpp, TENSOR_SKIP).
    """
    candidates = map(_matrix, header.tensors)
    first_unread = {part: _layers_before(header, key) for part, key in _UNREAD.items()}
    products = [
        matrix for matrix in candidates if matrix is not None and _is_read(matrix, first_unread)
    ]
    by_name = header.by_name
    if HEAD not in by_name and EMBEDDING in by_name:
        tied = _make_matrix(by_name[EMBEDDING], "output", None)
        products.append(structs.replace(tied, tied=True))
    return tuple(products)


def _layers_before(header: GgufHeader, key: str) -> int | None:
    """Return the number of layers before the last ones that a key counts, None without it."""
    name = header.architecture
    layers, last = header.metadata.get(f"{name}.block_count"), header.metadata.get(f"{name}.{key}")
    return layers - last if isinstance(layers, int) and isinstance(last, int) else None


def _is_read(matrix: WeightMatrix, first_unread: Mapping[str, int | None]) -> bool:
    limits = (first_unread.get(part) for part in (matrix.part, ""))
    layer = matrix.layer
    return layer is None or all(limit is None or layer < limit for limit in limits)


def _matrix(tensor: Tensor) -> WeightMatrix | None:
    """Return the matrices of a tensor, None if no product reads it."""
    layer = _LAYER.match(tensor.name)
    name = tensor.name[layer.end() if layer else 0 :]
    part = name.removesuffix(".weight")
    if part == name or len(tensor.dims) < 2 or part in (*_LOOKED_UP, *_CONVOLUTIONS, *_BY_GROUP):
        return None
    return _make_matrix(tensor, part, int(layer[1]) if layer else None)


def _make_matrix(tensor: Tensor, part: str, layer: int | None) -> WeightMatrix:
    columns, rows, *others = tensor.dims
    return WeightMatrix(
        name=tensor.name,
        part=part,
        layer=layer,
        type=tensor.type,
        rows=rows,
        columns=columns,
        count=prod(others),
        routed=_ROUTED.fullmatch(part) is not None,
    )
