"""The map of limiting modules: what was measured beside what each predictor names."""

import polars as pl
import pytest
from nearfree.show.figures.limiters import limiter_map, limiters
from nearfree.show.figures.models import ModelRows

from show.figures.marks import again, marks


@pytest.fixture(scope="module")
def said(models: ModelRows) -> pl.DataFrame:
    """Return what is said of models at the reported tolerance."""
    return models.composition.filter(epsilon=0.2)


def test_the_measured_limiter_is_told_once_a_setting(said: pl.DataFrame) -> None:
    """Each setting has one cell of what was measured, however many predictors there are."""
    measured = limiters(said).filter(who="measured")
    expected = said.select("setting_key", "measured_limiter").unique()
    assert sorted(measured.select("setting_key", "limiter").rows()) == sorted(expected.rows())


def test_each_named_module_has_a_cell(said: pl.DataFrame) -> None:
    """Each predictor that names a module has a cell of its own; one that refuses has none."""
    cells = limiters(said).filter(pl.col("who") != "measured")
    named = said.drop_nulls("limiter")
    assert named.height < said.height
    assert sorted(cells.select("row_id", "limiter").rows()) == sorted(
        named.select("row_id", "limiter").rows()
    )
    assert cells.select("setting_key", "who").is_unique().all()


def test_bases_are_told_where_there_are_several(said: pl.DataFrame) -> None:
    """A predictor with two bases of facts has a column of each, else one of its name."""
    who = set(limiters(said)["who"])
    assert {"principle_counted, probed stream", "principle_counted, probed gemm"} <= who
    assert {"idle_compute", "modules_sum", "modules_minimum"} <= who


def test_every_cell_is_drawn(said: pl.DataFrame) -> None:
    """The map shows a panel a model, what was measured first."""
    named = limiters(said)
    chart = limiter_map(named, 0.2)
    assert len(marks(chart)) == named.height
    spec = chart.to_dict()
    assert spec["facet"]["sort"] == sorted(set(said["model"]))
    assert spec["spec"]["layer"][0]["encoding"]["x"]["sort"][0] == "measured"


def test_studies_of_one_model_stand_apart(said: pl.DataFrame) -> None:
    """Where two studies are of one model each has its panel, and no cell lies on another."""
    named = limiters(again(said))
    assert named.select("panel", "setting", "who").is_unique().all()
    assert named["panel"].n_unique() == 2 * said["model"].n_unique()


def test_settings_stand_in_the_order_of_their_numbers(said: pl.DataFrame) -> None:
    """Contexts grow downwards, whichever model has them."""
    order = limiter_map(limiters(said), 0.2).to_dict()["spec"]["layer"][0]["encoding"]["y"]["sort"]
    contexts = [int(text.removeprefix("L = ").partition(",")[0]) for text in order]
    assert contexts == sorted(contexts)
    assert len(set(contexts)) > 2
