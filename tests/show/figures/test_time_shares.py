"""Time shares against N: whole bars in the order of the forward, and the boundary."""

import json
from collections import defaultdict

import altair as alt
import pytest
from nearfree.core.modules.model import MODEL
from nearfree.show.figures.models import ModelRows, model_drawings
from nearfree.show.figures.theme import ROLES
from nearfree.show.figures.time_shares import time_shares_against_n

from show.figures.marks import marks


@pytest.fixture(scope="module")
def charts(models: ModelRows) -> list[alt.FacetChart]:
    """Return the figure of each model."""
    drawn = model_drawings(models, 0.2)
    return [chart for figure, chart in drawn if "time_shares" in figure.name]


def test_each_bar_is_whole(charts: list[alt.FacetChart]) -> None:
    """The parts of an N lie on each other without a gap, from nothing to all of the forward."""
    for chart in charts:
        bars = defaultdict(list)
        for mark in marks(chart, "bar"):
            bars[mark["setting_key"], mark["n"]].append((mark["start"], mark["end"]))
        for parts in bars.values():
            lower, upper = zip(*sorted(parts), strict=True)
            assert lower[0] == pytest.approx(0)
            assert upper[-1] == pytest.approx(1)
            assert lower[1:] == pytest.approx(upper[:-1])


def test_modules_lie_in_the_order_of_the_forward(charts: list[alt.FacetChart]) -> None:
    """From the bottom to the top of a bar are the modules as the forward runs them."""
    for chart in charts:
        bars = defaultdict(list)
        for mark in marks(chart, "bar"):
            bars[mark["setting_key"], mark["n"]].append((mark["start"], mark["place"]))
        assert all(
            [place for _, place in sorted(parts)] == sorted(place for _, place in parts)
            for parts in bars.values()
        )


def test_a_module_has_one_colour_everywhere(charts: list[alt.FacetChart]) -> None:
    """Every figure gives a module the same colour, and no two modules share one."""
    assert len(set(ROLES.values())) == len(ROLES)
    for chart in charts:
        roles = {mark["role"] for mark in marks(chart, "bar")}
        text = json.dumps(chart.to_dict() | {"datasets": {}})
        start = text.index('"scale": {"domain": ["')
        scale = json.loads(text[start + 9 : text.index("}", start) + 1])
        assert dict(zip(scale["domain"], scale["range"], strict=True)) == {
            role: ROLES[role] for role in roles
        }


def test_the_boundary_is_the_table_s(models: ModelRows, charts: list[alt.FacetChart]) -> None:
    """Each panel has its N_max at the reported tolerance, and links it to its row."""
    bounds = [(m["row_id"], m["n"]) for chart in charts for m in marks(chart, "boundary")]
    at = models.boundaries.filter(epsilon=0.2)
    assert sorted(bounds) == sorted(at.select("row_id", "n_max").rows())


def test_a_single_n_is_a_bar(models: ModelRows) -> None:
    """Shares that were measured at one N alone are still drawn."""
    once = models.time_shares.filter(n=1, model="qwen3_8b_cpu")
    chart = time_shares_against_n(once, models.boundaries, 0.2, MODEL)
    assert len(marks(chart, "bar")) == once.height
    assert len(marks(chart, "boundary")) == once["setting_key"].n_unique()
