"""The power-mean sum of two parts of T(N), which overlap partly."""

import math

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nearfree.core.boundary import Ratio, boundary
from nearfree.derive.work_model.families import FAMILIES
from nearfree.derive.work_model.family import (
    Fitted,
    boundaries,
    column,
    family_for_dtype,
    latencies_us,
    neutral,
    power_mean_sum,
    ratios_of,
)

from derive.work_model.forms import of_family, start

PARTS = st.lists(st.floats(1e-6, 1e9), min_size=1, max_size=4)


@given(PARTS, st.floats(1.0, 8.0))
def test_between_the_largest_part_and_the_sum(parts: list[float], sharpness: float) -> None:
    """For any p the value is between the largest part and the sum of all parts."""
    mean = power_mean_sum(sharpness, *(np.array([part]) for part in parts))[0]
    assert max(parts) * (1 - 1e-12) <= mean <= sum(parts) * (1 + 1e-12)


@given(PARTS)
def test_a_plain_sum_at_p_1(parts: list[float]) -> None:
    """At p = 1 nothing overlaps: the value is the sum."""
    mean = power_mean_sum(1.0, *(np.array([part]) for part in parts))[0]
    assert mean == pytest.approx(sum(parts))


@given(PARTS, st.floats(1.0, 7.0), st.floats(0.0, 1.0))
def test_falling_with_p(parts: list[float], sharpness: float, more: float) -> None:
    """The value falls as p grows."""
    arrays = [np.array([part]) for part in parts]
    sharper = power_mean_sum(sharpness + more, *arrays)[0]
    assert sharper <= power_mean_sum(sharpness, *arrays)[0] * (1 + 1e-12)


def test_each_element_by_itself() -> None:
    """The largest part is taken element by element, not over the array."""
    mean = power_mean_sum(2.0, np.array([3.0, 4.0]), np.array([4.0, 3.0]))
    assert mean == pytest.approx([5.0, 5.0])


@pytest.mark.parametrize("name", FAMILIES)
def test_a_calibration_starts_between_its_ends(name: str) -> None:
    """Each constant has a name of its own, and its start lies strictly inside its range."""
    constants = FAMILIES[name].constants
    assert all(constant.low < constant.start < constant.high for constant in constants)
    assert len({constant.name for constant in constants}) == len(constants)


CURVES = st.lists(
    st.lists(st.sampled_from([0.7, 0.95, 1.0, 1.04, 1.12, 1.27, 1.4, 3.0]), max_size=9),
    min_size=1,
    max_size=5,
)


@given(CURVES, st.sampled_from([0.05, 0.1, 0.2, 0.3]), st.sampled_from([0.0, 0.03, 0.11]))
def test_a_boundary_is_the_one_of_a_measured_curve(
    curves: list[list[float]], epsilon: float, band: float
) -> None:
    """Row by row N_max and interval equal those of a measured curve with that uncertainty."""
    width = 1 + max(map(len, curves))
    ratio = np.array([[1.0, *curve, *[0.5] * (width - 1 - len(curve))] for curve in curves])
    counts = np.arange(width)[None, :] <= np.array([[len(curve)] for curve in curves])
    boundary_rows = boundaries(ratio, counts, epsilon, band)
    for row, curve in enumerate(curves):
        off = math.exp(band)
        points = [Ratio(n, r, r / off, r * off) for n, r in enumerate([1.0, *curve])]
        one = boundary(points, epsilon, 0)
        assert boundary_rows.last[row] == one.last_pass
        assert (boundary_rows.low[row], boundary_rows.high[row]) == (one.low, one.high)
        assert boundary_rows.low[row] <= boundary_rows.last[row] <= boundary_rows.high[row]


@pytest.mark.parametrize("name", FAMILIES)
def test_ratios_are_the_mean_of_the_hypotheses(name: str) -> None:
    """T(N) / T(baseline) is the geometric mean over hypotheses, and 1 at the baseline."""
    family, part = FAMILIES[name], of_family(name)
    values = {hypothesis: start(family) for hypothesis in family.hypotheses}
    fitted = Fitted(family=name, values=values, band=0.0)
    times = latencies_us(family, fitted, part.features)
    ratios = ratios_of(family, fitted, part.features)
    assert times.shape == (len(family.hypotheses), *part.counts.shape)
    assert (ratios[:, 0] == 1.0).all()
    mean = np.prod(times / times[:, :, :1], axis=0) ** (1 / len(family.hypotheses))
    assert ratios == pytest.approx(mean)


def test_a_format_s_own_constants() -> None:
    """The depth of a tile is fitted to products in NVFP4, and left out in other formats."""
    names = {
        dtype: {constant.name for constant in family_for_dtype(FAMILIES["gemm"], dtype).constants}
        for dtype in ("nvfp4", "bfloat16", "float8_block")
    }
    assert names["nvfp4"] == {constant.name for constant in FAMILIES["gemm"].constants}
    assert names["nvfp4"] - {"depth_us"} == names["bfloat16"] == names["float8_block"]
    for family in FAMILIES.values():
        assert {constant.name for constant in family_for_dtype(family, "int8").constants} | {
            *neutral(family)
        } == {constant.name for constant in family.constants}


def test_null_columns_are_nan_or_a_default() -> None:
    """A column is [rows, 1]; a null is NaN, or the default if one is given."""
    rows = pl.DataFrame({"span": [4, None]})
    assert column(rows, "span", 1.0).tolist() == [[4.0], [1.0]]
    assert np.isnan(column(rows, "span")).tolist() == [[False], [True]]
