"""Table `validation`: what a hit is, at its edges, and that refusals are misses."""

import polars as pl
import pytest
from conftest import make_setting
from hypothesis import given
from hypothesis import strategies as st
from nearfree.events.names import Layout
from nearfree.tables.boundaries import BOUNDARIES
from nearfree.tables.settings import setting_row
from nearfree.tables.store import read_table
from nearfree.theory.predictions import PREDICTIONS
from nearfree.theory.validation import VALIDATION, validate
from tables.logs import make_tables, write_public

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


def predictions(n_max: float | None) -> pl.DataFrame:
    """Return one prediction, or a refusal."""
    row = {
        "platform": "h20", **SETTING, "predictor": "principle", "basis": "datasheet",
        "n_max": n_max, "balance_flop_per_byte": None, "limiting_module": None,
        "limiting_term": None, "formula": None, "refusal": None if n_max else "no facts",
        "from_ids": ["e#1"],
    }  # fmt: skip
    return PREDICTIONS.frame([row]).with_columns(pl.lit("predictions:1").alias("row_id"))


def judge(n_max: int, next_n: int | None, predicted: float | None) -> dict[str, object]:
    """Return the validation of one prediction against one boundary."""
    found = validate(boundaries(n_max, next_n), predictions(predicted))
    assert found["from_ids"].to_list() == [["boundaries:1", "predictions:1"]]
    return found.row(0, named=True)


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
    """A setting without a prediction counts as a miss, and keeps the reason."""
    row = judge(16, 32, None)
    assert (row["hit"], row["within_2"], row["predicted"]) == (False, False, None)
    assert (row["log2_error"], row["refusal"]) == (None, "no facts")


@pytest.mark.parametrize(("predicted", "error"), [(16.0, 0.0), (32.0, 1.0), (4.0, -2.0)])
def test_the_error_is_in_doublings(predicted: float, error: float) -> None:
    """The error is how often the prediction must be halved to give N_max."""
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
    """Whatever is predicted hits exactly one of the N_max that the grid allows: the next below."""
    said = ONE_PREDICTION.with_columns(pl.lit(predicted).alias("n_max"))
    found = validate(EVERY_BOUNDARY, said)
    assert found.filter("hit")["n_max"].to_list() == [max(n for n in GRID if n <= predicted)]


def test_only_the_newest_boundary_counts() -> None:
    """A boundary of an older take is not held against a prediction again."""
    assert validate(boundaries(16, 32, newest=False), predictions(16.0)).is_empty()


@pytest.fixture(scope="module")
def public(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    """Return the tables of the paper's values."""
    layout = Layout(tmp_path_factory.mktemp("public"))
    write_public(layout)
    make_tables(layout, "public")
    return layout


def test_the_dense_settings_of_the_paper_are_hits(public: Layout) -> None:
    """Both laws hit all six dense settings that the paper measured on H20, at epsilon 0.2."""
    found = read_table(public, "public", VALIDATION).filter(
        pl.col("module") == "dense_ffn", pl.col("epsilon") == 0.2
    )
    assert sorted(found["batch"]) == sorted([1, 2, 4, 8, 16, 32] * 2)
    assert found["hit"].all()


def test_every_other_module_is_refused(public: Layout) -> None:
    """The paper's other settings are all there, as misses with a reason."""
    found = read_table(public, "public", VALIDATION).filter(pl.col("module") != "dense_ffn")
    assert found["setting_key"].n_unique() == 48
    assert not found["hit"].any()
    assert found["refusal"].str.starts_with("no law for the module").all()
