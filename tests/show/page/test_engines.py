"""The report's section on real engines: runs, ratios, steps, and this project's own forward."""

import shutil
from pathlib import Path

import polars as pl
import pytest
from derive.tables.logs import make_tables
from engine_takes import FILE, GRID, RELEASE, SETTING, STREAM, loaded, write_engine, write_rules
from msgspec import structs
from nearfree.log.events import EngineLoaded
from nearfree.log.evidence import Take, read_scope
from nearfree.log.names import Layout
from nearfree.show.figures.stage import draw
from nearfree.show.page.engines import (
    EngineSection,
    comparable_models,
    engine_boundaries,
    engine_section,
    features,
    number_runs,
    steps,
)
from nearfree.show.page.headline import answers
from nearfree.show.page.models import model_section
from nearfree.show.page.sections import Grid
from nearfree.show.page.sections import answer as modules_answer
from nearfree.show.page.stage import scope_frames
from once import made_once

from show.figures.measured_models import write_models
from show.page.conftest import written
from show.page.page import Page

pytestmark = pytest.mark.slow

SETTINGS = [
    structs.replace(SETTING, batch=batch, threads=threads, repack=repack)
    for batch, threads, repack in ((1, 1, True), (4, 1, True), (1, 2, True), (1, 1, False))
]
Frames = dict[str, pl.DataFrame]


@pytest.fixture(scope="module")
def layout(made: Layout, tmp_path_factory: pytest.TempPathFactory) -> Layout:
    """Return a root with an engine beside modules and models, with its report."""

    def make(folder: Path) -> None:
        shutil.copytree(made.root, folder, dirs_exist_ok=True)
        root = Layout(folder)
        write_rules(root)
        write_engine(root, *SETTINGS)
        make_tables(root, "cpu")
        write_models(root)
        draw(root, "cpu", 0.2)
        written(root)

    return Layout(made_once(tmp_path_factory, "engine_page", make))


@pytest.fixture(scope="module")
def read(layout: Layout) -> Page:
    """Return the report over that root."""
    return Page((layout.root / "report" / "index.html").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def frames(layout: Layout) -> Frames:
    """Return the platform's tables by name."""
    return scope_frames(layout, "cpu")


@pytest.fixture(scope="module")
def takes(layout: Layout) -> list[Take]:
    """Return the platform's takes."""
    return read_scope(layout, "cpu")


@pytest.fixture(scope="module")
def section(frames: Frames, takes: list[Take]) -> EngineSection:
    """Return the section of that platform."""
    engines = engine_section(frames, takes, 0.2)
    assert engines is not None
    return engines


def column(grid: Grid, name: str) -> list[str]:
    """Return the texts of a column."""
    return [row[grid.head.index(name)].text for row in grid.rows]


def test_without_an_engine_there_is_no_section(
    frames: Frames, takes: list[Take], page: str
) -> None:
    """A platform without an engine has no such section."""
    modules = frames["boundaries"].filter(pl.col("module") != "engine")
    assert engine_section(frames | {"boundaries": modules}, takes, 0.2) is None
    assert "A real engine" not in page


def test_a_sentence_says_what_ran(section: EngineSection, takes: list[Take]) -> None:
    """A sentence names engine, release, file, bytes, threads, library and features."""
    events = {e.event_id: e.data for take in takes for e in take.events_of(EngineLoaded)}
    assert {build.row for build in section.builds} == set(events)
    for told in section.builds:
        assert f"llama_cpp {RELEASE} (an-engine) ran tiny, 98.4 MB of q8_0 weights" in told.text
        assert "libggml-cpu-wide.so, with WIDE." in told.text
        repacked = events[told.row].repack
        assert ("repacked where the release does" in told.text) == repacked
        assert ("in the file's layout" in told.text) != repacked
        assert ("on 1 and on 2 threads" if repacked else "on 1 thread;") in told.text


def test_features_are_those_that_the_library_has() -> None:
    """Features that are off and the library's own options are left out."""
    loaded_event = loaded(
        system_info="CPU : AVX = 1 | AVX2 = 0 | FMA = 1 | LLAMAFILE = 1 | REPACK = 1 |"
    )
    assert features(loaded_event) == ["AVX", "FMA"]


def test_ratios_are_those_of_the_table(section: EngineSection, frames: Frames) -> None:
    """Each ratio equals its linked row's; an N without one is empty."""
    ratios = dict(frames["latency"].select("row_id", "ratio").rows())
    for n in (2, 4, 8, 16):
        place = section.boundaries.head.index(f"T({n})/T(1)")
        for row in section.boundaries.rows:
            assert row[place].text == f"{ratios[row[place].row]:.2f}"
    first = frames["boundaries"].filter("newest", epsilon=0.2, module="engine")
    less = frames["latency"].filter(pl.col("n") != GRID[-1])
    assert set(
        column(engine_boundaries(first, less, frames["predictions"].clear()), "T(16)/T(1)")
    ) == {"-"}


def test_a_line_a_setting(section: EngineSection) -> None:
    """Lines differ by batch, threads or repacking."""
    columns = {name: column(section.boundaries, name) for name in ("b", "threads", "repacked")}
    assert sorted(zip(*columns.values(), strict=True)) == [
        ("1", "1", "no"), ("1", "1", "yes"), ("1", "2", "yes"), ("4", "1", "yes"),
    ]  # fmt: skip


def test_a_predictor_stands_there_once_it_answers(frames: Frames) -> None:
    """Columns with refusals only are left out; an answer links its row."""
    engines = frames["boundaries"].filter("newest", epsilon=0.2, module="engine")
    predictions = frames["predictions"].filter(epsilon=0.2, module="engine")
    latency = frames["latency"].filter("newest")
    refused = predictions.with_columns(pl.lit(None, dtype=pl.Float64).alias("n_max"))
    assert not any(
        "principle" in name for name in engine_boundaries(engines, latency, refused).head
    )
    given = predictions.filter(predictor="principle_resolved", basis="probed_gemm").with_columns(
        pl.lit(4.0).alias("n_max")
    )
    grid = engine_boundaries(engines, latency, given)
    assert set(column(grid, "principle resolved, probed gemm")) == {"4.0"}


def test_steps_are_told_once_for_settings_that_agree(section: EngineSection) -> None:
    """Each rule is one line with its numbers of rows, file and lines."""
    grid = section.steps
    place = [grid.head.index(name) for name in ("weights", "rule", "source")]
    lines = {tuple(row[i].text for i in place) for row in grid.rows}
    assert ("q8_0", "sgemm", f"{FILE}:30-31") in lines
    assert ("q4_1", "vector", f"{FILE}:50-51") in lines
    shown = column(grid, "threads")
    assert "1, 2" in shown
    assert len(grid.rows) < 20


def test_a_refusal_of_rules_is_told(frames: Frames) -> None:
    """If no rule gives the passes, the reason is shown instead."""
    row = frames["engine_steps"].head(1)
    empty = [pl.lit(None, dtype=row.schema[name]).alias(name) for name in ("rows", "rule", "file")]
    grid = steps(row.with_columns(*empty, pl.lit("no rules are read").alias("refusal")))
    assert column(grid, "rule") == ["no rules are read"]
    assert column(grid, "from rows b N") == ["-"]


@pytest.mark.parametrize(
    ("numbers", "text"),
    [((2, 3, 4), "2 to 4"), ((2, 4, 5, 9), "2, 4 to 5, 9"), ((), ""), ((None,), "")],
)
def test_spans(numbers: tuple[int | None, ...], text: str) -> None:
    """Consecutive numbers are shown as a span."""
    assert number_runs(numbers) == text


def test_our_own_forward_stands_beside_it_with_a_reason(
    section: EngineSection, frames: Frames, takes: list[Take]
) -> None:
    """Formats and kernels of both forwards are named; without ours nothing is shown."""
    assert section.difference.startswith("Own forwards of other models keep weights in float32")
    assert "q4_1 and q8_0" in section.difference
    engines = frames["boundaries"].filter("newest", epsilon=0.2, module="engine")
    models = frames["boundaries"].filter("newest", epsilon=0.2, module="model")
    same = models.head(1).with_columns(pl.lit("tiny").alias("model"))
    assert comparable_models(pl.concat([models, same]), engines)["model"].to_list() == ["tiny"]
    assert set(comparable_models(models, engines)["batch"]) == {1, 4}
    none = frames["boundaries"].filter(pl.col("module") != "model")
    without = engine_section(frames | {"boundaries": none}, takes, 0.2)
    assert without is not None
    assert (without.difference, without.own_forwards.rows) == ("", ())


def test_engines_stand_in_no_table_of_modules_or_models(frames: Frames) -> None:
    """An engine's forward is in its own section only."""
    modules = modules_answer(frames["boundaries"], frames["predictions"], 0.2)
    assert not any("engine" in text for text in column(modules, "module"))
    models = model_section(frames, 0.2)
    assert models is not None
    assert "tiny" not in column(models.boundaries, "model")
    assert "tiny" not in column(models.uncovered, "model")


def test_the_first_screen_names_the_engine_and_its_file_type(frames: Frames) -> None:
    """An engine's line has no element type, and says whether weights were repacked."""
    lines = answers(frames["boundaries"], frames["composition"], 0.2)
    (line,) = (line for line in lines if line.name == "tiny")
    assert line.about == f"llama_cpp, {RELEASE}, q8_0"
    labels = [chip.label for chip in line.chips]
    assert len(set(labels)) == len(SETTINGS)
    assert sum("not repacked" in label for label in labels) == 1


def test_the_page_has_the_section_with_its_figures_once(read: Page) -> None:
    """Numbers link to rows of the page, and the gallery has no figures of engines."""
    assert read.text.count("A real engine") == 1
    for table in ("boundaries", "latency", "engine_steps"):
        mine = {row for row in read.rows if row.startswith(f"{table}:")}
        assert mine
        assert mine <= read.ids_of(table)
    assert any(row.startswith(f"cpu/{STREAM}/") for row in read.rows)
    assert sorted(read.ids) == sorted(set(read.ids))
    assert sum("engine_ratio_against_n" in link for link in read.links) == 1
