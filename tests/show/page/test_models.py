"""The report's section on measured models: boundaries, counts, sentences and shares, linked."""

from typing import Any

import polars as pl
import pytest
from derive.outlook.test_schedules import Given
from derive.sheeted import ANSWERER, CONFIG, sheet_table
from nearfree.config.files import DeploymentSpec
from nearfree.core.label import subject
from nearfree.derive.outlook.outlook import outlook
from nearfree.derive.score.scores import SCORES, score_rows
from nearfree.derive.tables.store import read_table, write_table
from nearfree.log.names import Layout
from nearfree.show.figures.listing import Frames
from nearfree.show.figures.stage import draw
from nearfree.show.page.models import (
    _interval,
    measured_boundaries,
    misses,
    model_section,
    predictor_scores,
    uncovered,
)
from nearfree.show.page.models import models as models_of
from nearfree.show.page.sections import Grid

from show.figures.marks import again
from show.figures.measured_models import write_models
from show.page.conftest import written
from show.page.page import Page

pytestmark = pytest.mark.slow

SUM, MINIMUM = "modules sum", "modules minimum"


@pytest.fixture(scope="module")
def answer(models: Frames, scored: pl.DataFrame) -> Grid:
    """Return the table of the models' boundaries."""
    return measured_boundaries(models["boundaries"].filter(epsilon=0.2), scored)


def counted(composition: pl.DataFrame) -> pl.DataFrame:
    """Return the predictors' counts on models."""
    judged = composition.with_columns(
        (pl.col("predicted").is_not_null() | pl.col("unbounded")).alias("answered"),
        *(pl.col("hit").alias(name) for name in ("within_1_31", "within_2", "covered")),
        (pl.col("high") / pl.col("low")).alias("width"),
        pl.lit(value=False).alias("in_sample"),
    )
    rows = score_rows(judged, composition)
    return SCORES.build(rows, rows["from_ids"].explode().to_list())


def column(grid: Grid, name: str) -> list[str]:
    """Return the texts of one column."""
    place = grid.head.index(name)
    return [row[place].text for row in grid.rows]


def count(grid: Grid, predictor: str, name: str) -> str:
    """Return one count of a predictor."""
    return dict(zip(column(grid, "predictor"), column(grid, name), strict=True))[predictor]


def test_each_setting_has_a_line(models: Frames, answer: Grid) -> None:
    """Each measured setting has one line, which links its boundary."""
    at = models["boundaries"].filter(epsilon=0.2)
    links = {row[answer.head.index("N_max")].row for row in answer.rows}
    assert links == {*at["row_id"]}
    assert len(answer.rows) == at.height
    keys = ("model", "b", "L", "routing", "k")
    assert len(set(zip(*(column(answer, key) for key in keys), strict=True))) == at.height


def test_studies_of_one_model_are_told_apart(models: Frames, scored: pl.DataFrame) -> None:
    """If two studies hold one model, each line names its study."""
    at = models["boundaries"].filter(epsilon=0.2, model="qwen3_8b_cpu")
    grid = measured_boundaries(again(at), scored)
    assert set(column(grid, "model")) == {
        "qwen3_8b_cpu (qwen3_8b_cpu)",
        "qwen3_8b_cpu (qwen3_8b_cpu_slowly)",
    }


def test_what_no_setting_has_is_no_column(models: Frames, scored: pl.DataFrame) -> None:
    """Threads, which only an engine's settings have, are no column of dashes beside models."""
    at = models["boundaries"].filter(epsilon=0.2)
    assert at["threads"].is_null().all()
    assert "threads" not in measured_boundaries(at, scored).head
    one = at.with_columns(pl.lit(2, pl.Int64).alias("threads"))
    assert "threads" in measured_boundaries(one, scored).head


def test_a_dense_model_has_neither_routing_nor_k(answer: Grid) -> None:
    """A field that a model lacks is a dash."""
    for model, *values in zip(*(column(answer, n) for n in ("model", "routing", "k")), strict=True):
        assert (values == ["-", "-"]) == (model in ("qwen3_8b_cpu", "wedlm_8b_cpu"))


def test_the_measured_limiter_is_told_with_its_part(scored: pl.DataFrame, answer: Grid) -> None:
    """Each boundary shows the module that grew most and its part of the growth."""
    expected = scored.select("setting_key", "measured_limiter", "measured_growth").unique()
    texts = [f"{limiter}, {growth:.0%}" for _, limiter, growth in expected.rows()]
    assert sorted(column(answer, "grew most, part of the growth")) == sorted(texts)


def test_a_prediction_is_told_with_its_mark_and_module(scored: pl.DataFrame, answer: Grid) -> None:
    """Hits, misses and refusals are marked beside the value and the named module."""
    cells = {row[answer.head.index(MINIMUM)].row: row for row in answer.rows}
    for row in scored.filter(predictor="modules_minimum").to_dicts():
        shown = cells[row["row_id"]][answer.head.index(MINIMUM)].text
        mark = "hit" if row["hit"] else "miss"
        expected = "refused"
        if row["predicted"] is not None:
            expected = f"{row['predicted']:.0f} {mark}, {row['limiter']}"
        assert shown == expected


def test_what_is_no_hit_may_be_near(models: Frames, scored: pl.DataFrame) -> None:
    """A miss inside the measured interval is marked apart from other misses."""
    near = scored.with_columns(pl.lit(value=False).alias("hit"), pl.lit(value=True).alias("within"))
    grid = measured_boundaries(models["boundaries"].filter(epsilon=0.2), near)
    assert {text.split(" ")[1].rstrip(",") for text in column(grid, SUM) if text != "refused"} == {
        "near"
    }


def test_a_predictor_that_never_answers_has_no_column(answer: Grid) -> None:
    """A predictor that refuses every setting is in the counts only."""
    assert not [name for name in answer.head if name.startswith("work model")]


def test_models_without_predictions_are_told(models: Frames, scored: pl.DataFrame) -> None:
    """A boundary without predictions is shown with its interval."""
    grid = measured_boundaries(models["boundaries"].filter(epsilon=0.2), scored.clear())
    assert len(grid.rows) == models["boundaries"].filter(epsilon=0.2).height
    assert set(column(grid, grid.head[-1])) == {"-"}


def test_counts_are_those_of_the_table(scored: pl.DataFrame) -> None:
    """Answered, hits, within and foretold count all settings, refused ones included."""
    rows = counted(scored)
    grid = predictor_scores(rows)
    mine = scored.filter(predictor="modules_minimum")
    for name, flags in (
        ("answered", mine["predicted"].is_not_null()),
        ("hits", mine["hit"]),
        ("within the interval", mine["within"]),
        ("foretold", mine["foretold"]),
    ):
        assert count(grid, MINIMUM, name) == f"{flags.sum()} of {mine.height}"
    assert {cell.row for row in grid.rows for cell in row[1:]} == {*rows["row_id"]}


def test_the_widest_interval_is_told(scored: pl.DataFrame) -> None:
    """The widest measured interval is shown beside the counts."""
    widest = scored.filter(predictor="modules_sum")["measured_width"].max()
    assert (
        count(predictor_scores(counted(scored)), SUM, "widest measured interval")
        == f"x{widest:.2f}"
    )


def test_the_same_limiter_is_counted_where_both_are_known(scored: pl.DataFrame) -> None:
    """A limiter is compared only if both are known."""
    grid = predictor_scores(counted(scored))
    known = scored.filter(predictor="modules_sum")["same_limiter"].drop_nulls()
    assert known.len() < scored.filter(predictor="modules_sum").height
    assert count(grid, SUM, "same limiter") == f"{known.sum()} of {known.len()}"


def test_each_miss_of_the_minimum_is_a_sentence(scored: pl.DataFrame) -> None:
    """A sentence names the module with N and share, what was measured, and what grew."""
    by_minimum = scored.filter(predictor="modules_minimum").drop_nulls("predicted")
    rows = by_minimum.filter(~pl.col("hit"), ~pl.col("within"))
    sentences = {cell.row: cell.text for cell in misses(scored)}
    assert set(sentences) == {*rows["row_id"]}
    for row in rows.to_dicts():
        text = sentences[row["row_id"]]
        assert text.startswith(f"{row['model']}, b = {row['batch']}, L = {row['context']}")
        assert f"names {row['limiter']} at N = {row['predicted']:.0f}" in text
        assert f"takes {row['limiter_share']:.0%} of T(N = {row['baseline']})" in text
        sign = "≥" if row["next_n"] is None else "="
        assert f"measured N_max {sign} {row['n_max']}, and {row['measured_limiter']} grew" in text


@pytest.mark.parametrize(
    ("column", "value", "part"),
    [
        ("limiter_share", None, "which takes"),
        ("measured_limiter", None, "grew most"),
        ("measured_growth", None, "of the total growth"),
    ],
)
def test_a_sentence_leaves_out_what_is_not_known(
    scored: pl.DataFrame, column: str, value: object, part: str
) -> None:
    """A sentence leaves out shares or growth that were not measured."""
    assert all(part in cell.text for cell in misses(scored))
    less = scored.with_columns(pl.lit(value, dtype=scored.schema[column]).alias(column))
    assert misses(less)
    assert not any(part in cell.text for cell in misses(less))


def test_an_undecided_boundary_is_told(scored: pl.DataFrame) -> None:
    """If the measurement is undecided, the sentence says so."""
    loose = scored.with_columns(pl.lit(value=True).alias("undecided"))
    assert not any("(undecided)" in cell.text for cell in misses(scored))
    assert all("(undecided)" in cell.text for cell in misses(loose))


def test_the_lm_head_s_share_is_that_at_the_baseline(models: Frames) -> None:
    """Each model's line has its settings' least and largest share, with rows."""
    grid = uncovered(models["time_shares"])
    at = models["time_shares"].filter(pl.col("n") == pl.col("baseline"))
    for row in grid.rows:
        for role, shown in zip(("LM head", "between"), (row[2:4], row[4:6]), strict=True):
            mine = at.filter(model=row[0].text, role=role)
            shares = dict(mine.select("row_id", "share").rows())
            ends = (min(shares.values()), max(shares.values()))
            assert tuple(shares[cell.row] for cell in shown) == ends
            assert tuple(cell.text for cell in shown) == tuple(f"{end:.1%}" for end in ends)


def test_without_models_there_is_no_section(models: Frames) -> None:
    """A platform without models has no such section."""
    frames = models | {"scores": counted(models["composition"])}
    assert model_section(frames, 0.2)
    modules = models["boundaries"].with_columns(pl.lit("attention").alias("module"))
    assert model_section(frames | {"boundaries": modules}, 0.2) is None


def test_an_audit_line_of_a_model_names_its_setting(models: Frames) -> None:
    """A model's audit line shows what distinguishes its row."""
    for frame in models.values():
        names = [subject(row) for row in frame.to_dicts()]
        assert len(set(names)) == len(names)


@pytest.fixture
def read(copy: Layout) -> Page:
    """Return the report over a log with models."""
    scores = counted(write_models(copy)["composition"])
    every = pl.concat([read_table(copy, "cpu", SCORES), scores])
    write_table(copy, "cpu", SCORES, every, {})
    draw(copy, "cpu", 0.2)
    return Page(written(copy))


def test_the_page_shows_models_in_their_platform_alone(read: Page, page: str) -> None:
    """The section is there once, with figures and links to audit lines."""
    assert read.text.count("How modules compose") == 1
    assert "How modules compose" not in page
    assert any(link.endswith("/cpu/model_nmax_against_batch.html") for link in read.links)
    for table in ("boundaries", "composition", "scores", "time_shares"):
        mine = {row for row in read.rows if row.startswith(f"{table}:")}
        assert mine
        assert mine <= read.ids_of(table)
    assert sorted(read.ids) == sorted(set(read.ids))


def test_modules_keep_their_own_table(read: Page, page: str) -> None:
    """The table of modules is the same with and without models."""
    tables = [
        next(table for table in page_read.tables if table[0][0].text == "module")
        for page_read in (Page(page), read)
    ]
    before, after = ([[cell.text for cell in row] for row in table] for table in tables)
    assert after == before


def test_what_does_not_fit_has_no_number_in_the_table_of_models() -> None:
    """Each deployment has formats and memory; N_max is shown only if it fits."""
    spec: Any = {"models": ("qwen3_8b",), "platforms": ("l40s",), "batch": (1, 64)}
    plain, small = DeploymentSpec(**spec), DeploymentSpec(**spec, weights="int4")
    made = outlook(Given(CONFIG.folder, plain=plain, small=small), ANSWERER, sheet_table())
    models = models_of(made.lookup.with_columns(row_id=pl.lit("lookup:1")).filter(epsilon=0.2))
    assert column(models, "weights / products / cache") == [
        *["bfloat16 / bfloat16 / bfloat16"] * 2,
        *["int4 / bfloat16 / bfloat16"] * 2,
    ]
    assert column(models, "memory") == [
        "19.2 GB of 48.0 GB", "57.5 GB of 48.0 GB", "8.9 GB of 48.0 GB", "47.2 GB of 48.0 GB"
    ]  # fmt: skip
    for name in ("idle compute", "work model"):
        unfit = [text == "does not fit" for text in column(models, name)]
        assert unfit == [False, True, False, False]
    assert column(models, "limited by")[1] == "memory"


def test_entries_that_differ_in_graphs_alone_have_a_line_each() -> None:
    """Two entries of one condition are named apart, each with all predictors."""
    spec: Any = {"models": ("qwen3_8b",), "platforms": ("h100",), "batch": (9,),
                 "attention": ("vllm-fa3==0.33.0",)}  # fmt: skip
    plain, padded = DeploymentSpec(**spec), DeploymentSpec(**spec, graphs="vllm==0.33.0")
    made = outlook(Given(CONFIG.folder, plain=plain, padded=padded), ANSWERER, sheet_table())
    ids = pl.concat_str(pl.lit("lookup:"), pl.int_range(pl.len()))
    lookup = made.lookup.filter(epsilon=0.2).with_columns(row_id=ids)
    models = models_of(lookup)
    assert column(models, "entry") == ["plain", "padded"]
    place = models.head.index("work model")
    summed = lookup.filter(predictor="work_model", composition="sum")
    assert [row[place].row for row in models.rows] == summed["row_id"].to_list()


@pytest.mark.parametrize(
    ("low", "high", "printed"),
    [(None, None, "-"), (3.0, 40.0, "3 to 40"), (3.0, 512.0, "3 to ≥ 512"),
     (512.0, 512.0, "≥ 512 to ≥ 512")],
)  # fmt: skip
def test_an_interval_that_ends_what_is_looked_at_is_open(
    low: float | None, high: float | None, printed: str
) -> None:
    """An interval that ends at the largest N looked at is open, as in `predict`."""
    assert _interval({"low": low, "high": high}) == printed
