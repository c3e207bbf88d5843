"""Constants of an engine's T(N): non-negative, by least relative squares, with a band."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nearfree.derive.work_model.engine import (
    PASS,
    SERVED,
    EngineConstants,
    FittedCurve,
    fit_engine,
    nonnegative,
)

VALUES = st.one_of(st.just(0.0), st.floats(0.01, 10.0))


@given(st.integers(0, 2**32 - 1), st.integers(1, 6), st.integers(0, 12))
def test_least_squares_without_negatives_meets_its_conditions(
    seed: int, columns: int, more: int
) -> None:
    """At the minimum positive constants have slope zero, and no zero one would lower the error."""
    dice = np.random.default_rng(seed)
    matrix = dice.normal(size=(columns + more, columns))
    wanted = dice.normal(size=columns + more)
    solution = nonnegative(matrix, wanted)
    assert (solution >= 0).all()
    slope = matrix.T @ (wanted - matrix @ solution)
    assert slope[solution > 0] == pytest.approx(0.0, abs=1e-6)
    assert (slope <= 1e-6).all()


@given(st.lists(VALUES, min_size=4, max_size=4))
def test_exact_constants_are_found_again(values: list[float]) -> None:
    """Non-negative constants are found again for terms of any size."""
    dice = np.random.default_rng(1)
    matrix = dice.uniform(1, 2, size=(9, 4)) * [0.1, 1.0, 3.0, 10.0]
    assert nonnegative(matrix, matrix @ values) == pytest.approx(values, rel=1e-4, abs=1e-4)


def test_a_term_that_all_points_lack_is_zero() -> None:
    """A column of zeros gets the constant zero, and the other constants are found."""
    matrix = np.array([[1.0, 0.0], [2.0, 0.0]])
    assert nonnegative(matrix, np.array([3.0, 6.0])).tolist() == pytest.approx([3.0, 0.0])


def curve(latency_us: dict[int, float], name: str = "a") -> FittedCurve:
    """Return a curve of a kernel with one row a pass, plus a constant per forward."""
    return FittedCurve(
        name,
        latency_us,
        {n: {f"k: {PASS}": n, f"k: {SERVED}": n, "forward": 1.0} for n in latency_us},
        1,
    )


def test_relative_errors_count() -> None:
    """For the values 1 and 3 of one constant the least relative squares give 4/3 over 10/9."""
    terms = {n: {"forward": 1.0} for n in (1, 2)}
    fitted = fit_engine([FittedCurve("a", {1: 1.0, 2: 3.0}, terms, 1)])
    assert fitted.values["forward"] == pytest.approx((1 + 1 / 3) / (1 + 1 / 9))


def test_served_rows_that_go_with_passes_have_no_constant() -> None:
    """If every pass serves equally many rows, the rows have no constant of their own."""
    fitted = fit_engine([curve({n: 5.0 + 2.0 * n for n in range(1, 9)})])
    assert fitted.values == pytest.approx({f"k: {PASS}": 2.0, "forward": 5.0})
    assert fitted.latency_us({f"k: {PASS}": 10, f"k: {SERVED}": 10, "forward": 1}) == (
        pytest.approx(25.0)
    )


def test_the_band_is_that_of_ratios() -> None:
    """Exact curves have no band; a constant factor on a whole curve does not widen it."""
    exact = curve({n: 5.0 + 2.0 * n for n in range(1, 9)})
    assert fit_engine([exact]).band == pytest.approx(0.0, abs=1e-9)
    slower = curve({n: 1.2 * us for n, us in exact.latency_us.items()}, "b")
    assert fit_engine([exact, slower]).band == pytest.approx(0.0, abs=1e-9)


def test_the_band_holds_nine_points_in_ten_and_is_wider_for_few_points() -> None:
    """One constant and ten points, two of them off: sqrt(10 / 9) times the ninth's error."""
    terms = {n: {"forward": 1.0} for n in range(1, 11)}
    latency = dict.fromkeys(range(1, 11), 1.0) | {5: 1.1, 6: 1.1}
    fitted = fit_engine([FittedCurve("a", latency, terms, 1)])
    assert fitted.band == pytest.approx((10 / 9) ** 0.5 * np.log(1.1))


def test_what_was_not_fitted_costs_nothing() -> None:
    """T of a forward is the sum over the constants that were fitted."""
    known = EngineConstants(values={"a": 2.0}, band=0.0, points=1, curves=("c",))
    assert known.latency_us({"a": 3.0, "b": 7.0}) == 6.0
