"""Table `validation`: hits at their limits, and refusals as misses."""

import polars as pl
import pytest
from conftest import make_setting
from hypothesis import given
from hypothesis import strategies as st
from nearfree.config.files import Config
from nearfree.core.predictors import LAWS, PREDICTORS
from nearfree.derive.predict.answers import Answerer
from nearfree.derive.predict.predictions import PREDICTIONS
from nearfree.derive.score.evaluation import evaluate
from nearfree.derive.score.validation import VALIDATION, validate
from nearfree.derive.tables.boundaries import BOUNDARIES
from nearfree.derive.tables.settings import setting_row
from nearfree.derive.tables.store import read_table
from nearfree.derive.truth.datasets import load_published
from nearfree.log.names import Layout

from derive.tables.logs import CONFIG

GRID = [1, 2, 4, 8, 16, 32]
SETTING = setting_row(make_setting())


def boundaries(n_max: int, next_n: int | None, *, newest: bool = True) -> pl.DataFrame:
    """Return one boundary."""
    row = {
        "platform": "h20", "stream": "s", "take": 1, "plan8": "0" * 8, "newest": newest, **SETTING,
        "epsilon": 0.2, "baseline": 1, "n_max": n_max, "first_exit": None, "next_n": next_n,
        "n_low": None, "n_high": None, "verdict": "printed", "baseline_over_min": None,
        "n_max_from_1": None, "n_low_from_1": None, "n_high_from_1": None,
        "grid_inferred": False, "noisy": False, "origin": "published", "from_ids": ["e#1"],
    }  # fmt: skip
    return BOUNDARIES.frame([row]).with_columns(pl.lit("boundaries:1").alias("row_id"))


def predictions(n_max: float | None, **changes: object) -> pl.DataFrame:
    """Return one prediction, or a refusal."""
    row = {
        **dict.fromkeys(PREDICTIONS.body), "platform": "h20", "origin": "published", **SETTING,
        "baseline": 1, "predictor": "principle", "basis": "datasheet", "epsilon": 0.2,
        "n_max": n_max, "unbounded": False, "in_sample": False,
        "refusal": None if n_max else "no facts", "from_ids": ["e#1"],
    }  # fmt: skip
    return PREDICTIONS.frame([row | changes]).with_columns(pl.lit("predictions:1").alias("row_id"))


def judge(n_max: int, next_n: int | None, predicted: float | None) -> dict[str, object]:
    """Return the validation of one prediction against one boundary."""
    validation = validate(boundaries(n_max, next_n), predictions(predicted))
    assert validation["from_ids"].to_list() == [["boundaries:1", "predictions:1"]]
    return validation.row(0, named=True)


@pytest.mark.parametrize(
    ("n_max", "next_n", "predicted", "hit", "within_2"),
    [
        (16, 32, 16.0, True, True),
        (16, 32, 15.999, False, True),
        (16, 32, 31.999, True, True),
        (16, 32, 32.0, False, True),
        (16, 32, 8.0, False, True),
        (16, 32, 7.999, False, False),
        (16, 32, 63.999, False, True),
        (16, 32, 64.0, False, False),
        (32, None, 32.0, True, True),
        (32, None, 1e9, True, True),
        (32, None, 16.0, False, True),
        (32, None, 15.9, False, False),
        (1, 2, 0.5, False, True),
        (1, 2, 1.15625, True, True),
    ],
)
def test_what_a_hit_is(
    n_max: int, next_n: int | None, predicted: float, *, hit: bool, within_2: bool
) -> None:
    """A hit lies in [N_max, next N), unbounded at the grid's end; within 2 widens both ends."""
    row = judge(n_max, next_n, predicted)
    assert (row["hit"], row["within_2"]) == (hit, within_2)
    assert (row["predicted"], row["n_max"], row["next_n"]) == (predicted, n_max, next_n)


def test_a_refusal_is_a_miss() -> None:
    """A setting without a prediction is a miss and keeps the reason."""
    row = judge(16, 32, None)
    assert (row["hit"], row["within_2"], row["predicted"]) == (False, False, None)
    assert (row["log2_error"], row["refusal"]) == (None, "no facts")


@pytest.mark.parametrize(("predicted", "error"), [(31.0, 0.0), (64.0, 1.0), (4.0, -2.0)])
def test_the_error_is_in_doublings(predicted: float, error: float) -> None:
    """The error is the number of halvings from the prediction to [N_max, next N)."""
    assert judge(16, 32, predicted)["log2_error"] == pytest.approx(error)


ONE_BOUNDARY, ONE_PREDICTION = boundaries(1, 2), predictions(1.0)
EVERY_BOUNDARY = pl.concat(
    ONE_BOUNDARY.with_columns(
        pl.lit(n, dtype=pl.Int64).alias("n_max"), pl.lit(following, dtype=pl.Int64).alias("next_n")
    )
    for n, following in zip(GRID, [*GRID[1:], None], strict=True)
)


@given(st.floats(1.0, 1000.0))
def test_each_prediction_hits_one_grid_point(predicted: float) -> None:
    """Any prediction hits exactly one N_max of the grid."""
    predictions_ = ONE_PREDICTION.with_columns(pl.lit(predicted).alias("n_max"))
    validation = validate(EVERY_BOUNDARY, predictions_)
    assert validation.filter("hit")["n_max"].to_list() == [max(n for n in GRID if n <= predicted)]


def test_only_the_newest_boundary_counts() -> None:
    """A prediction is compared with the newest take's boundary only."""
    assert validate(boundaries(16, 32, newest=False), predictions(16.0)).is_empty()


def test_the_dense_settings_of_the_paper_are_hits(published: Layout) -> None:
    """Every law hits all six dense settings that the paper measured on H20, at epsilon 0.2."""
    table = read_table(published, "public", VALIDATION).filter(
        pl.col("module") == "dense_ffn",
        pl.col("epsilon") == 0.2,
        pl.col("predictor").is_in(LAWS),
    )
    assert sorted(table["batch"]) == sorted([1, 2, 4, 8, 16, 32] * len(LAWS))
    assert table["hit"].all()


def test_every_setting_of_the_paper_is_there(published: Layout) -> None:
    """The principle hits 44 of 54; others refuse without rules or constants."""
    table = read_table(published, "public", VALIDATION).filter(pl.col("epsilon") == 0.2)
    assert table["setting_key"].n_unique() == 54
    assert table.filter(predictor="principle")["hit"].sum() == 44
    refused = table.filter(~pl.col("answered"))
    assert set(refused["predictor"]) == {"principle_resolved", "work_model"}
    assert not refused["hit"].any()
    assert refused["refusal"].str.contains("in the log|no constants").all()


def test_the_judgement_is_that_of_the_scores(published: Layout) -> None:
    """The table agrees with `nearfree validate` on each prediction."""
    table = read_table(published, "public", VALIDATION)
    epsilons = sorted(table["epsilon"].unique())
    _, known = load_published(published, epsilons)
    answerer = Answerer(published, Config(CONFIG), offline=True, log_alone=True)
    judged = ("hit", "within_1_31", "within_2", "log2_error")
    evaluation = evaluate(known, answerer, epsilons, PREDICTORS).scores.with_columns(
        pl.when(pl.col("log2_error").is_finite()).then("log2_error").alias("log2_error")
    )
    keys = ["setting_key", "epsilon", "predictor"]
    named = evaluation.join(known.settings.select("curve", "setting_key"), on="curve")
    ours = table.select(*keys, *judged).sort(keys)
    assert ours.rows() == named.select(*keys, *judged).sort(keys).rows()
    assert ours.height == 54 * len(epsilons) * len(PREDICTORS)


def test_an_undecided_boundary_is_a_miss() -> None:
    """An undecided boundary is no hit for any prediction."""
    loose = boundaries(16, 32).with_columns(pl.lit("undecided").alias("verdict"))
    (row,) = validate(loose, predictions(16.0)).to_dicts()
    assert (row["hit"], row["within_2"], row["undecided"]) == (False, False, True)
    assert row["answered"]


def test_an_unbounded_prediction_hits_the_end_of_a_grid_alone() -> None:
    """An unbounded prediction is a hit only at a grid's end."""
    prediction_rows = predictions(None, unbounded=True, refusal=None)
    assert validate(boundaries(32, None), prediction_rows)["hit"].to_list() == [True]
    row = validate(boundaries(16, 32), prediction_rows).row(0, named=True)
    assert (row["hit"], row["answered"], row["log2_error"]) == (False, True, None)


@pytest.mark.parametrize(
    ("low", "high", "covered"), [(8.0, 16.0, True), (8.0, 15.0, False), (32.0, 64.0, False)]
)
def test_an_interval_is_judged(low: float, high: float, *, covered: bool) -> None:
    """An interval covers a boundary if it meets [N_max, next N)."""
    row = validate(boundaries(16, 32), predictions(16.0, low=low, high=high)).row(0, named=True)
    assert (row["covered"], row["width"]) == (covered, high / low)


def test_another_baseline_is_another_question() -> None:
    """A prediction and a boundary with different baselines are not compared."""
    assert validate(boundaries(16, 32), predictions(16.0, baseline=2)).is_empty()


def test_without_boundaries_the_table_is_empty() -> None:
    """Without boundaries the table is empty, with its schema."""
    validation = validate(boundaries(16, 32).clear(), predictions(16.0).clear())
    assert VALIDATION.build(validation, set()).is_empty()
