"""The figures of whole models: which there are, and which rows each one lists."""

import polars as pl
import pytest
from msgspec.structs import asdict, replace
from nearfree.show.figures.listing import MODELS
from nearfree.show.figures.models import ModelRows, model_drawings

from show.figures.marks import marks

NAMES = ("ling_2_0_mini_cpu", "llada_2_1_mini_cpu", "qwen3_8b_cpu", "wedlm_8b_cpu")


def names(rows: ModelRows) -> list[str]:
    """Return the figures of some models without what all their names begin with."""
    return [figure.name.removeprefix("model_") for figure, _ in model_drawings(rows, 0.2)]


def only(rows: ModelRows, model: str) -> ModelRows:
    """Return the rows of one model."""
    return ModelRows(**{n: frame.filter(model=model) for n, frame in asdict(rows).items()})


def test_every_model_has_its_figures(models: ModelRows) -> None:
    """N_max of dense and of MoE models stand apart; each model has its latency and its shares."""
    each = [f"{what}_{name}" for name in NAMES for what in ("latency_against_n", "time_shares")]
    assert names(models) == ["nmax_against_batch", "nmax_against_top_k", "limiters", *each]


def test_figures_of_models_go_to_their_own_part(models: ModelRows) -> None:
    """The report shows them apart from those of modules, and their files tell so, too."""
    figures = [figure for figure, _ in model_drawings(models, 0.2)]
    assert {figure.about for figure in figures} == {MODELS}
    assert all(figure.name.startswith("model_") and figure.caption for figure in figures)


def test_a_figure_lists_the_rows_behind_its_marks(models: ModelRows) -> None:
    """The list of a figure's rows holds each row of a mark and no other, and none twice."""
    for figure, chart in model_drawings(models, 0.2):
        drawn = {mark["row_id"] for mark in marks(chart)} - {None}
        assert set(figure.rows) == drawn, figure.name
        assert len(figure.rows) == len(drawn)


def test_without_models_nothing_is_drawn(models: ModelRows) -> None:
    """Tables that hold no model give no figure."""
    empty = {name: frame.clear() for name, frame in asdict(models).items()}
    assert not list(model_drawings(ModelRows(**empty), 0.2))


def test_a_boundary_that_was_only_printed_is_not_drawn(models: ModelRows) -> None:
    """Where no latency of a model was measured there is no figure of it."""
    assert not names(replace(models, latency=models.latency.clear()))


@pytest.mark.parametrize(
    ("table", "gone"),
    [("time_shares", {"time_shares_qwen3_8b_cpu"}), ("composition", {"limiters"})],
)
def test_what_was_not_made_is_not_drawn(models: ModelRows, table: str, gone: set[str]) -> None:
    """Without shares, or without predictions, the other figures are there."""
    whole = only(models, "qwen3_8b_cpu")
    less = replace(whole, **{table: asdict(whole)[table].clear()})
    assert set(names(whole)) - set(names(less)) == gone


def test_older_takes_are_left_out(models: ModelRows) -> None:
    """What a newer take has replaced is in no figure."""
    older = {
        name: frame.with_columns(pl.lit(value=False).alias("newest"))
        for name, frame in asdict(models).items()
        if "newest" in frame.columns
    }
    assert not names(replace(models, **older))


def test_a_panel_a_setting(models: ModelRows) -> None:
    """Each curve of a model has a panel of its own, in its latency and in its shares alike."""
    for model in NAMES:
        mine = only(models, model)
        charts = {figure.name: chart for figure, chart in model_drawings(mine, 0.2)}
        asked = mine.latency["setting_key"].n_unique()
        for what, kind in (("latency_against_n", "point"), ("time_shares", "bar")):
            drawn = marks(charts[f"model_{what}_{model}"], kind)
            pairs = {(mark["setting_key"], mark["panel"]) for mark in drawn}
            assert len(pairs) == len({panel for _, panel in pairs}) == asked
