"""Intervals of few repeats: Student's t, as tables print it."""

import math

import pytest
from nearfree.derive.tune.interval import Interval, ratio_interval, stratified_interval, t_quantile


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
    """Quantiles equal printed tables, for odd and even degrees of freedom."""
    assert t_quantile(confidence, degrees) == pytest.approx(printed, abs=5e-4)


def test_an_interval_is_of_the_geometric_mean() -> None:
    """Half and twice the speed are equally far from no change."""
    interval = ratio_interval([0.5, 2.0])
    assert interval.value == pytest.approx(1)
    assert interval.low == pytest.approx(1 / interval.high)
    half = t_quantile(0.95, 1) * math.log(2)
    assert interval.high == pytest.approx(math.exp(half))


def test_equal_repeats_leave_no_doubt_and_one_repeat_leaves_all() -> None:
    """Equal repeats have an interval of no width; one repeat has no ends."""
    assert ratio_interval([3.0, 3.0, 3.0]).low == pytest.approx(3)
    alone = ratio_interval([3.0])
    assert (alone.value, alone.low, alone.high) == (pytest.approx(3), 0.0, math.inf)


def test_noise_within_strata_is_added_and_what_lies_between_them_is_not() -> None:
    """Twice 0.02 and three times 0.03 make a variance of 0.13, with 2.99 degrees of freedom: 2."""
    strata = [0.0, 0.2], [5.1, 5.1, 5.4]
    interval = stratified_interval(1.5, strata)
    half = t_quantile(0.95, 2) * math.sqrt(2 * 0.02 + 3 * 0.03)
    assert int((0.04 + 0.09) ** 2 / (0.04**2 / 1 + 0.09**2 / 2)) == 2
    assert interval.value == 1.5
    assert math.log(interval.high / 1.5) == pytest.approx(half)
    assert math.log(1.5 / interval.low) == pytest.approx(half)
    narrower = stratified_interval(1.5, strata, 0.5)
    assert math.log(narrower.high / 1.5) == pytest.approx(
        half * t_quantile(0.5, 2) / t_quantile(0.95, 2)
    )


def test_strata_without_noise_leave_no_doubt_and_one_visit_leaves_all() -> None:
    """However far strata lie apart; what was visited once has noise that is not known."""
    assert stratified_interval(2.0, [[0.1, 0.1], [7.0, 7.0, 7.0]]) == Interval(2.0, 2.0, 2.0)
    alone = stratified_interval(2.0, [[0.1, 0.1], [7.0]])
    assert alone == Interval(2.0, 0.0, math.inf)
