"""Composing a model's boundary from its modules: the sum of their times, and their minimum."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from nearfree.core.boundary import boundary, ratios
from nearfree.decoders.ranks.modules import ATTENTION, HEAD, OUTPUT, QKV
from nearfree.decoders.ranks.modules import DENSE as FFN
from nearfree.errors import EvidenceError
from nearfree.preregister.composed import by_minimum, by_sum

from preregister.apart import GRID, by_round, knee, measured, modules_of, timed

MODULES = modules_of()
ONE, OTHER = (replace(use, count=1) for use in MODULES[:2])
US = {QKV: 10.0, ATTENTION: 20.0, OUTPUT: 30.0, FFN: 40.0, HEAD: 50.0}


def test_each_module_counts_as_often_as_it_runs() -> None:
    """T(N) is the sum of the modules' times, layers times for all but the LM head."""
    composed = by_sum(MODULES, timed(MODULES, lambda role, n: US[role] * n), 1, 0.2)
    total = 3 * (10 + 20 + 30 + 40) + 50
    assert composed.curve == pytest.approx({n: 1.01 * total * n for n in GRID})
    assert (composed.n_max, composed.low, composed.high) == (1, 1, 1)
    assert composed.margin == pytest.approx(2.0)


def test_the_boundary_of_a_known_sum() -> None:
    """One module of a third of T(1) that doubles a step passes 10 %, 40 % and 300 % where it must.

    T(N) / T(1) is 1, 1, 4/3, 2 where that module is flat up to two positions.
    """
    third = {use.role: 100.0 / use.count for use in MODULES if use.role in (FFN, HEAD, QKV)}

    def us(role: str, n: int) -> float:
        return third.get(role, 0.001) * (knee(2)(n) if role == FFN else 1.0)

    apart = timed(MODULES, us)
    assert [by_sum(MODULES, apart, 1, epsilon).n_max for epsilon in (0.1, 0.4, 3.0)] == [2, 4, 8]
    assert by_sum(MODULES, apart, 1, 0.1).limiting_module == FFN


def test_rounds_are_summed_round_by_round() -> None:
    """What one module loses and another gains in the same round does not widen the interval."""
    one = by_round(ONE, {1: (10, 20, 30), 2: (30, 10, 20)})
    other = by_round(OTHER, {1: (30, 20, 10), 2: (10, 30, 20)})
    composed = by_sum((ONE, OTHER), measured(*one, *other), 1, 0.01)
    assert (composed.n_max, composed.low, composed.high, composed.margin) == (2, 2, 2, 1.0)
    assert composed.curve == {1: 40.0, 2: 40.0}


def test_what_limits_grows_most() -> None:
    """The LM head grows twice as much as a layer's FFN, and three layers of that grow more."""
    slopes = {HEAD: 2.0, FFN: 1.0}
    apart = timed(MODULES, lambda role, n: 100 + slopes.get(role, 0.0) * (n - 1))
    composed = by_sum(MODULES, apart, 1, 0.001)
    assert (composed.n_max, composed.limiting_module) == (1, FFN)
    assert composed.limiting_term == "3 of the 5 us by which the sum grows from N = 1 to 2"


def test_growth_is_that_up_to_the_next_n() -> None:
    """What jumps after the boundary's next N does not limit it; at the grid's end all counts."""

    def us(role: str, n: int) -> float:
        jump = {ATTENTION: 100.0 * (n >= 4), QKV: 900.0 * (n >= 8)}
        return 100 + jump.get(role, 0.0)

    apart = timed(MODULES, us)
    assert by_sum(MODULES, apart, 1, 0.1).limiting_module == ATTENTION
    every = by_sum(MODULES, apart, 1, 99.0)
    assert (every.n_max, every.limiting_module) == (8, QKV)
    assert "from N = 1 to 8" in every.limiting_term


def test_the_minimum_is_of_the_main_modules() -> None:
    """The minimum is over the boundaries of attention and the FFN."""
    knees = {ATTENTION: 4, FFN: 2, HEAD: 1, QKV: 1}
    composed = by_minimum(
        MODULES, timed(MODULES, lambda role, n: knee(knees.get(role, 8))(n)), 1, 0.2
    )
    assert (composed.n_max, composed.low, composed.high) == (2, 2, 2)
    assert composed.limiting_module == FFN
    assert composed.limiting_term == "the smallest of attention 4, Dense FFN 2"
    assert composed.margin == 2.0
    assert composed.curve == {}


def test_the_minimum_is_whichever_is_smaller() -> None:
    """It is no matter of the modules' names; a module alone has none beside it."""
    knees = {ATTENTION: 2, FFN: 8}
    apart = timed(MODULES, lambda role, n: knee(knees.get(role, 8))(n))
    composed = by_minimum(MODULES, apart, 1, 0.2)
    assert (composed.limiting_module, composed.n_max, composed.margin) == (ATTENTION, 2, 4.0)
    alone = by_minimum([use for use in MODULES if use.role == ATTENTION], apart, 1, 0.2)
    assert (alone.n_max, alone.margin) == (2, None)


def test_ratios_refer_to_the_baseline() -> None:
    """From a later baseline on, what came before it does not count."""

    def us(_: str, n: int) -> float:
        return {1: 1.0, 2: 10.0, 4: 11.0, 8: 30.0}[n]

    apart = timed(MODULES, us, baseline=2)
    for compose in (by_sum, by_minimum):
        assert compose(MODULES, apart, 2, 0.2).n_max == 4
        assert compose(MODULES, apart, 1, 0.2).n_max == 1


CURVES = st.lists(
    st.lists(st.integers(1, 1000), min_size=5, max_size=5), min_size=len(GRID), max_size=len(GRID)
)
EPSILONS = st.sampled_from([0.05, 0.2, 1.0])


@given(CURVES, st.integers(1, 40), EPSILONS)
def test_of_one_module_both_say_the_same(
    times: list[list[int]], count: int, epsilon: float
) -> None:
    """With a single module the sum and the minimum are its own boundary, however often it runs."""
    use = replace(OTHER, count=count)
    curve = {n: [float(us) for us in rounds] for n, rounds in zip(GRID, times, strict=True)}
    apart = measured(*by_round(use, curve))
    own = boundary(ratios({n: dict(enumerate(us)) for n, us in curve.items()}, 1), epsilon, 1)
    for compose in (by_sum, by_minimum):
        composed = compose((use,), apart, 1, epsilon)
        assert (composed.n_max, composed.low, composed.high) == (own.last_pass, own.low, own.high)
        assert composed.limiting_module == ATTENTION


@given(CURVES, CURVES, st.integers(-8, 8), EPSILONS)
def test_a_common_factor_does_not_matter(
    one: list[list[int]], other: list[list[int]], power: int, epsilon: float
) -> None:
    """A clock that runs at another speed gives the same boundary, interval and limiter."""
    boundaries = []
    for factor in (1.0, 2.0**power):
        visits = [
            visit
            for use, times in zip(MODULES[:2], (one, other), strict=True)
            for visit in by_round(
                use,
                {n: [factor * us for us in r] for n, r in zip(GRID, times, strict=True)},
            )
        ]
        composed = by_sum(MODULES[:2], measured(*visits), 1, epsilon)
        boundaries.append(
            (composed.n_max, composed.low, composed.high, composed.limiting_module, composed.margin)
        )
    assert boundaries[0] == boundaries[1]


@pytest.mark.parametrize("compose", [by_sum, by_minimum])
def test_a_module_that_was_not_measured_is_named(compose: object) -> None:
    """A model without one of its modules is refused, and the module is named."""
    rest = [use for use in MODULES if use.role != FFN]
    with pytest.raises(EvidenceError, match="Dense FFN was not measured in isolation"):
        compose(MODULES, timed(rest, lambda _, n: n), 1, 0.2)  # type: ignore[operator]


@pytest.mark.parametrize("compose", [by_sum, by_minimum])
def test_a_missing_baseline_is_named(compose: object) -> None:
    """Without the baseline there is nothing that T(N) could be held against."""
    with pytest.raises(EvidenceError, match="lacks its baseline N=3"):
        compose(MODULES, timed(MODULES, lambda _, n: n), 3, 0.2)  # type: ignore[operator]


def test_an_n_that_not_all_have_is_left_out() -> None:
    """The sum is over the N and rounds that every module has."""
    one = by_round(ONE, {1: (10, 10, 10), 2: (10, 10, 10), 4: (10, 10, 10)})
    other = by_round(OTHER, {1: (20, 30, 40), 2: (20, 30)})
    composed = by_sum((ONE, OTHER), measured(*one, *other), 1, 0.2)
    assert composed.curve == {1: 40.0, 2: 35.0}
    assert composed.n_max == 2


def test_an_n_without_a_common_round_is_left_out() -> None:
    """Where no round is clean in every module, T(N) is not known there, and elsewhere it is."""
    one = by_round(ONE, {1: (10, 10, 10), 2: (10, 10, 10)})
    other = by_round(OTHER, {1: (20, 20, 20), 2: (20, 20, 20)})
    disturbed = [(ONE, 2, 0), (OTHER, 2, 1), (OTHER, 2, 2)]
    visits = [
        replace(visit, dirty=((use, visit.n, visit.round) in disturbed,))
        for use, of in ((ONE, one), (OTHER, other))
        for visit in of
    ]
    composed = by_sum((ONE, OTHER), measured(*visits), 1, 0.2)
    assert (composed.n_max, composed.curve) == (1, {1: 30.0})
