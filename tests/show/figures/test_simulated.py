"""Figures of simulated platforms: the same charts, in which nothing is called measured."""

import json

import polars as pl
import pytest
from nearfree.core.modules.registry import MAIN
from nearfree.log.names import Layout
from nearfree.show.figures.families import Rows, drawings
from nearfree.show.figures.listing import Frames
from nearfree.show.figures.models import model_drawings
from nearfree.show.figures.stage import Chart, as_simulated, save, specification

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def charts(rows: Rows, models: Frames) -> list[Chart]:
    """Return all figures of a platform."""
    drawn = [drawing for module in MAIN for drawing in drawings(rows.of(module.name), 0.2, module)]
    drawn += model_drawings(models, 0.2)
    return [(figure, specification(chart)) for figure, chart in drawn]


def test_nothing_is_called_measured(charts) -> None:
    """Titles, captions, names, axes, legends and data say simulated instead of measured."""
    assert any("measured" in json.dumps(spec).lower() for _, spec in charts)
    for chart in charts:
        figure, spec = as_simulated(*chart)
        assert "measured" not in json.dumps(spec).lower()
        assert spec["title"]["text"].startswith("Simulated: ")
        assert figure.caption.startswith("Simulated: ")
        assert "measured" not in f"{figure.name} {figure.caption}".lower()


def test_the_rest_is_the_same(charts) -> None:
    """Rows, marks and numbers are those of the unchanged chart."""
    for before, spec in charts:
        after, changed = as_simulated(before, spec)
        assert (before.rows, before.about) == (after.rows, after.about)
        changed["title"]["text"] = changed["title"]["text"].removeprefix("Simulated: ")
        text = json.dumps(spec).replace("measured", "simulated").replace("Measured", "Simulated")
        assert changed == json.loads(text)


def test_they_can_be_drawn(charts, tmp_path) -> None:
    """A changed chart can be drawn, and its picture says simulated."""
    figure, spec = as_simulated(*charts[0])
    save(spec, tmp_path / figure.name)
    assert ">Simulated: " in (tmp_path / f"{figure.name}.svg").read_text()


def test_a_measured_root_is_left_alone(made: Layout, rows: Rows) -> None:
    """Figures of a real machine stay unchanged."""
    assert set(rows.latency["origin"]) == {"measured"}
    assert pl.Series(rows.boundaries["origin"]).is_in(["measured", "published"]).all()
    assert made.events.exists()
