"""Pack a group's curves: codes as steps along N, in one LZMA stream as Base85.

The step of log(T / T_form) from one N to the next is that of log(T(N) / T(baseline)) minus the
form's, which hardly changes. Subtracting the ratio's step leaves small numbers. Nothing is lost.
"""

import base64
import lzma
from collections.abc import Sequence

import numpy as np
from msgspec import Struct, msgpack, structs
from numpy.typing import NDArray

_MOST_BYTES = 32 * 2**20
"""Largest size of an unpacked group."""
_MOST_MEMORY = 96 * 2**20
"""Memory limit of unpacking; a stream of the event's version 1 needs 65 MiB."""
_FILTER = {
    "id": lzma.FILTER_LZMA1, "preset": 9, "dict_size": 2**20, "lc": 0, "lp": 0, "pb": 0,
}  # fmt: skip
"""Bytes have no context: neither the previous byte nor the position changes their coding."""
_FLOAT32, _LOGARITHM = "<f4", "<u2"
"""Encodings of T(first N): the number itself, or its logarithm in 16 bits."""
_LOWEST, _STEPS_OF_E = -5.0, 500.0
"""ln(T / us) at code 0, and codes per factor of e."""
_CODES, _CLIP = 256, 2.0**40
"""Steps are stored modulo the number of codes; the clip is beyond any real step."""


class Packed(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A group's curves: columns, distinct grids, and codes."""

    releases: list[str | None]
    routings: list[str | None]
    members: list[str]
    columns: dict[str, list[int | None]]
    """The coordinates, and each curve's indices into releases, routings, members and grids."""
    grids: list[list[int]]
    first_us: bytes
    """T(first N), float32 or a logarithm in 16 bits, little-endian."""
    ratio: bytes
    residual: bytes

    @property
    def lengths(self) -> list[int]:
        """The number of points of each curve."""
        return [len(self.grids[place]) for place in self.columns["grid"] if place is not None]


def packed_text(curves: Packed, scale: float) -> str:
    """Return curves packed as text.

    `scale` is the number of codes of the residual per code of the ratio.
    """
    order, first = _along_n(curves.lengths)
    ratio, residual = (
        _steps(_from_bytes(codes), first) for codes in (curves.ratio, curves.residual)
    )
    stepped = structs.replace(
        curves,
        first_us=_transposed(curves.first_us, (len(curves.lengths), -1)),
        ratio=_to_bytes(ratio[order]),
        residual=_to_bytes((residual - _predicted_steps(ratio, scale))[order]),
    )
    stream = lzma.compress(msgpack.encode(stepped), format=lzma.FORMAT_ALONE, filters=[_FILTER])
    return base64.b85encode(stream).decode()


def unpacked(text: str, scale: float, *, stepped: bool) -> Packed:
    """Return the curves of a packed text.

    `scale` is as in `packed_text`; `stepped` says whether codes are steps along N, as `packed_text`
    writes them; else they are plain. Raises ValueError, IndexError, KeyError, lzma.LZMAError,
    msgspec.MsgspecError if the text was not packed so.
    """
    reader = lzma.LZMADecompressor(memlimit=_MOST_MEMORY)
    stream = reader.decompress(base64.b85decode(text), _MOST_BYTES)
    packed = msgpack.decode(stream, type=Packed)
    if not stepped:
        return packed
    if not np.isfinite(scale):
        raise ValueError("the ends of its codes are too far apart")
    lengths = packed.lengths
    if not len(packed.ratio) == len(packed.residual) == sum(lengths):
        raise ValueError("the number of codes is not that of the points")
    order, first = _along_n(lengths)
    ratio, residual = (
        np.empty(len(order), dtype=np.int64) for _ in (packed.ratio, packed.residual)
    )
    ratio[order], residual[order] = _from_bytes(packed.ratio), _from_bytes(packed.residual)
    ratio = _sums(ratio, first)
    residual = _sums(residual + _predicted_steps(_steps(ratio, first), scale), first)
    return structs.replace(
        packed,
        first_us=_transposed(packed.first_us, (-1, len(lengths))),
        ratio=_to_bytes(ratio),
        residual=_to_bytes(residual),
    )


def first_us_codes(first_us: NDArray[np.float64]) -> bytes:
    """Return the codes of T(first N) in microseconds: logarithms, within a tenth of a percent."""
    steps = np.round((np.log(first_us) - _LOWEST) * _STEPS_OF_E)
    return np.clip(steps, 0, np.iinfo(_LOGARITHM).max).astype(_LOGARITHM).tobytes()


def first_us_of(codes: bytes, curves: int) -> NDArray[np.float64]:
    """Return T(first N) in microseconds of the codes of `curves` curves.

    Raises ValueError if the bytes are neither 16-bit codes of all curves nor whole 32-bit numbers.
    """
    is_logarithm = len(codes) == curves * np.dtype(_LOGARITHM).itemsize
    values = np.frombuffer(codes, _LOGARITHM if is_logarithm else _FLOAT32).astype(np.float64)
    return np.asarray(np.exp(_LOWEST + values / _STEPS_OF_E) if is_logarithm else values)


def _along_n(lengths: Sequence[int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return an order of the points by their index along N, and each point's first of its curve.

    Points are stored curve after curve.
    """
    counts = np.array(lengths, dtype=np.int64)
    first = np.repeat(np.cumsum(counts) - counts, counts)
    return np.argsort(np.arange(len(first)) - first, kind="stable"), first


def _from_bytes(codes: bytes) -> NDArray[np.int64]:
    return np.frombuffer(codes, np.uint8).astype(np.int64)


def _to_bytes(numbers: NDArray[np.int64]) -> bytes:
    return (numbers % _CODES).astype(np.uint8).tobytes()


def _steps(codes: NDArray[np.int64], first: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the differences of successive codes; a curve's first point keeps its code."""
    previous = np.concatenate([codes[:1] * 0, codes[:-1]])
    return codes - np.where(np.arange(len(codes)) == first, 0, previous)


def _sums(steps: NDArray[np.int64], first: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the codes of steps, modulo the number of codes."""
    total = np.cumsum(steps)
    return (total - (total - steps)[first]) % _CODES


def _predicted_steps(ratio: NDArray[np.int64], scale: float) -> NDArray[np.int64]:
    """Return the predicted steps of the residual: those of the ratio, in the residual's codes."""
    steps: NDArray[np.float64] = np.rint(np.clip(ratio * scale, -_CLIP, _CLIP))
    return steps.astype(np.int64)


def _transposed(raw: bytes, shape: tuple[int, int]) -> bytes:
    """Return the bytes of a matrix of this shape in column order."""
    return np.frombuffer(raw, np.uint8).reshape(shape).T.tobytes()
