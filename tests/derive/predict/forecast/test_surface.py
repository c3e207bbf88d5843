"""A surface holds the curves of its deployments, point by point."""

from functools import cache

import polars as pl
import pytest
from nearfree.derive.predict.forecast.deployment import Deployment
from nearfree.derive.predict.forecast.surface import surface

from derive.predict.forecast.pool import ANSWERER, NO_PHI, deployment, forecast_of

GRID = range(1, 41)
DEPLOYMENTS = [
    deployment(model, routing, batch=batch, context=context)
    for model, routing in (
        ("qwen3_8b", "balanced"), ("qwen3_30b_a3b", "balanced"), ("qwen3_30b_a3b", "skewed"),
        ("ling_2_0_mini", "balanced"),
    )
    for batch in (1, 4)
    for context in (512, 8192)
]  # fmt: skip
EPSILON = 0.2


@cache
def surfaces() -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return points and boundaries."""
    points, boundaries, _ = surface(DEPLOYMENTS, ANSWERER, GRID, EPSILON)
    return points, boundaries


def bound(routing: str) -> Deployment:
    """Return a sparse model under one routing."""
    return deployment("qwen3_30b_a3b", routing, batch=1, context=512)


@pytest.mark.parametrize("place", range(len(DEPLOYMENTS)))
def test_points_are_those_of_the_curve(place: int) -> None:
    """T(N) and its ratios from both baselines equal those of `curve`."""
    points = surfaces()[0].filter(deployment=place)
    forecast_, full = forecast_of(*DEPLOYMENTS, grid=GRID), DEPLOYMENTS[place].full_baseline
    from_one = forecast_.curve(place)
    from_full = from_one.filter(pl.col("n") >= full)["latency_us"]
    assert points["n"].to_list() == list(GRID)
    for name in ("latency_us", "ratio"):
        assert points[name].to_list() == pytest.approx(from_one[name].to_list())
    above = points.filter(pl.col("n") >= full)["ratio_full"].to_list()
    assert above == pytest.approx([us / from_full[0] for us in from_full])
    assert points.filter(pl.col("n") < full)["ratio_full"].is_null().all()
    assert above[0] == 1.0


def test_boundaries_are_those_of_the_forecast() -> None:
    """N_max, limiter and rule equal the forecast's, from both baselines."""
    names = ["deployment", "baseline", "n_max", "low", "high", "limiting_module", "evidence"]
    forward = forecast_of(*DEPLOYMENTS, grid=GRID).answers.filter(composition="sum")
    mine = surfaces()[1].select(names).sort("deployment", "baseline")
    assert mine.rows() == forward.select(names).sort("deployment", "baseline").rows()


def test_both_routings_bound_one_another() -> None:
    """At N = 1 both routings activate k experts; beyond, skewed routing activates no more."""
    both = forecast_of(bound("balanced"), bound("skewed"), grid=GRID)
    balanced, skewed = both.curve(0)["latency_us"], both.curve(1)["latency_us"]
    assert balanced[0] == pytest.approx(skewed[0])
    assert (balanced[1:] > skewed[1:]).all()


def test_a_baseline_beyond_the_grid_has_no_ratio() -> None:
    """If the grid lacks the paper's baseline, there is a reason instead of ratios."""
    points, boundaries, _ = surface([bound("balanced")], ANSWERER, range(1, 16), EPSILON)
    assert points["ratio_full"].null_count() == 15
    assert points["ratio"].null_count() == 0
    assert boundaries.filter(baseline=16)["refusal"].to_list() == [
        "the baseline N=16 is not on the grid"
    ]


def test_what_is_not_known_has_no_points() -> None:
    """A refused deployment has no T(N), no ratios and no NaN."""
    points, boundaries, _ = surface(
        [deployment(platform="cpu"), deployment()], ANSWERER, GRID, EPSILON
    )
    for name in ("latency_us", "ratio", "ratio_full"):
        assert points.filter(deployment=0)[name].null_count() == len(GRID)
        assert points.filter(deployment=1)[name].null_count() == 0
        assert not points[name].is_nan().any()
    assert boundaries["refusal"].to_list() == [NO_PHI, None]
