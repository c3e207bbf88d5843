"""The parts of the report as plain data: cells, runs and comparisons of takes."""

from typing import Any

import polars as pl
import pytest
from conftest import make_plan, make_started
from derive.tables.logs import make_tables, make_take, write_probe, write_study
from msgspec import structs
from nearfree.backends.adapters.kernel import ADAPTERS
from nearfree.core.label import subject
from nearfree.derive.predict.predictions import PREDICTIONS
from nearfree.derive.tables.boundaries import BOUNDARIES, SENSITIVITY
from nearfree.derive.tables.latency import LATENCY
from nearfree.derive.tables.schema import Table
from nearfree.derive.tables.store import read_table
from nearfree.log.events import RunFinished, Scheduler
from nearfree.log.evidence import read_scope
from nearfree.log.names import Layout
from nearfree.show.page import sections
from nearfree.show.page.evidence import anchor, runs

from show.figures.marks import again

Row = dict[str, Any]


def frames(layout: Layout, *kinds: Table, scope: str = "cpu") -> list[pl.DataFrame]:
    """Return some tables of a scope."""
    return [read_table(layout, scope, kind) for kind in kinds]


@pytest.fixture
def reshaped(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    """Return tables of a study whose shape changed after its first take."""
    layout = Layout(tmp_path_factory.mktemp("reshaped"))
    write_probe(layout)
    write_study(layout, batches=(1, 2))
    write_study(layout, take=2, batches=(1, 2), d_ff=9216)
    make_tables(layout, "cpu")
    return layout


def test_an_interval_as_text() -> None:
    """An interval of one N is that N, a wider one has both ends, an unknown one is a dash."""
    assert sections.interval({"n_low": 4, "n_high": 4}) == "4"
    assert sections.interval({"n_low": 4, "n_high": 8}) == "4 to 8"
    assert sections.interval({"n_low": None, "n_high": None}) == "-"


def test_an_anchor_is_a_valid_id() -> None:
    """An anchor needs no escaping in a link."""
    assert anchor("latency:0a1b") == "latency-0a1b"
    assert anchor("cpu/dense/1-abcd") == "cpu-dense-1-abcd"
    assert anchor('a"b<c> d') == "a-b-c--d"


def test_refused_predictions_are_told(made: Layout) -> None:
    """A refusal is shown instead of a number."""
    boundaries, predictions = frames(made, BOUNDARIES, PREDICTIONS)
    none = predictions.with_columns(pl.lit(None, dtype=pl.Float64).alias("n_max"))
    grid = sections.answer(boundaries, none, 0.2)
    assert {cell.text for row in grid.rows for cell in row[8:]} == {"refused"}
    assert len(grid.head) == len(grid.rows[0])


def test_a_law_that_was_not_asked_is_a_dash(made: Layout) -> None:
    """A law without a row is a dash; a refusal links its row."""
    boundaries, predictions = frames(made, BOUNDARIES, PREDICTIONS)
    (first, *_) = predictions.filter(epsilon=0.2)["setting_key"]
    one = pl.col("setting_key") == first
    none = predictions.filter(one).with_columns(pl.lit(None, dtype=pl.Float64).alias("n_max"))
    cells = [cell for row in sections.answer(boundaries, none, 0.2).rows for cell in row[8:]]
    assert {(cell.text, bool(cell.href)) for cell in cells} == {("refused", True), ("-", False)}


def test_an_unbounded_prediction_is_told(made: Layout) -> None:
    """An unbounded prediction is shown as such and links its row."""
    boundaries, predictions = frames(made, BOUNDARIES, PREDICTIONS)
    unbounded = predictions.with_columns(
        pl.lit(None, dtype=pl.Float64).alias("n_max"), pl.lit(value=True).alias("unbounded")
    )
    cells = [cell for row in sections.answer(boundaries, unbounded, 0.2).rows for cell in row[8:]]
    assert {cell.text for cell in cells} == {"unbounded"}
    assert all(cell.href for cell in cells)


def test_takes_are_compared_where_there_are_two(made: Layout) -> None:
    """A setting with several takes has a line per take with boundary and T(1)."""
    grid = sections.takes(*frames(made, BOUNDARIES, LATENCY), 0.2)
    assert [row[2].text[0] for row in grid.rows] == ["1", "2", "1", "2"]
    assert {row[6].text for row in grid.rows} <= {"yes", "no"}
    assert all(row[3].href and row[5].href for row in grid.rows)
    assert sections.takes(*frames(made, BOUNDARIES, LATENCY, scope="h20"), 0.2).rows == ()


@pytest.mark.parametrize(("other", "overlap"), [((4, 8), "yes"), ((8, 16), "yes"), ((9, 16), "no")])
def test_intervals_overlap_or_not(made: Layout, other: tuple[int, int], overlap: str) -> None:
    """Two takes agree if their intervals share an N."""
    boundaries, latency = frames(made, BOUNDARIES, LATENCY)
    second = pl.col("take") == 2
    changed = boundaries.with_columns(
        pl.when(second).then(other[0]).otherwise(4).alias("n_low"),
        pl.when(second).then(other[1]).otherwise(8).alias("n_high"),
    )
    assert {row[6].text for row in sections.takes(changed, latency, 0.2).rows} == {overlap}


def test_every_setting_has_one_line(reshaped: Layout) -> None:
    """Settings that differ in widths only have a line each, with all tolerances."""
    grid = sections.by_tolerance(*frames(reshaped, BOUNDARIES, SENSITIVITY))
    assert len(grid.rows) == 4
    assert "-" not in {cell.text for row in grid.rows for cell in row}
    assert len({tuple(cell.text for cell in row[:3]) for row in grid.rows}) == 4
    (judged,) = frames(reshaped, SENSITIVITY)
    judged_by_row = {row["row_id"]: row for row in judged.to_dicts()}
    for *_, verdict, _, why in grid.rows:
        assert verdict.text == ("robust" if judged_by_row[verdict.row]["robust"] else "fragile")
        assert why.text == judged_by_row[verdict.row]["why"]


def test_every_line_of_the_answer_names_its_setting(reshaped: Layout) -> None:
    """Lines of settings that differ in widths only name the width."""
    grid = sections.answer(*frames(reshaped, BOUNDARIES, PREDICTIONS), 0.2)
    assert len(grid.rows) == 4
    assert len({tuple(cell.text for cell in row[:2]) for row in grid.rows}) == 4


def test_two_studies_of_one_setting_have_lines_of_their_own(made: Layout) -> None:
    """If two studies hold one setting, each line names its study."""
    boundaries, predictions = frames(made, BOUNDARIES, PREDICTIONS)
    grid = sections.answer(again(boundaries.filter(batch=1)), predictions, 0.2)
    assert {row[1].text for row in grid.rows} == {"b 1, dense_ffn", "b 1, dense_ffn_slowly"}


def test_the_subject_leaves_out_what_a_row_lacks() -> None:
    """A row is described by the fields that it has, numbers with names."""
    row: Row = {"module": "dense_ffn", "platform": "cpu", "batch": 4, "context": None, "take": 0}
    assert subject(row) == "cpu, dense_ffn, batch 4"
    assert subject(row | {"weights": "int8"}) == "cpu, dense_ffn, weights int8, batch 4"
    assert subject({"platform": "h20", "basis": "datasheet", "dtype": "bfloat16"}) == (
        "h20, datasheet, bfloat16"
    )


def test_every_attempt_s_job_is_told() -> None:
    """A run names batch job, node and GPU of each attempt that contributed."""
    job = Scheduler(system="slurm", job_id="17", restart="0", node="n1", partition="gpu", gpus="3")
    plan = make_plan()
    attempts = [
        structs.replace(make_started(plan, number), scheduler=scheduler)
        for number, scheduler in enumerate((None, job, structs.replace(job, restart="2")), 1)
    ]
    (run,) = runs([make_take(*attempts, RunFinished(outcome="complete", wall_s=1.0))])
    assert run.jobs == (
        "attempt 2: slurm job 17 on n1 (gpu, GPU 3)",
        "attempt 3: slurm job 17, restart 2 on n1 (gpu, GPU 3)",
    )


def test_a_run_too_short_for_the_clock_is_told() -> None:
    """A run with zero rounded seconds is shown."""
    for timed_s in (None, 0.0):
        end = RunFinished(outcome="complete", wall_s=0.0, timed_s=timed_s)
        assert len(runs([make_take(end)])) == 1


@pytest.mark.parametrize(
    ("wall_s", "timed_s", "outside"), [(10.0, 9.5, "5.0%"), (4.0, 4.0, "0.0%"), (0.0, 0.0, "-")]
)
def test_the_cost_is_what_lies_outside_of_forwards(
    wall_s: float, timed_s: float, outside: str
) -> None:
    """A take's line has its seconds, those in forwards, and the rest as a share."""
    end = RunFinished(outcome="complete", wall_s=wall_s, timed_s=timed_s)
    (row,) = sections.cost([make_take(end)]).rows
    assert [cell.text for cell in row[1:]] == [f"{wall_s:.1f}", f"{timed_s:.1f}", outside]


def test_what_times_nothing_has_no_cost(made: Layout) -> None:
    """A probe or an import has no line of cost."""
    grid = sections.cost(read_scope(made, "public"))
    assert grid.rows == ()


def test_a_change_of_kernels_is_told_with_its_n(made: Layout) -> None:
    """The first N with other kernels is named with its setting and the change."""
    rows = [
        {"stream": "dense", "backend": "torch", "setting_key": "a", "source": "counted", "n": n,
         "platform": "cpu", "module": "dense_ffn", "dtype": "bfloat16", "batch": 4, "take": 1,
         "kernels": kernels, "newest": True, "row_id": f"work:{n}"}
        for n, kernels in ((1, "gemv; copy"), (2, "gemm; copy"), (4, "gemm; copy"))
    ]  # fmt: skip
    (row,) = sections.cliffs(pl.DataFrame(rows)).rows
    assert [cell.text for cell in row] == ["dense, torch", "bfloat16, b 4", "2", "gemv", "gemm"]
    assert row[2].row == "work:2"


def test_adapters_are_listed_with_their_runs() -> None:
    """Each adapter's line says by kind of device whether a run is sealed."""
    grid = sections.adapters({("dense_ffn", "torch", "cpu")})
    assert len(grid.rows) == len(ADAPTERS)
    runs = {(row[0].text, row[1].text): row[3].text for row in grid.rows}
    assert runs["dense_ffn", "torch"] == "cpu: run; cuda: never run"
    assert runs["moe_ffn", "vllm"] == "cuda: never run"
