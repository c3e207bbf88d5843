"""Figures of predictions against boundaries: each row is there, misses included."""

import re
from pathlib import Path

import polars as pl
import pytest
from nearfree.core.predictors import PREDICTORS
from nearfree.derive.score.accuracy import ACCURACY
from nearfree.derive.score.validation import VALIDATION
from nearfree.derive.tables.store import read_table
from nearfree.log.names import Layout
from nearfree.show.figures.families import accuracy_drawings
from nearfree.show.figures.predicted import (
    SHARES,
    error_by_version,
    predicted_against_measured,
    share_bars,
    shares_of,
)
from nearfree.show.figures.stage import save, specification

from show.figures.drawings import says
from show.figures.marks import marks


@pytest.fixture(scope="module")
def public(made: Layout) -> pl.DataFrame:
    """Return the paper's boundaries against their predictions, at the headline tolerance."""
    return read_table(made, "public", VALIDATION).filter(pl.col("epsilon") == 0.2)


def test_every_answer_is_a_point(public: pl.DataFrame) -> None:
    """Each prediction is a point beside its boundary; refusals have none."""
    points = marks(predicted_against_measured(public, 0.2), "prediction")
    answered = public.filter("answered")
    assert {(p["row_id"], p["predictor"], p["n_max"]) for p in points} == set(
        answered.select("row_id", "predictor", "n_max").rows()
    )
    assert len(points) == answered.height


def test_predictors_are_named_in_words(public: pl.DataFrame, tmp_path: Path) -> None:
    """The legend names predictors in words, such as `idle compute`."""
    bars = share_bars(shares_of(public, 0.2), "shares", "of hits")
    save(specification(bars), tmp_path / "shares")
    labels = {*re.findall(r">([^<>]+)</text>", (tmp_path / "shares.svg").read_text())}
    named = {*public["predictor"]}
    assert {name.replace("_", " ") for name in named} <= labels
    assert not {name for name in named if "_" in name} & labels


def test_an_unbounded_prediction_is_drawn_at_the_top(public: pl.DataFrame) -> None:
    """An unbounded prediction is a mark above all others."""
    first = pl.col("row_id") == public.filter("answered")["row_id"][0]
    changed = public.with_columns(
        pl.when(first).then(None).otherwise("predicted").alias("predicted"),
        pl.when(first).then(pl.lit(value=True)).otherwise("unbounded").alias("unbounded"),
    )
    points = marks(predicted_against_measured(changed, 0.2), "prediction")
    (top,) = [point for point in points if point["end"] == "unbounded"]
    assert top["y"] == max(point["y"] for point in points)


def test_the_band_is_where_a_prediction_is_a_hit(public: pl.DataFrame) -> None:
    """The band goes from N_max to the next N of the grid."""
    bands = marks(predicted_against_measured(public, 0.2), "band")
    drawn = {(band["low"], band["high"]) for band in bands}
    assert set(public.drop_nulls("next_n").select("n_max", "next_n").rows()) <= drawn
    assert all(band["x"] == band["low"] < band["high"] for band in bands)


def test_shares_are_of_all_settings(public: pl.DataFrame) -> None:
    """A refusal counts in every share except that of intervals."""
    shares = {(r["panel"], r["predictor"], r["what"]): r for r in shares_of(public, 0.2).to_dicts()}
    place = "moe_ffn: h20 (published), datasheet"
    assert shares[place, "principle", SHARES["hit"]]["share"] == 24 / 32
    assert shares[place, "work_model", SHARES["hit"]]["share"] == 0
    assert shares[place, "work_model", SHARES["answered"]]["share"] == 0
    assert (place, "principle", SHARES["covered"]) not in shares
    assert {name for _, name, _ in shares} == set(PREDICTORS)


def test_where_everything_is_refused_nothing_is_drawn(public: pl.DataFrame) -> None:
    """If all predictions are refused, there is no figure."""
    assert len(list(accuracy_drawings(public, 0.2))) == 3
    assert not list(accuracy_drawings(public.filter(~pl.col("answered")), 0.2))


def test_without_a_known_error_there_is_no_figure_of_it(public: pl.DataFrame) -> None:
    """If all answers are undecided or unbounded, hits are drawn but errors are not."""
    none = public.with_columns(pl.lit(None, dtype=pl.Float64).alias("log2_error"))
    names = [figure.name for figure, _ in accuracy_drawings(none, 0.2)]
    assert names == ["accuracy_predicted_against_measured", "accuracy_shares"]


def test_figures_say_what_they_leave_out(public: pl.DataFrame) -> None:
    """Undecided settings have no error, and coverage counts stated intervals only."""
    subtitles = {
        figure.name: " ".join(says(chart.to_dict()["title"]))
        for figure, chart in accuracy_drawings(public, 0.2)
    }
    assert "Without refused and undecided settings" in subtitles["accuracy_error_by_backend"]
    assert '"interval holds it": of stated intervals' in subtitles["accuracy_shares"]


def test_versions_stand_in_their_order() -> None:
    """A backend's 0.5.9 is before 0.5.10, and text that is no version before both."""
    versions = ["0.5.10", "0.5.9", "0.5.9rc1", "main", None]
    known = {
        "grouping": "version", "predictor": "principle", "module": "gemm", "seen": False,
        "platform": "h20", "routing": None, "epsilon": 0.2, "settings": 1, "answered": 1,
        "undecided": 0, "hits": 1, "hit_share": 1.0, "within_1_31": 1.0, "within_2": 1.0,
        "t_ratio_error": 0.1, "interval_coverage": None, "interval_width": None,
        "from_ids": ["e#1"],
    }  # fmt: skip
    rows = [known | {"backend": backend, "backend_version": version}
            for backend in ("vllm", "sglang") for version in versions]  # fmt: skip
    chart = error_by_version(ACCURACY.build(ACCURACY.frame(rows), {"e#1"}))
    order = chart.to_dict()["spec"]["layer"][0]["encoding"]["x"]["sort"]
    names = ("?", "main", "0.5.9rc1", "0.5.9", "0.5.10")
    assert order == [f"{backend} {name}" for backend in ("sglang", "vllm") for name in names]


def test_what_was_published_is_not_called_measured(public: pl.DataFrame) -> None:
    """Figures and captions call the paper's boundaries published."""
    drawn = list(accuracy_drawings(public, 0.2))
    assert len(drawn) == 3
    for figure, chart in drawn:
        spec = chart.to_dict() | {"datasets": {}}
        assert not [text for text in says(spec) if "measured" in text.lower()]
        assert "measured" not in figure.caption
    measured = public.with_columns(pl.lit("measured").alias("origin"))
    title = predicted_against_measured(measured, 0.2).to_dict()["title"]["text"]
    assert title == "Predicted against measured N_max, tolerance 20%"
