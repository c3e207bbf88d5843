"""The matrices that a forward multiplies by, as a file stores them."""

import re
from math import prod

from msgspec import Struct, structs

from nearfree.gguf.header import GgufHeader, Tensor
from nearfree.gguf.types import GgmlType

EMBEDDING, HEAD = "token_embd.weight", "output.weight"
_LOOKED_UP = ("token_embd", "position_embd", "token_types", "per_layer_token_embd")
"""Read by row for each token, in no product, unless it is the head's, too."""
_CONVOLUTIONS = ("ssm_conv1d", "shortconv.conv")
_LAYER = re.compile(r"blk\.(\d{1,6})\.")
_ROUTED = re.compile(r"ffn_\w+_exps|ffn_(?:gate|up|down)\.\d+")
"""Experts: all in one tensor, or, in files of early 2024, one in each."""


class WeightMatrix(Struct, frozen=True, kw_only=True):
    """`count` equal matrices that products read, stored as one tensor.

    `rows` are the outputs of one and `columns` its inputs. `part` is the tensor's name without its
    layer, such as `attn_q`, and `layer` is None outside of layers; `tied` is the embedding as the
    head. Where `routed` holds the matrices are those of experts, of which a token takes some.
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
        """Elements of all of them."""
        return self.count * self.rows * self.columns

    @property
    def size_bytes(self) -> int:
        """Bytes of all of them, as stored."""
        return self.count * self.rows * self.type.row_bytes(self.columns)

    def read_bytes(self, matrices: int | None = None) -> int:
        """Return the bytes of as many of them, of all by default."""
        return self.size_bytes // self.count * (self.count if matrices is None else matrices)


def matrices(header: GgufHeader) -> tuple[WeightMatrix, ...]:
    """Return all matrices that the products of a forward read, in the file's order.

    Embeddings that are looked up are none; without a head of its own a file has the token
    embedding as one. Vectors, biases and convolutions are no matrices.
    """
    found = [made for each in header.tensors if (made := _matrix(each)) is not None]
    by_name = header.by_name
    if HEAD not in by_name and EMBEDDING in by_name:
        tied = _shaped(by_name[EMBEDDING], "output", None)
        found.append(structs.replace(tied, tied=True))
    return tuple(found)


def _matrix(tensor: Tensor) -> WeightMatrix | None:
    layer = _LAYER.match(tensor.name)
    inner = tensor.name[layer.end() if layer else 0 :]
    part = inner.removesuffix(".weight")
    if part == inner or len(tensor.dims) < 2 or part in (*_LOOKED_UP, *_CONVOLUTIONS):
        return None
    return _shaped(tensor, part, int(layer[1]) if layer else None)


def _shaped(tensor: Tensor, part: str, layer: int | None) -> WeightMatrix:
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
