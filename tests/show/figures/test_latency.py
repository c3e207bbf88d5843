"""The figure of latency against N: its points, bands and boundaries."""

import json
from collections import defaultdict
from collections.abc import Callable

import altair as alt
import polars as pl
import pytest
from nearfree.core.modules.kind import ModuleKind
from nearfree.core.modules.model import MODEL
from nearfree.show.figures.families import Rows
from nearfree.show.figures.latency import latency_against_n, time_shares_against_n
from nearfree.show.figures.listing import Frames
from nearfree.show.figures.models import model_drawings
from nearfree.show.figures.theme import ROLES

from show.figures.marks import ATTENTION, DENSE, MOE, again, marks, wider
from show.figures.studies import GRID

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("module", [DENSE, MOE, ATTENTION], ids=lambda module: module.name)
def test_points_are_the_newest_rows(rows: Rows, module: ModuleKind) -> None:
    """Each newest row of the latency table is a point, in milliseconds."""
    own = rows.of(module.name)
    points = marks(latency_against_n(own.latency, own.boundaries, 0.2, module), "point")
    newest = {row["row_id"]: row for row in own.latency.filter("newest").to_dicts()}
    assert {point["row_id"] for point in points} == set(newest)
    assert len(points) == len(newest)
    for point in points:
        row = newest[point["row_id"]]
        assert point["latency_ms"] == pytest.approx(row["latency_us"] / 1000)
        assert point["of"] == f"{module.letter} = {row[module.own]}"


def test_a_band_is_the_tolerance_over_the_baseline(dense: Rows) -> None:
    """Each panel has one band from T(1) to (1 + epsilon) T(1), and the boundary."""
    bands = marks(latency_against_n(dense.latency, dense.boundaries, 0.2, DENSE), "boundary")
    assert sorted(mark["panel"] for mark in bands) == ["b = 1", "b = 2", "b = 4"]
    for mark in bands:
        assert mark["limit_ms"] == pytest.approx(1.2 * mark["base_ms"])
        assert (mark["n"], mark["n2"]) == (GRID[0], GRID[-1])
        assert mark["label"] == f"N_max = {mark['n_max']}"
    at = dense.boundaries.filter("newest", pl.col("epsilon") == 0.2, pl.col("origin") == "measured")
    assert {(m["row_id"], m["n_max"]) for m in bands} == set(at.select("row_id", "n_max").rows())


def test_balanced_routing_has_two_bands(moe: Rows) -> None:
    """A curve with another baseline shows N_max from that baseline and from N = 1."""
    bands = marks(latency_against_n(moe.latency, moe.boundaries, 0.2, MOE), "boundary")
    two = [m for m in bands if (m["of"], m["variant"]) == ("k = 4", "balanced, torch_padded")]
    assert [mark["n"] for mark in two] == [4, 1]
    assert [mark["label"].rpartition(" ")[0] for mark in two] == ["N_max =", "from N = 1:"]
    assert two[0]["base_ms"] > two[1]["base_ms"]
    assert two[0]["row_id"] == two[1]["row_id"]
    assert two[0]["line_px"] != two[1]["line_px"]
    skewed = [m for m in bands if (m["of"], m["variant"]) == ("k = 4", "skewed, torch_padded")]
    assert [mark["n"] for mark in skewed] == [1]


def test_a_boundary_at_the_end_of_the_grid_is_a_lower_end(moe: Rows) -> None:
    """If no N after N_max was measured, N_max is "at least", from N = 1, too."""
    from_one = pl.when(pl.col("n_max_from_1").is_not_null()).then(pl.lit(GRID[-1], dtype=pl.Int64))
    ends = moe.boundaries.with_columns(
        pl.lit(None, dtype=pl.Int64).alias("next_n"), from_one.alias("n_max_from_1")
    )
    bands = marks(latency_against_n(moe.latency, ends, 0.2, MOE), "boundary")
    labels = {mark["label"] for mark in bands}
    assert f"from N = 1: ≥ {GRID[-1]}" in labels
    assert all(label.startswith(("N_max ≥ ", "from N = 1: ≥ ")) for label in labels)


def test_the_subtitle_says_why_a_point_may_lie_outside(dense: Rows) -> None:
    """The subtitle says that points are medians and N_max is of paired ratios."""
    chart = latency_against_n(dense.latency, dense.boundaries, 0.2, DENSE)
    subtitle = " ".join(chart.to_dict()["title"]["subtitle"])
    assert "by ratios paired within rounds, so a median may lie outside" in subtitle


def test_the_title_says_where_latencies_come_from(dense: Rows) -> None:
    """The title names the origin, so that simulated values are not taken for measured ones."""
    for origin in ("measured", "simulated"):
        latency = dense.latency.with_columns(pl.lit(origin).alias("origin"))
        title = latency_against_n(latency, dense.boundaries, 0.2, DENSE).to_dict()["title"]
        assert title["text"] == f"Latency against N, dense FFN on cpu, {origin}"


def test_a_label_stays_in_its_panel(dense: Rows) -> None:
    """A label in the right half of the grid is left of its boundary."""
    bands = marks(latency_against_n(dense.latency, dense.boundaries, 0.2, DENSE), "boundary")
    middle = (GRID[0] * GRID[-1]) ** 0.5
    assert {mark["late"] for mark in bands} == {True, False}
    assert all(mark["late"] == (mark["n_max"] > middle) for mark in bands)


@pytest.mark.parametrize("more", [lambda frame: wider(frame, d_ff=64), again])
def test_curves_that_differ_are_drawn_apart(
    dense: Rows, more: Callable[[pl.DataFrame], pl.DataFrame]
) -> None:
    """Two settings or studies at one batch size are two panels, each with a band."""
    latency, boundaries = (
        more(dense.latency.filter("newest")),
        more(dense.boundaries.filter("newest")),
    )
    chart = latency_against_n(latency, boundaries, 0.2, DENSE)
    points = marks(chart, "point")
    assert len({(p["panel"], p["n"]) for p in points}) == len(points) == 6 * len(GRID)
    assert len({mark["panel"] for mark in marks(chart, "boundary")}) == 6


@pytest.mark.parametrize("module", [DENSE, MOE, ATTENTION], ids=lambda module: module.name)
def test_there_is_room_for_text_above_each_curve(rows: Rows, module: ModuleKind) -> None:
    """A panel has a line's height for each label above its highest interval."""
    own = rows.of(module.name)
    chart = latency_against_n(own.latency, own.boundaries, 0.2, module)
    points, bounds = marks(chart, "point"), marks(chart, "boundary")
    for bound in bounds:
        highest = max(p["high_ms"] for p in points if p["panel"] == bound["panel"])
        lines = sum(other_bound["panel"] == bound["panel"] for other_bound in bounds)
        assert (bound["top_ms"] - highest) / highest == pytest.approx(0.16 * lines)


@pytest.fixture(scope="module")
def charts(models: Frames) -> list[alt.FacetChart]:
    """Return the figure of each model."""
    drawn = model_drawings(models, 0.2)
    return [chart for figure, chart in drawn if "time_shares" in figure.name]


def test_each_bar_is_whole(charts: list[alt.FacetChart]) -> None:
    """The parts at one N are stacked without a gap, from 0 to the whole forward."""
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
    """A bar's modules are in the order of the forward, from the bottom."""
    for chart in charts:
        bars = defaultdict(list)
        for mark in marks(chart, "bar"):
            bars[mark["setting_key"], mark["n"]].append((mark["start"], mark["place"]))
        assert all(
            [place for _, place in sorted(parts)] == sorted(place for _, place in parts)
            for parts in bars.values()
        )


def test_a_module_has_one_colour_everywhere(charts: list[alt.FacetChart]) -> None:
    """Each module has one colour in all figures, and no two modules share it."""
    assert len(set(ROLES.values())) == len(ROLES)
    for chart in charts:
        roles = {mark["role"] for mark in marks(chart, "bar")}
        text = json.dumps(chart.to_dict() | {"datasets": {}})
        start = text.index('"scale": {"domain": ["')
        scale = json.loads(text[start + 9 : text.index("}", start) + 1])
        assert dict(zip(scale["domain"], scale["range"], strict=True)) == {
            role: ROLES[role] for role in roles
        }


def test_the_boundary_is_the_table_s(models: Frames, charts: list[alt.FacetChart]) -> None:
    """Each panel marks the table's N_max at the reported tolerance and links its row."""
    bounds = [(m["row_id"], m["n"]) for chart in charts for m in marks(chart, "boundary")]
    at = models["boundaries"].filter(epsilon=0.2)
    assert sorted(bounds) == sorted(at.select("row_id", "n_max").rows())


def test_a_single_n_is_a_bar(models: Frames) -> None:
    """Shares that were measured at one N alone are still drawn, and said to be measured."""
    once = models["time_shares"].filter(n=1, model="qwen3_8b_cpu")
    chart = time_shares_against_n(once, models["boundaries"], 0.2, MODEL)
    assert chart.to_dict()["title"]["subtitle"][0].startswith("Measured inside")
    assert len(marks(chart, "bar")) == once.height
    assert len(marks(chart, "boundary")) == once["setting_key"].n_unique()
