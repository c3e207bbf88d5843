"""Boundaries from predicted ratios: those of a measured curve, with an interval around them."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nearfree.core.boundary import Ratio, boundary
from nearfree.derive.work_model.families import FAMILIES
from nearfree.derive.work_model.model import Fitted, boundaries, latencies_us, ratios_of

from derive.work_model.forms import of_family, start

CURVES = st.lists(
    st.lists(st.sampled_from([0.7, 0.95, 1.0, 1.04, 1.12, 1.27, 1.4, 3.0]), max_size=9),
    min_size=1,
    max_size=5,
)


@given(CURVES, st.sampled_from([0.05, 0.1, 0.2, 0.3]), st.sampled_from([0.0, 0.03, 0.11]))
def test_a_boundary_is_the_one_of_a_measured_curve(
    curves: list[list[float]], epsilon: float, band: float
) -> None:
    """Row by row, last pass, first exit and interval are those of a curve that is so uncertain."""
    width = 1 + max(map(len, curves))
    ratio = np.array([[1.0, *each, *[0.5] * (width - 1 - len(each))] for each in curves])
    counts = np.arange(width)[None, :] <= np.array([[len(each)] for each in curves])
    found = boundaries(ratio, counts, epsilon, Fitted(family="any", values={}, band=band))
    for row, each in enumerate(curves):
        off = math.exp(band)
        points = [Ratio(n, r, r / off, r * off) for n, r in enumerate([1.0, *each])]
        one = boundary(points, epsilon, 0)
        assert (found.last[row], found.first_exit[row]) == (one.last_pass, one.first_exit)
        assert (found.low[row], found.high[row]) == (one.low, one.high)
        assert found.low[row] <= found.last[row] <= found.high[row]


@pytest.mark.parametrize("name", FAMILIES)
def test_ratios_are_the_mean_of_the_hypotheses(name: str) -> None:
    """T(N) / T(baseline) is the geometric mean over hypotheses, and 1 at the baseline."""
    family, part = FAMILIES[name], of_family(name)
    values = {hypothesis: start(family) for hypothesis in family.hypotheses}
    fitted = Fitted(family=name, values=values, band=0.0)
    times = latencies_us(family, fitted, part.features)
    found = ratios_of(family, fitted, part.features)
    assert times.shape == (len(family.hypotheses), *part.counts.shape)
    assert (found[:, 0] == 1.0).all()
    mean = np.prod(times / times[:, :, :1], axis=0) ** (1 / len(family.hypotheses))
    assert found == pytest.approx(mean)
