"""How a group's curves are packed: codes as steps along N, in one LZMA stream as Base85.

A step of log(T / T_form) is that of log(T(N) / T(baseline)) but for what the form says, which
hardly changes from one N to the next: what is left of it are small numbers. Nothing is lost.
"""

import base64
import lzma
from collections.abc import Sequence

import numpy as np
from msgspec import Struct, msgpack, structs
from numpy.typing import NDArray

_MOST_BYTES = 32 * 2**20
"""Unpacked, no group is larger."""
_MOST_MEMORY = 96 * 2**20
"""What unpacking may take; a stream of version 1 of the event asks for 65 MiB."""
_FILTER = {
    "id": lzma.FILTER_LZMA1, "preset": 9, "dict_size": 2**20, "lc": 0, "lp": 0, "pb": 0,
}  # fmt: skip
"""Each byte is by itself: none says how the next is to be read, nor does its place."""
_FLOAT32, _LOGARITHM = "<f4", "<u2"
"""How T(first N) is told: as it is, or as a logarithm in 16 bits."""
_LOWEST, _STEPS_OF_E = -5.0, 500.0
"""What the logarithm 0 stands for, ln of T in microseconds, and its steps to a factor of e."""
_CODES, _FAR = 256, 2.0**40
"""A step is told but for whole rounds of all codes; none is as far as that."""


class Packed(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A group's curves: columns, places of each curve's grid among all, and codes."""

    releases: list[str | None]
    routings: list[str | None]
    members: list[str]
    columns: dict[str, list[int | None]]
    """The coordinates; and of each curve the places of its release, routing, member and grid."""
    grids: list[list[int]]
    first_us: bytes
    """T(first N), float32 or a logarithm in 16 bits, the lowest byte first."""
    ratio: bytes
    residual: bytes

    @property
    def lengths(self) -> list[int]:
        """How many points each curve has."""
        return [len(self.grids[place]) for place in self.columns["grid"] if place is not None]


def squeezed(curves: Packed, scale: float) -> str:
    """Return curves as text.

    Parameters
    ----------
    scale
        How many codes of the residual one of the ratio is.
    """
    order, first = _along_n(curves.lengths)
    ratio, residual = (_steps(_bytes(each), first) for each in (curves.ratio, curves.residual))
    stepped = structs.replace(
        curves,
        first_us=_turned(curves.first_us, (len(curves.lengths), -1)),
        ratio=_codes(ratio[order]),
        residual=_codes((residual - _said(ratio, scale))[order]),
    )
    stream = lzma.compress(msgpack.encode(stepped), format=lzma.FORMAT_ALONE, filters=[_FILTER])
    return base64.b85encode(stream).decode()


def opened(text: str, scale: float, *, stepped: bool) -> Packed:
    """Return the curves of a text.

    Parameters
    ----------
    scale
        How many codes of the residual one of the ratio is.
    stepped
        Whether codes are steps along N, as `squeezed` writes them; else they are as they are.

    Raises
    ------
    ValueError, IndexError, KeyError, lzma.LZMAError, msgspec.MsgspecError
        The text is none that was packed so.
    """
    reader = lzma.LZMADecompressor(memlimit=_MOST_MEMORY)
    raw = reader.decompress(base64.b85decode(text), _MOST_BYTES)
    packed = msgpack.decode(raw, type=Packed)
    if not stepped:
        return packed
    if not np.isfinite(scale):
        raise ValueError("the ends of its codes are too far apart")
    lengths = packed.lengths
    if not len(packed.ratio) == len(packed.residual) == sum(lengths):
        raise ValueError("codes are not as many as points")
    order, first = _along_n(lengths)
    ratio, residual = (
        np.empty(len(order), dtype=np.int64) for _ in (packed.ratio, packed.residual)
    )
    ratio[order], residual[order] = _bytes(packed.ratio), _bytes(packed.residual)
    ratio = _sums(ratio, first)
    residual = _sums(residual + _said(_steps(ratio, first), scale), first)
    return structs.replace(
        packed,
        first_us=_turned(packed.first_us, (-1, len(lengths))),
        ratio=_codes(ratio),
        residual=_codes(residual),
    )


def told(first_us: NDArray[np.float64]) -> bytes:
    """Return T(first N) in microseconds, as it is kept: within a tenth of a percent."""
    steps = np.round((np.log(first_us) - _LOWEST) * _STEPS_OF_E)
    return np.clip(steps, 0, np.iinfo(_LOGARITHM).max).astype(_LOGARITHM).tobytes()


def first_us_of(kept: bytes, curves: int) -> NDArray[np.float64]:
    """Return T(first N) of so many curves, in microseconds; ValueError for another number."""
    logarithms = len(kept) == curves * np.dtype(_LOGARITHM).itemsize
    found = np.frombuffer(kept, _LOGARITHM if logarithms else _FLOAT32).astype(np.float64)
    return np.asarray(np.exp(_LOWEST + found / _STEPS_OF_E) if logarithms else found)


def _along_n(lengths: Sequence[int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return places of points by their place along N, and of each point that of its curve's first.

    Points lie curve after curve.
    """
    many = np.array(lengths, dtype=np.int64)
    first = np.repeat(np.cumsum(many) - many, many)
    return np.argsort(np.arange(len(first)) - first, kind="stable"), first


def _bytes(codes: bytes) -> NDArray[np.int64]:
    return np.frombuffer(codes, np.uint8).astype(np.int64)


def _codes(numbers: NDArray[np.int64]) -> bytes:
    return (numbers % _CODES).astype(np.uint8).tobytes()


def _steps(codes: NDArray[np.int64], first: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return what each point's code is more than the one before; of a curve's first the code."""
    before = np.concatenate([codes[:1] * 0, codes[:-1]])
    return codes - np.where(np.arange(len(codes)) == first, 0, before)


def _sums(steps: NDArray[np.int64], first: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the codes whose steps they are, as far as a byte tells them."""
    total = np.cumsum(steps)
    return (total - (total - steps)[first]) % _CODES


def _said(ratio: NDArray[np.int64], scale: float) -> NDArray[np.int64]:
    """Return what steps of the ratio say of those of the residual."""
    said: NDArray[np.float64] = np.rint(np.clip(ratio * scale, -_FAR, _FAR))
    return said.astype(np.int64)


def _turned(raw: bytes, shape: tuple[int, int]) -> bytes:
    """Return bytes column by column, of rows as long as a shape says."""
    return np.frombuffer(raw, np.uint8).reshape(shape).T.tobytes()
