"""Packed curves of a group: nothing is lost, and any other text is refused."""

import base64
import lzma
from math import inf, nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import msgpack
from msgspec.structs import replace
from nearfree.derive.reference.packing import (
    Packed,
    first_us_codes,
    first_us_of,
    packed_text,
    unpacked,
)


def squeezed_raw(curves: Packed) -> str:
    """Return packed text whose codes are stored unchanged."""
    return base64.b85encode(lzma.compress(msgpack.encode(curves))).decode()


def packed(lengths: list[int], seed: int = 1) -> Packed:
    """Return curves of some lengths with any codes."""
    random = np.random.default_rng(seed)
    grids = [list(range(1, length + 1)) for length in dict.fromkeys(lengths)]
    every = [len(grid) for grid in grids]
    names = ("backend_version", "routing", "member")
    return Packed(
        ["1.0"], [None], ["a"],
        {**{name: [0] * len(lengths) for name in names},
         "grid": [every.index(length) for length in lengths]},
        grids,
        random.bytes(4 * len(lengths)),
        random.bytes(sum(lengths)),
        random.bytes(sum(lengths)),
    )  # fmt: skip


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=9),
    st.integers(0, 99),
    st.floats(-1e300, 1e300),
)
def test_nothing_is_lost(lengths: list[int], seed: int, scale: float) -> None:
    """Codes of any values and lengths are unpacked bit for bit."""
    curves = packed(lengths, seed)
    assert unpacked(packed_text(curves, scale), scale, stepped=True) == curves


def test_what_follows_from_the_ratio_takes_no_bytes() -> None:
    """A residual that follows the ratio adds almost no bytes to it."""
    curves = packed([64] * 64)
    twice = bytes(2 * code % 256 for code in curves.ratio)
    alike = replace(curves, residual=twice)
    assert len(packed_text(alike, 2.0)) < 0.6 * len(packed_text(curves, 2.0))
    assert len(packed_text(alike, 0.0)) > 0.9 * len(packed_text(curves, 0.0))


@pytest.mark.parametrize(
    "change", [{"ratio": b"12"}, {"residual": b""}, {"first_us": b"123"}, {"grids": [[1], [1]]}]
)
def test_codes_that_are_not_those_of_the_points_are_refused(change: dict[str, object]) -> None:
    """Codes whose number is not that of the points are refused."""
    raw = squeezed_raw(replace(packed([2, 3]), **change))
    with pytest.raises(ValueError, match=r"number of codes|cannot reshape"):
        unpacked(raw, 1.0, stepped=True)


@pytest.mark.parametrize("scale", [inf, -inf, nan])
def test_ends_that_are_too_far_apart_are_refused(scale: float) -> None:
    """A range whose width is not a finite number is refused."""
    with pytest.raises(ValueError, match="too far apart"):
        unpacked(packed_text(packed([2]), 1.0), scale, stepped=True)


@given(st.lists(st.floats(0.01, 1e6), min_size=1, max_size=20))
def test_a_first_time_is_kept_within_a_tenth_of_a_percent(times: list[float]) -> None:
    """T(baseline) is stored as a 16-bit logarithm; the older 32-bit numbers are still read."""
    first_us = np.array(times)
    assert first_us_of(first_us_codes(first_us), len(times)) == pytest.approx(first_us, rel=1.01e-3)
    as_it_is = first_us.astype("<f4")
    assert first_us_of(as_it_is.tobytes(), len(times)).tolist() == as_it_is.tolist()
