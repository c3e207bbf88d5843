"""The test of the test: the adaptive protocol on noisy curves whose boundary is known."""

import random
from statistics import median

import pytest
from nearfree.core.protocols import Adaptive
from once import ALL

from measure.simulation import (
    Noise,
    SearchRun,
    search,
    simulate,
    some_curve,
    staircase,
    tails,
)

LESS = 1 if ALL else 4
"""Of the many runs, one in so many without `NEARFREE_CASES=all`."""
PAPER_FORWARDS = 50 + 10 * 200


def check(searches: list[SearchRun], undecided: float = 0.10) -> None:
    """Check that intervals hold the truth, are narrow, and are seldom undecided."""
    share = {
        "holds": sum(run.holds for run in searches) / len(searches),
        "undecided": sum(run.boundary.verdict == "undecided" for run in searches) / len(searches),
        "wrong": sum(run.wrong for run in searches) / len(searches),
    }
    width = median(run.width for run in searches)
    print(f"{len(searches)} runs: {share}, median width {width:.3f}")
    assert share["holds"] >= 0.95
    assert share["undecided"] <= undecided
    assert width <= 1.15


def test_the_boundary_is_found() -> None:
    """Over random curves, drift, spikes and probes at wrong edges, the interval holds the truth."""
    check(simulate(60, Adaptive(), Noise()))


@pytest.mark.slow
def test_the_boundary_is_found_in_many_runs() -> None:
    """The same over many runs of other curves: at least 95 % hold, at most 10 % undecided."""
    check(simulate(2000 // LESS, Adaptive(), Noise(), seed=1))


@pytest.mark.slow
def test_smooth_curves_are_more_often_undecided() -> None:
    """Where T crosses the limit at a small angle intervals hold as well, but fewer are decided."""
    check(simulate(400 // LESS, Adaptive(), Noise(), kinds=("smooth",), seed=1), undecided=0.5)


def test_the_cost_is_a_small_part_of_the_papers() -> None:
    """No search takes more than a 40th of the forwards that the paper's protocol would."""
    rng = random.Random(5)  # noqa: S311 (curves, no secret)
    for seed in range(18):
        curve, grid = some_curve(rng, ("staircase", "tails", "smooth")[seed % 3])
        run = search(curve, grid, Adaptive(), noise=Noise(), seed=seed)
        assert run.forwards * 40 <= len(grid) * PAPER_FORWARDS


def test_noise_alone_moves_no_clear_boundary() -> None:
    """With ten times the usual spikes the interval still holds the truth of a staircase."""
    noise = Noise(spike=0.2)
    searches = [
        search(staircase(16, 0.8, 0), [1, 8, 16, 17, 32], Adaptive(), noise=noise, seed=seed)
        for seed in range(30)
    ]
    assert all(run.holds for run in searches)


def test_a_boundary_on_the_limit_is_undecided() -> None:
    """An N whose time is exactly the limit gives the verdict `undecided`."""
    run = search(lambda n: 1.2 if n > 8 else 1.0, [1, 8, 16], Adaptive(), noise=Noise(), seed=1)
    assert run.boundary.verdict == "undecided"
    assert (run.boundary.low, run.boundary.high) == (8, 16)


def test_curves_that_are_not_monotone() -> None:
    """A tail of one row costs a full tile, so N beyond an exit may pass again."""
    curve = tails(16, 0.15, 0.9)
    assert curve(17) > 1.2 > curve(18)
    run = search(curve, [1, 16, 17, 18, 32, 33], Adaptive(), noise=Noise(sigma=0.01), seed=2)
    assert run.truth == run.boundary.last_pass == 18
    assert run.boundary.first_exit == 16
