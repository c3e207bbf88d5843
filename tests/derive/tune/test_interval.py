"""Intervals of few repeats: Student's t, as tables print it."""

import math

import pytest
from nearfree.derive.tune.interval import quantile, ratio_interval


@pytest.mark.parametrize(
    ("confidence", "degrees", "printed"),
    [
        (0.95, 1, 12.706), (0.95, 2, 4.303), (0.95, 3, 3.182), (0.95, 4, 2.776),
        (0.95, 30, 2.042), (0.99, 5, 4.032), (0.90, 10, 1.812),
    ],
)  # fmt: skip
def test_quantiles_are_those_that_tables_print(
    confidence: float, degrees: int, printed: float
) -> None:
    """Odd and even degrees of freedom have each a form of their own."""
    assert quantile(confidence, degrees) == pytest.approx(printed, abs=5e-4)


def test_an_interval_is_of_the_geometric_mean() -> None:
    """Half as fast and twice as fast are equally far from as fast."""
    found = ratio_interval([0.5, 2.0])
    assert found.value == pytest.approx(1)
    assert found.low == pytest.approx(1 / found.high)
    half = quantile(0.95, 1) * math.log(2)
    assert found.high == pytest.approx(math.exp(half))


def test_equal_repeats_leave_no_doubt_and_one_repeat_leaves_all() -> None:
    """The noise of one repeat is not known, so its interval has no end."""
    assert ratio_interval([3.0, 3.0, 3.0]).low == pytest.approx(3)
    alone = ratio_interval([3.0])
    assert (alone.value, alone.low, alone.high) == (pytest.approx(3), 0.0, math.inf)
