"""Robust or fragile boundaries, by tolerances and noise."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nearfree.core.boundary import Ratio, boundary
from nearfree.derive.tables.robust import Robustness, robustness

TOLERANCES = (0.05, 0.1, 0.15, 0.2, 0.3)
EPSILON = 0.2
UNJUDGED = "no intervals are printed, so noise is not judged"
Row = dict[str, Any]


def judged(
    ratios: dict[int, float], noise: float = 0.0, resolution: float | None = None
) -> Robustness:
    """Return the verdict on a curve whose ratios have a relative error."""
    curve = [
        Ratio(n, r, r * (1 - noise) if n > 1 else 1, r * (1 + noise) if n > 1 else 1)
        for n, r in ratios.items()
    ]
    rows = []
    for epsilon in TOLERANCES:
        limits = boundary(curve, epsilon, 1, resolution if epsilon == EPSILON else None)
        rows.append(
            {"epsilon": epsilon, "n_max": limits.last_pass, "next_n": limits.next_n, "noisy": False,
             "n_low": limits.low, "n_high": limits.high, "verdict": limits.verdict}
        )  # fmt: skip
    points = {
        p.n: {"row_id": f"latency:{p.n}", "n": p.n, "baseline": 1, "ratio": p.value,
              "ratio_low": p.low, "ratio_high": p.high}
        for p in curve
    }  # fmt: skip
    return robustness(rows, points, EPSILON)


def printed(*n_max: int, noisy: bool = False) -> Robustness:
    """Return the verdict on printed values, on powers of two."""
    rows = [
        {"epsilon": e, "n_max": n, "next_n": 2 * n, "noisy": noisy, "verdict": "printed"}
        for e, n in zip(TOLERANCES, n_max, strict=True)
    ]
    return robustness(rows, {}, EPSILON)


def test_a_staircase_is_robust() -> None:
    """Equal N at every tolerance and a jump beyond all intervals are robust."""
    row = judged({1: 1.0, 16: 1.02, 64: 1.03, 65: 2.0}, noise=0.01)
    assert row == (
        True,
        "the same N from 5% to 30%; the step at N = 65 is +94%",
        ("latency:64", "latency:65"),
    )


def test_a_leap_is_fragile() -> None:
    """A move by more than one grid step between tolerances is fragile, with the ratios."""
    row = judged({1: 1.0, 16: 1.02, 32: 1.23, 48: 1.25, 64: 1.27, 80: 2.0})
    assert not row.robust
    assert row.why == (
        "N_max moves from 16 to 64 between 20% and 30%: T(32)/T(1) is 1.23 and T(64)/T(1) is 1.27"
    )


@pytest.mark.parametrize(
    ("n_max", "values"),
    [
        (
            (16, 16, 16, 32, 32),
            (
                True,
                "N_max moves by a grid step, from 16 to 32, between 15% and 20%; " + UNJUDGED,
                (),
            ),
        ),
        ((16, 16, 16, 16, 64), (False, "N_max moves from 16 to 64 between 20% and 30%", ())),
        ((1, 8, 16, 16, 16), (False, "N_max moves from 1 to 8 between 5% and 10%", ())),
        ((64, 64, 64, 64, 64), (True, f"the same N from 5% to 30%; {UNJUDGED}", ())),
    ],
)
def test_printed_values_are_judged_by_their_steps(
    n_max: tuple[int, ...], values: tuple[object, ...]
) -> None:
    """Printed values are judged by their tolerances only."""
    assert printed(*n_max) == values


def test_what_its_source_marks_as_noise_is_fragile() -> None:
    """A value that the paper marks as noisy is fragile."""
    assert printed(16, 16, 16, 16, 16, noisy=True) == (False, "the paper marks it as noise", ())


@pytest.mark.parametrize(("ratio", "noise"), [(1.19, 0.02), (1.21, 0.02)])
def test_a_ratio_within_its_interval_of_the_limit_is_fragile(ratio: float, noise: float) -> None:
    """A ratio whose interval holds the limit is fragile, on either side."""
    row = judged({1: 1.0, 2: 1.0, 4: ratio, 5: 2.0}, noise)
    assert not row.robust
    assert f"T(4)/T(1) is {ratio}" in row.why
    assert "contains the limit 1.2" in row.why


def test_an_interval_wider_than_promised_is_fragile() -> None:
    """An undecided boundary is fragile, with its interval as the reason."""
    row = judged({1: 1.0, 8: 1.19, 16: 1.21, 17: 2.0}, 0.02, resolution=1.5)
    assert not row.robust
    assert "at 20% its interval, 1 to 16, is wider than the protocol allows" in row.why


@pytest.mark.parametrize("ratios", [{1: 1.0, 8: 1.02, 32: 1.05}, {1: 1.0, 8: 1.02, 32: 1.199}])
def test_the_end_of_a_grid_is_said(ratios: dict[int, float]) -> None:
    """An N_max at the grid's end is called a lower bound."""
    row = judged(ratios, 0.01)
    assert row.robust == (ratios[32] < 1.1)
    assert row.why.endswith("the grid ends there: N_max is at least 32")
    assert "no intervals are printed" not in row.why


def test_the_largest_step_has_its_tolerances() -> None:
    """Of several steps the one by the largest factor is named."""
    row = judged({1: 1.0, 2: 1.08, 8: 1.12, 16: 1.22, 32: 2.0})
    assert row.robust
    assert row.why.startswith(
        "N_max moves 3 times, a grid step each, the largest from 2 to 8, between 10% and 15%; "
    )


@given(st.lists(st.floats(1.0, 3.0), min_size=2, max_size=8), st.floats(0, 0.2))
def test_noise_never_makes_a_boundary_robust(values: list[float], noise: float) -> None:
    """A boundary that is fragile without noise is fragile with it, with a reason."""
    curve = {1: 1.0} | dict(enumerate(values, start=2))
    still, shaken = judged(curve), judged(curve, noise)
    assert still.robust or not shaken.robust
    assert still.why
    assert shaken.why
