"""Figures of simulated platforms: the same charts, in which nothing is called measured."""

import json

import altair as alt
import polars as pl
import pytest
from nearfree.core.modules.registry import MAIN
from nearfree.log.names import Layout
from nearfree.show.figures.families import Rows, drawings
from nearfree.show.figures.models import ModelRows, model_drawings
from nearfree.show.figures.stage import as_simulated, save, specification


def told(chart: alt.FacetChart) -> str:
    """Return all that a chart says, its data included."""
    with alt.data_transformers.disable_max_rows():
        return json.dumps(chart.to_dict())


@pytest.fixture(scope="module")
def drawn(rows: Rows, models: ModelRows) -> list[tuple[object, alt.FacetChart]]:
    """Return every figure of a platform, of modules and models."""
    found = [each for module in MAIN for each in drawings(rows.of(module.name), 0.2, module)]
    return [*found, *model_drawings(models, 0.2)]  # type: ignore[list-item]


def test_nothing_is_called_measured(drawn) -> None:
    """Titles, captions, names, axes, legends and data say simulated instead."""
    pairs = list(zip(drawn, as_simulated(drawn), strict=True))
    assert any("measured" in told(chart).lower() for (_, chart), _ in pairs)
    for _, (figure, chart) in pairs:
        text = told(chart)
        assert "measured" not in text.lower()
        assert json.loads(text)["title"]["text"].startswith("Simulated: ")
        assert figure.caption.startswith("Simulated: ")
        assert "measured" not in f"{figure.name} {figure.caption}".lower()


def test_the_rest_is_the_same(drawn) -> None:
    """Rows, marks and numbers are those of the chart as it was."""
    for (before, chart), (after, changed) in zip(drawn, as_simulated(drawn), strict=True):
        assert (before.rows, before.about) == (after.rows, after.about)
        old, new = (json.loads(told(each)) for each in (chart, changed))
        new["title"]["text"] = new["title"]["text"].removeprefix("Simulated: ")
        again = json.dumps(old).replace("measured", "simulated").replace("Measured", "Simulated")
        assert new == json.loads(again)


def test_they_can_be_drawn(drawn, tmp_path) -> None:
    """A changed chart is drawn as any other, with the word in the picture."""
    figure, chart = next(as_simulated(drawn))
    save(specification(chart), tmp_path / figure.name)
    assert ">Simulated: " in (tmp_path / f"{figure.name}.svg").read_text()


def test_a_measured_root_is_left_alone(made: Layout, rows: Rows) -> None:
    """Rows of a real machine are of no simulated origin, so their figures stay as they are."""
    assert set(rows.latency["origin"]) == {"measured"}
    assert pl.Series(rows.boundaries["origin"]).is_in(["measured", "published"]).all()
    assert made.events.exists()
