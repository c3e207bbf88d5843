"""Figures of whole models: each answer has its mark, and the limiting module is named."""

import json
import re
from functools import cache
from hashlib import sha256
from io import StringIO

import altair as alt
import polars as pl
import pytest
from derive.sheeted import ANSWERER, CONFIG, sheet_table
from hypothesis import given, settings
from hypothesis import strategies as st
from nearfree.derive.outlook.outlook import FORECAST, LOOKUP, outlook
from nearfree.derive.predict.forecast.forecast import headline
from nearfree.derive.tables.schema import Table
from nearfree.show.figures.listing import Drawing
from nearfree.show.figures.outlook import (
    boundary_over_batch,
    boundary_over_context,
    latency_by_module,
)
from nearfree.show.figures.stage import outlook_drawings

from show.figures.marks import marks

pytestmark = pytest.mark.slow

IDENTITY = ["deployment", "model", "platform", "attention", "moe", "routing", "dtype", "weights",
            "kv_dtype"]  # fmt: skip
ANSWERED = pl.col("n_max").is_not_null() | pl.col("unbounded")


def built(table: Table, rows: pl.DataFrame) -> pl.DataFrame:
    """Return rows as a table, without a check of their ids."""
    return table.build(rows, rows["from_ids"].explode().unique().to_list())


@cache
def tables() -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return `lookup` and `forecast` of the shipped deployments that are drawn, at 20 %."""
    answers = outlook(CONFIG, ANSWERER, sheet_table())
    lookup = answers.lookup.filter("drawn", epsilon=0.2)
    drawn = pl.col("deployment").is_in(lookup["deployment"].unique().implode())
    return built(LOOKUP, lookup), built(FORECAST, answers.forecast.filter(drawn))


@pytest.fixture(scope="module")
def lookup() -> pl.DataFrame:
    """Return the rows of `lookup`."""
    return tables()[0]


@pytest.fixture(scope="module")
def forecast() -> pl.DataFrame:
    """Return the rows of `forecast`."""
    return tables()[1]


def changed(lookup: pl.DataFrame, at: pl.Expr, **values: object) -> pl.DataFrame:
    """Return rows of `lookup` with other values where a condition holds."""
    return lookup.with_columns(
        pl.when(at).then(pl.lit(value, dtype=lookup.schema[name])).otherwise(name).alias(name)
        for name, value in values.items()
    )


def named(drawn: list[Drawing], name: str) -> Drawing:
    """Return the drawing of a name."""
    (figure,) = [candidate for candidate in drawn if candidate[0].name == name]
    return figure


def panels(chart: alt.FacetChart) -> list[str]:
    """Return a chart's panels in order."""
    order: list[str] = chart.to_dict()["facet"]["sort"]
    return order


def first_of(lookup: pl.DataFrame) -> pl.Expr:
    """Return the condition of one row that the figure over batch shows."""
    figure, _ = next(boundary_over_batch(lookup, 0.2))
    return pl.col("row_id") == figure.rows[0]


def spec(drawn: list[Drawing]) -> str:
    """Return a digest of what is drawn, with its captions."""
    text = json.dumps([(figure.name, figure.caption, chart.to_dict()) for figure, chart in drawn])
    return sha256(text.encode()).hexdigest()


@pytest.mark.parametrize(("own", "fixed"), [("batch", "context"), ("context", "batch")])
def test_every_answer_at_the_middle_is_a_point(lookup: pl.DataFrame, own: str, fixed: str) -> None:
    """Each panel shows all answers from N = 1 at the lower middle of the other axis."""
    figures = boundary_over_batch if own == "batch" else boundary_over_context
    figure, chart = named(list(figures(lookup, 0.2)), f"boundary_over_{own}")
    expected, rows = set(), set[str]()
    for group in headline(lookup).filter(ANSWERED, baseline=1).partition_by(IDENTITY):
        values = sorted(set(group[fixed]))
        shown = group.filter(pl.col(fixed) == values[(len(values) - 1) // 2])
        rows |= set(shown["row_id"])
        expected |= set(shown.filter("fits").select("row_id", "predictor", own, "n_max").rows())
    points = marks(chart, "answer")
    assert {(p["row_id"], p["predictor"], p["at"], p["y"]) for p in points} == expected
    assert sorted(figure.rows) == sorted(rows)
    assert len(points) == len(expected)


def test_what_does_not_fit_is_a_word_in_its_place(lookup: pl.DataFrame) -> None:
    """A deployment that does not fit shows one word and no N_max; the figure lists its rows."""
    figure, chart = next(boundary_over_batch(lookup, 0.2))
    (word,) = marks(chart, "unfit")
    unfit = headline(lookup.filter(~pl.col("fits"), platform="l40s", batch=64, context=4096))
    assert (word["panel"], word["at"]) == ("qwen3_8b on l40s: L = 4096", 64)
    assert not {p["row_id"] for p in marks(chart, "answer")} & set(unfit["row_id"])
    assert word["row_id"] in set(unfit["row_id"])
    assert set(unfit["row_id"]) <= {*figure.rows}
    texts = [layer["mark"].get("text") for layer in chart.to_dict()["spec"]["layer"]]
    assert "does not fit" in texts
    none = changed(lookup, pl.lit(value=True), fits=False)
    assert not marks(next(boundary_over_batch(none, 0.2))[1], "answer")


def test_what_does_not_fit_has_no_n_max_over_its_modules(
    lookup: pl.DataFrame, forecast: pl.DataFrame
) -> None:
    """A panel of what does not fit says so instead of naming a limit."""
    rows = changed(lookup, pl.col("platform") == "h20", fits=False)
    _, chart = next(latency_by_module(rows, forecast, 0.2))
    unfit = {panel for panel in panels(chart) if " on h20: " in panel}
    assert {panel for panel in panels(chart) if panel.endswith(": does not fit")} == unfit
    assert not unfit & {mark["panel"] for mark in marks(chart, "boundary")}


def test_the_paper_s_baseline_has_its_own_figure(lookup: pl.DataFrame) -> None:
    """Models with a baseline above 1 have a figure from their largest baseline."""
    _, chart = named(list(boundary_over_batch(lookup, 0.2)), "boundary_over_batch_paper_baseline")
    points = marks(chart)
    assert all("balanced" in panel for panel in panels(chart))
    top = pl.col("baseline").max().over(*IDENTITY, "batch", "context")
    largest = dict(lookup.select("row_id", top).rows())
    assert points
    assert all(point["baseline"] == largest[point["row_id"]] for point in points)
    assert max(point["baseline"] for point in points) > 1
    plain = lookup.filter(baseline=1)
    assert [figure.name for figure, _ in boundary_over_batch(plain, 0.2)] == ["boundary_over_batch"]


def test_an_unbounded_answer_is_a_triangle_at_the_top(lookup: pl.DataFrame) -> None:
    """An unbounded answer is a triangle above all other marks."""
    rows = changed(lookup, first_of(lookup), n_max=None, unbounded=True)
    points = marks(next(boundary_over_batch(rows, 0.2))[1])
    top = max(points, key=lambda point: point["y"])
    assert top["end"] == "open"
    assert [point["y"] for point in points].count(top["y"]) == 1
    assert len(points) == len(marks(next(boundary_over_batch(lookup, 0.2))[1]))


def test_a_censored_answer_is_a_triangle_where_it_is(lookup: pl.DataFrame) -> None:
    """An answer at the largest N looked at is a triangle at that N."""
    rows = changed(lookup, first_of(lookup), censored=True)
    points = {p["row_id"]: p for p in marks(next(boundary_over_batch(rows, 0.2))[1])}
    (row,) = rows.filter(first_of(lookup)).to_dicts()
    assert (points[row["row_id"]]["end"], points[row["row_id"]]["y"]) == ("open", row["n_max"])


def test_refusals_are_counted_in_the_caption(lookup: pl.DataFrame) -> None:
    """A refused prediction has no mark, and the caption counts the refusals."""
    figure, _ = next(boundary_over_batch(lookup, 0.2))
    rows = changed(lookup, first_of(lookup), n_max=None, refusal="no rule")
    less, chart = next(boundary_over_batch(rows, 0.2))
    assert set(figure.rows) - set(less.rows) == {figure.rows[0]}
    assert len(marks(chart, "answer")) == rows["fits"].filter(rows["row_id"].is_in(less.rows)).sum()
    places = pl.col("context").unique().sort()
    middle = places.get((places.len() - 1) // 2).over("deployment")
    known = headline(lookup).filter(~ANSWERED, pl.col("context") == middle, baseline=1).height
    for drawn, count in ((figure, known), (less, known + 1)):
        assert f"Refused, left out: {count} of the predictions." in drawn.caption


def test_captions_say_what_the_figures_rest_on(
    lookup: pl.DataFrame, forecast: pl.DataFrame
) -> None:
    """Captions say that nothing was measured and which constants were calibrated."""
    for figure, _ in outlook_drawings(lookup, forecast, 0.2):
        assert "Predicted, not measured." in figure.caption
        assert "Between modules: engines' constants, if known." in figure.caption
        assert "R2: gemm" in figure.caption
        regimes = re.findall(r"R\d: ", figure.caption)
        assert len(regimes) == len(set(regimes)), "each regime is named once, before its forms"
        assert len(figure.caption) < 500
    rows = changed(lookup, pl.lit(value=True), in_sample=False)
    assert "in sample" not in next(boundary_over_batch(rows, 0.2))[0].caption
    some = changed(rows, pl.col("platform") == "h20", in_sample=True)
    assert "predictions for h20 are in sample" in next(boundary_over_batch(some, 0.2))[0].caption


def test_bars_are_the_forecast(lookup: pl.DataFrame, forecast: pl.DataFrame) -> None:
    """Each module at the first batch and middle context is a part of its N's bar."""
    figure, chart = next(latency_by_module(lookup, forecast, 0.2))
    bars = marks(chart, "bar")
    expected = set()
    for group in forecast.partition_by(IDENTITY):
        first = group.filter(pl.col("batch") == group["batch"].min())
        values = sorted(set(first["context"]))
        shown = first.filter(pl.col("context") == values[(len(values) - 1) // 2])
        expected |= set(shown["row_id"])
    assert {bar["row_id"] for bar in bars} == expected
    assert len(bars) == len(expected)
    assert set(figure.rows) == expected | {mark["row_id"] for mark in marks(chart, "boundary")}


def test_parts_of_a_bar_lie_on_each_other_up_to_the_ratio(
    lookup: pl.DataFrame, forecast: pl.DataFrame
) -> None:
    """A bar's parts add up to T(N) / T(1), or to the cut, without gap or overlap."""
    _, chart = next(latency_by_module(lookup, forecast, 0.2))
    bars = pl.DataFrame(marks(chart, "bar"))
    for parts in bars.partition_by("panel", "n"):
        cut = bars["end"].max()
        ends = parts.sort("start", "end")
        assert ends["start"][0] == pytest.approx(0)
        assert ends["start"][1:].to_list() == pytest.approx(ends["end"][:-1].to_list())
        assert ends["end"][-1] == pytest.approx(min(cut, parts["ratio"][0]))


def test_the_module_that_ends_n_max_is_named(lookup: pl.DataFrame, forecast: pl.DataFrame) -> None:
    """Each panel has one mark at N_max that names the limiting module and term."""
    _, chart = next(latency_by_module(lookup, forecast, 0.2))
    bounds = {mark["panel"]: mark for mark in marks(chart, "boundary")}
    assert list(bounds) == panels(chart)
    rows = {row["row_id"]: row for row in lookup.to_dicts()}
    for panel, mark in bounds.items():
        row = rows[mark["row_id"]]
        assert (row["predictor"], row["composition"], row["baseline"]) == ("work_model", "sum", 1)
        assert mark["n_max"] == row["n_max"]
        assert f"{row['limiting_module']}, {row['limiting_term']}" in panel.replace(": ", " ")
        assert mark["label"] == f"N_max = {row['n_max']:.0f}"


def test_where_nothing_ends_it_n_max_is_a_lower_bound(
    lookup: pl.DataFrame, forecast: pl.DataFrame
) -> None:
    """A censored N_max is `at least`, and no module is named."""
    none = {"limiting_module": None, "limiting_term": None}
    rows = changed(lookup, pl.lit(value=True), censored=True, **none)
    _, chart = next(latency_by_module(rows, forecast, 0.2))
    assert all(mark["label"].startswith("N_max at least ") for mark in marks(chart, "boundary"))
    assert all("no limit" in panel for panel in panels(chart))


def test_a_module_without_a_colour_is_drawn(lookup: pl.DataFrame, forecast: pl.DataFrame) -> None:
    """A module without a listed colour gets a colour of its own."""
    known = forecast.filter(pl.col("module") != "between")  # whose grey is that of unknown ones
    other = known.with_columns(pl.col("module").replace({"LM head": "embedding"}))
    _, chart = next(latency_by_module(lookup, other, 0.2))
    scale = chart.to_dict()["spec"]["layer"][0]["encoding"]["color"]["scale"]
    assert scale["domain"][-1] == "embedding"
    assert scale["range"].count(scale["range"][-1]) == 1


def test_conditions_that_differ_elsewhere_have_panels_of_their_own(
    lookup: pl.DataFrame, forecast: pl.DataFrame
) -> None:
    """Two releases of one condition have two panels, and no mark is lost."""
    newer = pl.lit("another 9.9").alias("attention")
    both = [
        built(table, pl.concat([rows, rows.with_columns(newer)]).drop("row_id"))
        for table, rows in ((LOOKUP, lookup), (FORECAST, forecast))
    ]
    once, twice = list(outlook_drawings(lookup, forecast, 0.2)), list(outlook_drawings(*both, 0.2))
    assert sum(len(f.rows) for f, _ in twice) == 2 * sum(len(f.rows) for f, _ in once)
    assert all(
        "another 9.9" in panel or "flash" in panel for _, chart in twice for panel in panels(chart)
    )


def test_many_panels_are_a_figure_a_model(lookup: pl.DataFrame, forecast: pl.DataFrame) -> None:
    """If one figure cannot hold all panels, each model has its own figures."""
    others = [pl.format("{}-{}", "model", pl.lit(place)).alias("model") for place in range(2)]
    rows = [
        built(table, pl.concat(table_rows.with_columns(name) for name in others).drop("row_id"))
        for table, table_rows in ((LOOKUP, lookup), (FORECAST, forecast))
    ]
    models = sorted(set(rows[0]["model"]))
    drawn = [
        drawing for drawing in outlook_drawings(*rows, 0.2) if "baseline" not in drawing[0].name
    ]
    over = [drawing for drawing in drawn if drawing[0].name.startswith("boundary_over_batch_")]
    assert [figure.name for figure, _ in over] == [
        f"boundary_over_batch_{place}" for place in range(1, len(models) + 1)
    ]
    for model, (figure, chart) in zip(models, over, strict=True):
        assert model in figure.caption
        assert all(panel.startswith(f"{model} on ") for panel in panels(chart))
    names = [figure.name for figure, _ in drawn]
    assert len(set(names)) == len(names)


def test_panels_stand_by_model_routing_and_platform(
    lookup: pl.DataFrame, forecast: pl.DataFrame
) -> None:
    """Panels are ordered by model, routing and platform, independent of the values."""
    for _, chart in outlook_drawings(lookup, forecast, 0.2):
        places = [panel.split(": ") for panel in panels(chart)]
        keys = [
            (model, routing if routing in ("balanced", "skewed") else "", platform)
            for (model, platform), routing in (
                (place[0].split(" on "), place[1]) for place in places
            )
        ]
        assert keys == sorted(keys)
        assert len(set(keys)) == len(keys)


@settings(max_examples=3, deadline=None)
@given(st.integers(min_value=0, max_value=2**32))
def test_the_order_of_rows_does_not_matter(seed: int) -> None:
    """Rows in any order give the same figures."""
    rows_before = [rows.filter(model="qwen3_30b_a3b", platform="h20") for rows in tables()]
    mixed = [rows.sample(fraction=1, shuffle=True, seed=seed) for rows in rows_before]
    with alt.data_transformers.disable_max_rows():
        assert spec(list(outlook_drawings(*mixed, 0.2))) == spec(
            list(outlook_drawings(*rows_before, 0.2))
        )


def test_without_answers_nothing_is_drawn(lookup: pl.DataFrame, forecast: pl.DataFrame) -> None:
    """Empty tables, another tolerance, and refusals alone give no figure."""
    assert not list(outlook_drawings(lookup.clear(), forecast.clear(), 0.2))
    assert not list(outlook_drawings(lookup, forecast, 0.3))
    refused = changed(lookup, pl.lit(value=True), n_max=None, low=None, high=None)
    assert not list(outlook_drawings(refused, forecast.clear(), 0.2))


def test_what_is_not_drawn_is_left_out(lookup: pl.DataFrame, forecast: pl.DataFrame) -> None:
    """Deployments that are marked as not drawn have no mark."""
    some = lookup.with_columns(drawn=pl.col("platform") == "h20")
    drawn = list(outlook_drawings(some, forecast, 0.2))
    assert drawn
    assert all(" on h20: " in panel for _, chart in drawn for panel in panels(chart))


def test_text_is_no_markup(lookup: pl.DataFrame, forecast: pl.DataFrame) -> None:
    """A model's name that looks like markup is drawn as text."""
    tag = pl.lit("<script>alert(1)</script>").alias("model")
    plain_rows = [rows.filter(model="qwen3_8b", platform="h20") for rows in (lookup, forecast)]
    for figure, chart in outlook_drawings(*(rows.with_columns(tag) for rows in plain_rows), 0.2):
        drawn = StringIO()
        chart.save(drawn, format="svg")
        assert "<script" not in drawn.getvalue()
        assert "&lt;script&gt;" in drawn.getvalue()
        assert "script" not in figure.name
