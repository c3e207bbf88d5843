"""N_max from a curve: hand-made curves, intervals and the properties that hold for all curves."""

import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nearfree.core.boundary import (
    Ratio,
    boundary,
    cautious_interval,
    interval_of,
    median,
    median_interval,
    ratios,
    unpaired_ratios,
)
from nearfree.core.protocols import Adaptive, Paired
from nearfree.errors import EvidenceError

times = st.floats(1.0, 1e6)
tolerances = st.floats(0.001, 0.999)


def curve(values: dict[int, float], margin: float = 0.0) -> list[Ratio]:
    """Return a curve whose intervals reach `margin` to either side of the ratio."""
    return [Ratio(n, value, value - margin, value + margin) for n, value in values.items()]


@st.composite
def any_curve(draw: st.DrawFn) -> list[Ratio]:
    """Draw a curve over powers of two, with any ratios and any intervals around them."""
    size = draw(st.integers(1, 8))
    points = [Ratio(1, 1.0, 1.0, 1.0)]
    for exponent in range(1, size):
        low, value, high = sorted(draw(st.tuples(*[st.floats(0.2, 5.0)] * 3)))
        points.append(Ratio(2**exponent, value, low, high))
    return points


RISING = {1: 1.0, 2: 1.05, 4: 1.1, 8: 1.5, 16: 3.0}
DENTED = {1: 1.0, 2: 1.3, 4: 1.1, 8: 1.5, 16: 1.2, 32: 3.0}


def test_the_last_pass_and_the_first_exit_agree_on_a_rising_curve() -> None:
    """On a rising curve N_max is the last N within the tolerance, by either definition."""
    n_max = boundary(curve(RISING), 0.2, 1)
    assert (n_max.last_pass, n_max.first_exit, n_max.next_n) == (4, 4, 8)
    assert (n_max.low, n_max.high, n_max.verdict) == (4, 4, "sharp")


def test_a_curve_that_comes_back() -> None:
    """A match of two tokens goes before one of one; `first` takes the first place instead."""
    n_max = boundary(curve(DENTED), 0.2, 1)
    assert (n_max.last_pass, n_max.first_exit, n_max.next_n) == (16, 1, 32)


def test_the_tolerance_itself_passes() -> None:
    """A ratio of exactly 1 + epsilon is within the tolerance, the next number above is not."""
    limit, beyond = 1.25, math.nextafter(1.25, 2)
    assert boundary(curve({1: 1.0, 2: limit, 4: 9.0}), 0.25, 1).last_pass == 2
    assert boundary(curve({1: 1.0, 2: beyond, 4: 9.0}), 0.25, 1).last_pass == 1


def test_the_baseline_always_passes() -> None:
    """N_max is never below the baseline, even if nothing else is within the tolerance."""
    n_max = boundary(curve({1: 1.0, 2: 2.0, 4: 4.0}, 0.05), 0.2, 1)
    assert (n_max.last_pass, n_max.first_exit, n_max.low, n_max.high) == (1, 1, 1, 1)
    assert (n_max.next_n, n_max.verdict) == (2, "sharp")


def test_points_under_the_baseline_do_not_count() -> None:
    """With a baseline above 1 a violation below it is no exit."""
    n_max = boundary(curve({1: 5.0, 2: 5.0, 8: 1.0, 16: 1.1, 32: 2.0}), 0.2, 8)
    assert (n_max.last_pass, n_max.first_exit, n_max.next_n) == (16, 16, 32)


def test_a_curve_that_never_exits_is_censored() -> None:
    """A curve within the tolerance to its end has no next N and is censored."""
    n_max = boundary(curve({1: 1.0, 2: 1.05, 4: 1.1}), 0.2, 1)
    assert (n_max.last_pass, n_max.first_exit, n_max.next_n) == (4, 4, None)
    assert n_max.verdict == "censored"


def test_an_interval_that_reaches_the_end_is_censored() -> None:
    """A boundary whose interval reaches the end of the grid is censored, though it has a next N."""
    n_max = boundary([*curve({1: 1.0, 2: 1.1}), Ratio(4, 1.3, 1.15, 1.4)], 0.2, 1)
    assert (n_max.last_pass, n_max.next_n, n_max.low, n_max.high) == (2, 4, 2, 4)
    assert n_max.verdict == "censored"


def test_wide_intervals_bracket_the_boundary() -> None:
    """The interval holds each N that the ratios' intervals leave open."""
    n_max = boundary(curve({1: 1.0, 2: 1.05, 4: 1.15, 8: 1.25, 16: 2.0}, 0.1), 0.2, 1)
    assert (n_max.last_pass, n_max.low, n_max.high) == (4, 2, 8)
    assert n_max.verdict == "bracketed"


@given(any_curve(), tolerances)
def test_the_parts_of_a_boundary_agree(points: list[Ratio], epsilon: float) -> None:
    """On any curve first exit <= last pass, which lies in its interval and before the next N."""
    n_max = boundary(points, epsilon, 1)
    grid = [point.n for point in points]
    assert {n_max.last_pass, n_max.first_exit, n_max.low, n_max.high} <= set(grid)
    assert n_max.first_exit <= n_max.last_pass
    assert n_max.low <= n_max.last_pass <= n_max.high
    assert n_max.next_n == min((n for n in grid if n > n_max.last_pass), default=None)
    assert (n_max.verdict == "censored") == (n_max.high == grid[-1])
    if n_max.verdict != "censored":
        assert (n_max.verdict == "sharp") == (n_max.low == n_max.high)


@given(any_curve(), tolerances, tolerances)
def test_a_wider_tolerance_never_lowers_the_boundary(
    points: list[Ratio], epsilon: float, other_epsilon: float
) -> None:
    """N_max, its interval and the first exit are monotone in epsilon."""
    tight, loose = (boundary(points, epsilon, 1) for epsilon in sorted((epsilon, other_epsilon)))
    for field in ("last_pass", "first_exit", "low", "high"):
        assert getattr(tight, field) <= getattr(loose, field)


@given(st.lists(times, min_size=1, max_size=30))
def test_the_median_is_the_standard_librarys(values: list[float]) -> None:
    """The median equals that of `statistics`."""
    assert median(values) == statistics.median(values)


@pytest.mark.parametrize("size", range(1, 6))
def test_few_values_give_their_full_range(size: int) -> None:
    """Under six values the interval is the full range, as no smaller one reaches 95 %."""
    values = [float(value) for value in range(size)]
    assert median_interval(values[::-1]) == (0.0, size - 1.0)


@pytest.mark.parametrize(
    ("size", "rank"),
    [(6, 1), (8, 1), (9, 2), (10, 2), (12, 3), (15, 4), (20, 6), (25, 8), (50, 18)],
)
def test_the_ranks_are_those_of_the_printed_tables(size: int, rank: int) -> None:
    """The interval's ranks are those that tables of the sign test print."""
    values = [float(value) for value in range(1, size + 1)]
    assert median_interval(values) == (rank, size + 1 - rank)


@given(st.integers(6, 120))
def test_the_interval_is_the_shortest_that_covers(size: int) -> None:
    """The binomial coverage of the interval's ranks is 95 % or more, that of the next is not."""

    def coverage(rank: int) -> float:
        return 1 - 2 * sum(math.comb(size, i) for i in range(rank)) / 2**size

    rank = int(median_interval([float(value) for value in range(1, size + 1)])[0])
    assert coverage(rank) >= 0.95 > coverage(rank + 1)


@pytest.mark.parametrize("size", [6, 9, 16, 20])
def test_the_interval_covers_the_true_median(size: int) -> None:
    """The 95 % interval holds the true median of skewed data in at least 93 % of 2,000 draws."""
    source = random.Random(7)  # noqa: S311 (a simulation, no secret)
    covered = 0
    for _ in range(2000):
        low, high = median_interval([source.lognormvariate(0, 0.5) for _ in range(size)])
        covered += low <= 1.0 <= high
    assert covered >= 0.93 * 2000


@given(
    st.lists(st.tuples(times, times, times), min_size=1, max_size=12),
    st.lists(st.integers(-20, 20), min_size=12, max_size=12),
)
def test_a_common_drift_cancels(rows: list[tuple[float, ...]], drift: list[int]) -> None:
    """A factor that all N of a round share changes no ratio."""
    grid = (1, 2, 4)
    steady = {n: {r: row[i] for r, row in enumerate(rows)} for i, n in enumerate(grid)}
    drifting = {n: {r: us * 2.0 ** drift[r] for r, us in steady[n].items()} for n in grid}
    assert ratios(drifting, 1) == ratios(steady, 1)


def test_rounds_without_the_baseline_are_dropped() -> None:
    """A round without the baseline does not count for the other N."""
    points = ratios({1: {0: 10.0, 2: 20.0}, 2: {0: 11.0, 1: 1000.0, 2: 26.0}}, 1)
    assert [point.n for point in points] == [1, 2]
    assert points[1].value == pytest.approx((1.1 + 1.3) / 2)
    assert (points[1].low, points[1].high) == pytest.approx((1.1, 1.3))


def test_an_n_that_never_met_the_baseline_is_left_out() -> None:
    """An N without a round in common with the baseline has no ratio."""
    points = ratios({1: {0: 10.0}, 2: {1: 11.0}, 4: {0: 12.0}}, 1)
    assert [point.n for point in points] == [1, 4]


@pytest.mark.parametrize("points", [{2: {0: 1.0}}, {1: {}, 2: {0: 1.0}}, {}])
def test_a_curve_without_its_baseline_is_refused(points: dict[int, dict[int, float]]) -> None:
    """A curve without a value of its baseline is refused, naming the baseline."""
    with pytest.raises(EvidenceError, match="lacks its baseline N=1"):
        ratios(points, 1)


def test_a_rank_that_just_keeps_the_confidence_counts() -> None:
    """Two values hold the median in half of all cases: at that confidence nothing is widened."""
    assert cautious_interval([1.5, 2.0], 0.5) == (1.5, 2.0)
    assert cautious_interval([1.5, 2.0], 0.51) == (1.5 * 1.5 / 2.0, 2.0 * 2.0 / 1.5)


def test_ratios_come_by_n() -> None:
    """Ratios rise in N, in whichever order a curve has its points."""
    curve = {4: {0: 3.0}, 1: {0: 2.0}, 2: {0: 2.5}}
    for found in (ratios(curve, 1), unpaired_ratios(curve, 1)):
        assert [(ratio.n, ratio.value) for ratio in found] == [(1, 1.0), (2, 1.25), (4, 1.5)]


def test_an_interval_of_too_few_values_is_widened() -> None:
    """Where no order statistics reach the confidence, the range is widened by its own factor."""
    assert cautious_interval([1.0, 2.0], 0.95) == (0.5, 4.0)
    values = [float(value) for value in range(1, 7)]
    assert cautious_interval(values, 0.95) == median_interval(values) == (1.0, 6.0)
    assert cautious_interval(values, 0.99) == (pytest.approx(1 / 6), 36.0)


@pytest.mark.parametrize(("looks", "rank"), [(1, 10), (5, 8), (50, 6)])
def test_looks_share_the_error(looks: int, rank: int) -> None:
    """Each look gets its part of the error: the more looks, the wider the intervals."""
    values = [float(value) for value in range(1, 31)]
    protocol = Adaptive(looks=tuple(range(1, looks)), confidence=0.95)
    low, high = interval_of(protocol)(values)
    assert (low, high) == (rank, 31 - rank)
    pairs = Paired(rounds=looks * 3, look_every=3)
    assert interval_of(pairs)(values) == (low, high)


def test_unpaired_intervals_divide_opposite_ends() -> None:
    """The interval runs from the smallest ratio of the two intervals to the largest."""
    curve = {1: dict(enumerate((10.0, 20.0, 30.0))), 2: dict(enumerate((20.0, 40.0, 60.0))), 4: {}}
    baseline, point = unpaired_ratios(curve, 1)
    assert (baseline.value, baseline.low, baseline.high) == (1.0, 1.0, 1.0)
    assert (point.value, point.low, point.high) == (2.0, 20 / 30, 6.0)


def test_an_interval_wider_than_the_limit_is_undecided() -> None:
    """The same curve is bracketed without a limit on the width, and undecided beyond the limit."""
    curve = [Ratio(1, 1, 1, 1), Ratio(2, 1.1, 1.0, 1.3), Ratio(4, 1.3, 1.1, 1.4), Ratio(8, 2, 2, 2)]
    n_max = boundary(curve, 0.2, 1)
    assert (n_max.low, n_max.high, n_max.verdict) == (1, 4, "bracketed")
    assert boundary(curve, 0.2, 1, resolution=1.15).verdict == "undecided"
    assert boundary(curve, 0.2, 1, resolution=4.0).verdict == "bracketed"
    later = [*curve[:1], Ratio(2, 1.1, 1.1, 1.1), *curve[2:]]
    assert (boundary(later, 0.2, 1).low, boundary(later, 0.2, 1).high) == (2, 4)
    assert boundary(later, 0.2, 1, resolution=2.0).verdict == "bracketed"
    assert boundary(later, 0.2, 1, resolution=1.9).verdict == "undecided"


def test_an_interval_that_ends_at_the_limit_is_within_it() -> None:
    """T(N) <= (1 + epsilon) T(1) holds at its limit: for a ratio, and both ends of its interval."""
    at_limit = [Ratio(1, 1.0, 1.0, 1.0), Ratio(2, 1.5, 1.5, 1.5), Ratio(4, 2.0, 1.5, 2.0)]
    found = boundary(at_limit, 0.5, 1)
    assert (found.last_pass, found.first_exit, found.low, found.high) == (2, 2, 2, 4)
