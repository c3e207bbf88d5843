"""What the header of a GGUF file says: its metadata and its tensors, without their data."""

from math import prod

from msgspec import Struct

from nearfree.errors import Refusal, RefusedError
from nearfree.gguf.types import FILE_TYPES, GgmlType

Scalar = int | float | bool | str


class Long(Struct, frozen=True):
    """An array or text that was left in the file: the type of its elements, and their number.

    Of a text these are its bytes, and `of` is `text`.
    """

    of: str
    length: int


Value = Scalar | tuple[Scalar, ...] | Long


class Tensor(Struct, frozen=True, kw_only=True):
    """A tensor of a file.

    `dims` are its sizes as files have them, the innermost first: a matrix of a product has its
    inputs first and its outputs second. `offset` is that of its data in the file, in bytes, and
    `size_bytes` what they take there.
    """

    name: str
    dims: tuple[int, ...]
    type: GgmlType
    offset: int
    size_bytes: int

    @property
    def elements(self) -> int:
        """How many elements."""
        return prod(self.dims)


class GgufHeader(Struct, frozen=True, kw_only=True):
    """All of a file but the data of its tensors.

    `alignment`, `data_offset` and `file_bytes` are in bytes: every tensor begins at a multiple of
    the first after the second.
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
        """The architecture that it names, empty if it names none."""
        found = self.metadata.get("general.architecture", "")
        return found if isinstance(found, str) else ""

    @property
    def file_type(self) -> str:
        """What most weights are in, such as Q4_K_M; empty if it does not say."""
        found = self.metadata.get("general.file_type")
        return FILE_TYPES.get(found, "") if isinstance(found, int) else ""

    @property
    def by_name(self) -> dict[str, Tensor]:
        """The tensors by name."""
        return {each.name: each for each in self.tensors}


def stored_bytes(header: GgufHeader) -> int:
    """Return the bytes of all tensors, without what fills the space between them."""
    return sum(each.size_bytes for each in header.tensors)


def refuse_part(header: GgufHeader) -> None:
    """Raise RefusedError for one part of several: its tensors are not all of its model."""
    count = header.metadata.get("split.count")
    if isinstance(count, int) and count > 1:
        reason = f"{count} says that the file is one of several"
        remedy = "Merge its parts with llama-gguf-split --merge of llama.cpp"
        raise RefusedError([Refusal(header.file, "split.count", reason, remedy)])


def bytes_by_type(header: GgufHeader) -> dict[str, int]:
    """Return the bytes of all tensors by the name of their type, the largest first."""
    found: dict[str, int] = {}
    for each in header.tensors:
        found[each.type.name] = found.get(each.type.name, 0) + each.size_bytes
    return dict(sorted(found.items(), key=lambda item: -item[1]))
