"""The header of a GGUF file: its metadata and its tensors, without their data."""

from math import prod

from msgspec import Struct

from nearfree.errors import Refusal, RefusedError
from nearfree.gguf.types import FILE_TYPES, GgmlType

Scalar = int | float | bool | str


class Long(Struct, frozen=True):
    """A long array or string that was not read: the type of its elements, and their number.

    For a string the elements are bytes, and `element_type` is `text`.
    """

    element_type: str
    length: int


Value = Scalar | tuple[Scalar, ...] | Long


class Tensor(Struct, frozen=True, kw_only=True):
    """A tensor of a file.

    `dims` are its sizes in the file's order, the innermost first: the matrix of a product has its
    inputs first and its outputs second. `offset` and `size_bytes` locate its data in the file.
    """

    name: str
    dims: tuple[int, ...]
    type: GgmlType
    offset: int
    size_bytes: int

    @property
    def elements(self) -> int:
        """Number of elements."""
        return prod(self.dims)


class GgufHeader(Struct, frozen=True, kw_only=True):
    """The content of a file without the data of its tensors.

    `alignment`, `data_offset` and `file_bytes` are in bytes. Each tensor begins at a multiple of
    `alignment` after `data_offset`.
    """

    file: str
    version: int
    metadata: dict[str, Value]
    tensors: tuple[Tensor, ...]
    alignment: int
    data_offset: int
    file_bytes: int

    @property
    def architecture(self) -> str:
        """The architecture in the metadata, empty if there is none."""
        name = self.metadata.get("general.architecture", "")
        return name if isinstance(name, str) else ""

    @property
    def file_type(self) -> str:
        """The file type, after the type of most weights, such as Q4_K_M; empty if not given."""
        number = self.metadata.get("general.file_type")
        return FILE_TYPES.get(number, "") if isinstance(number, int) else ""

    @property
    def by_name(self) -> dict[str, Tensor]:
        """The tensors by name."""
        return {tensor.name: tensor for tensor in self.tensors}


def stored_bytes(header: GgufHeader) -> int:
    """Return the bytes of all tensors, without the padding between them."""
    return sum(tensor.size_bytes for tensor in header.tensors)


def refuse_part(header: GgufHeader) -> None:
    """Raise RefusedError for one part of a split file, which has only some tensors of its model."""
    count = header.metadata.get("split.count")
    if isinstance(count, int) and count > 1:
        reason = f"{count} says that the file is one of several"
        remedy = "Merge its parts with llama-gguf-split --merge of llama.cpp"
        raise RefusedError([Refusal(header.file, "split.count", reason, remedy)])


def bytes_by_type(header: GgufHeader) -> dict[str, int]:
    """Return the bytes of all tensors by the name of their type, the largest first."""
    sizes: dict[str, int] = {}
    for tensor in header.tensors:
        sizes[tensor.type.name] = sizes.get(tensor.type.name, 0) + tensor.size_bytes
    return dict(sorted(sizes.items(), key=lambda item: -item[1]))
