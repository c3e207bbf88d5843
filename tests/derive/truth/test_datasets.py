"""Data sets by name: missing ones are refused with a remedy, small weights left out."""

from collections import Counter
from pathlib import Path

import polars as pl
import pytest
from conftest import write_payloads
from hypothesis import given
from hypothesis import strategies as st
from nearfree.config.files import Config
from nearfree.core.plan import ImportPlan
from nearfree.core.scopes import IMPORTED, PUBLIC
from nearfree.core.setting import Setting
from nearfree.derive.predict.predictions import with_launch
from nearfree.derive.score.evaluation import EVERY, evaluate
from nearfree.derive.score.scores import groups
from nearfree.derive.tables.boundaries import BOUNDARIES
from nearfree.derive.tables.latency import LATENCY
from nearfree.derive.tables.settings import SETTINGS
from nearfree.derive.tables.store import read_table
from nearfree.derive.truth.datasets import (
    Grids,
    heavy_enough,
    load_aiconfigurator,
    load_file,
    load_measured,
    load_published,
    measured_truth,
    newest_release,
    published_truth,
)
from nearfree.derive.truth.truth import Truth, questions
from nearfree.errors import ConfigError, EvidenceError
from nearfree.log.events import LatencyImported
from nearfree.log.evidence import read_scope
from nearfree.log.names import Layout
from nearfree.log.retract import retract
from nearfree.log.take import take_name
from nearfree.public import published

from derive.curves import IdleCompute, make_curves
from derive.tables.logs import (
    CONFIG,
    make_results,
    make_tables,
    write_probe,
    write_public,
    write_study,
)

HEADER = (
    "platform,module,backend,backend_version,dtype,batch,context,d_model,d_ff,gated,experts,top_k,"
    "routing,heads,kv_heads,head_dim,kernel,n,latency_us\n"
)


def test_what_is_not_there_is_refused(layout: Layout) -> None:
    """An empty results folder has no data set, and each refusal says how to get it."""
    with pytest.raises(EvidenceError, match="nearfree import published"):
        load_published(layout, [0.2])
    with pytest.raises(EvidenceError, match="nearfree import aiconfigurator"):
        load_aiconfigurator(layout, [0.2], Grids(minimum_mb=64.0))
    with pytest.raises(EvidenceError, match="Run the workflow"):
        load_measured(layout, Config(CONFIG), [0.2])


def import_gemm(layout: Layout, release: str, times: dict[int, float], width: int) -> None:
    """Put a curve of a product into the log, the way an imported release has it."""
    event = LatencyImported(
        source="a release of our own making",
        member="gemm.parquet",
        member_sha256="0" * 64,
        platform="h100",
        setting=Setting(module="gemm", backend="vllm", dtype="bfloat16", d_model=8192, d_ff=width),
        backend_version="0.9.0",
        n=tuple(times),
        latency_us=tuple(times.values()),
    )
    plan = ImportPlan(files={f"{release}.whl": "0" * 64})
    write_payloads(layout, take_name(IMPORTED, release, 1, plan), plan, event)


def test_the_newest_imported_release(layout: Layout) -> None:
    """The newest release by number counts and is named; other imports are left out."""
    flat, steep = {1: 10.0, 2: 10.0, 4: 40.0}, {1: 10.0, 2: 20.0, 4: 40.0}
    import_gemm(layout, "aiconfigurator_core_0_12_0", flat, 8192)
    import_gemm(layout, "aiconfigurator_core_0_9_0", steep, 8192)
    import_gemm(layout, "curves_mine", steep, 8192)
    name, datasets = load_aiconfigurator(layout, [0.2], Grids(minimum_mb=64.0))
    assert name == (
        "aiconfigurator (aiconfigurator_core_0_12_0),"
        " gemm weights of 64 MB or more: 0 curves left out"
    )
    assert datasets.boundaries["n_max"].to_list() == [2]


def test_an_older_release_counts_where_the_newest_is_retracted(layout: Layout) -> None:
    """A retracted import is skipped; without another the command for a new take is named."""
    steep = {1: 10.0, 2: 20.0, 4: 40.0}
    import_gemm(layout, "aiconfigurator_core_0_12_0", steep, 8192)
    import_gemm(layout, "aiconfigurator_core_0_9_0", steep, 8192)
    older, newer = layout.takes(IMPORTED)[::-1]
    retract(layout, str(newer), "a table was wrong")
    assert newest_release(layout) == older.stream
    retract(layout, str(older), "another was wrong")
    with pytest.raises(EvidenceError, match="no curve of AIConfigurator") as refused:
        newest_release(layout)
    assert "--take 2" in refused.value.remedy


def test_the_tables_of_every_platform(layout: Layout, published: Layout) -> None:
    """Measured boundaries are those of each platform that has tables, named in the title."""
    make_results(layout, published, takes=1)
    name, rows = load_measured(layout, Config(CONFIG), [0.2])
    assert name == "measured modules (cpu)"
    assert rows.settings["platform"].to_list() == ["cpu", "cpu"]


def test_a_file_of_curves(tmp_path: Path) -> None:
    """A file's curves are scored without a log."""
    path = tmp_path / "mine.csv"
    rows = [f"h100,gemm,vllm,0.9.0,bfloat16,1,,8192,8192,,,,,,,,,{n},{us}" for n, us in
            ((1, 50.0), (64, 51.0), (256, 70.0), (1024, 200.0))]  # fmt: skip
    path.write_text(HEADER + "\n".join(rows) + "\n")
    name, truth_rows = load_file(path, Config(CONFIG), [0.2], Grids())
    assert name == "mine.csv"
    assert truth_rows.boundaries.select("baseline", "n_max", "next_n").rows() == [(1, 64, 256)]
    name, question_table = load_file(path, Config(CONFIG), [0.2], Grids(minimum_mb=135.0))
    assert "135 MB or more: 1 curves left out" in name
    assert question_table.settings.is_empty()


@given(
    st.integers(1, 20000),
    st.integers(1, 20000),
    st.sampled_from([("bfloat16", None, 2), ("float8", None, 1), ("bfloat16", "int8", 1)]),
)
def test_small_products_are_left_out(
    d_model: int, d_ff: int, formats: tuple[str, str | None, int]
) -> None:
    """Products are left out by their stored weights; other modules are kept."""
    element_type, stored, size = formats
    shape = {"d_model": d_model, "d_ff": d_ff, "dtype": element_type, "weights": stored}
    settings, _ = make_curves(
        ({"module": "gemm", **shape}, {1: 1.0}), ({"module": "dense_ffn", **shape}, {1: 1.0})
    )
    weights = d_model * d_ff * size
    modules = heavy_enough(settings, 64.0)["module"].to_list()
    assert modules == (["gemm", "dense_ffn"] if weights >= 64e6 else ["dense_ffn"])


TOLERANCES = [0.05, 0.1, 0.15, 0.2, 0.3]


@pytest.fixture(scope="module")
def study_log(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    """Return a log of the paper's values and of two takes of a study, with its tables."""
    study_log = Layout(tmp_path_factory.mktemp("results"))
    write_public(study_log)
    write_probe(study_log)
    for take in (1, 2):
        write_study(study_log, "cpu", take, slower=1.0 if take == 2 else 3.0)
    make_tables(study_log, "cpu")
    return study_log


@pytest.fixture(scope="module")
def tables(study_log: Layout) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the tables of boundaries and of latencies."""
    return read_table(study_log, "cpu", BOUNDARIES), read_table(study_log, "cpu", LATENCY)


def printed(study_log: Layout, epsilons: list[float]) -> Truth:
    """Return the paper's boundaries."""
    (take,) = read_scope(study_log, PUBLIC, stream=published.STREAM)
    return published_truth(take, epsilons)


def test_the_paper_s_settings(study_log: Layout) -> None:
    """There are 54 settings of three modules on H20, and 270 boundaries over five tolerances."""
    truth = printed(study_log, TOLERANCES)
    assert Counter(truth.settings["module"]) == {"dense_ffn": 6, "attention": 16, "moe_ffn": 32}
    assert set(truth.settings["platform"]) == {"h20"}
    assert truth.boundaries.height == 270
    assert printed(study_log, [0.2]).boundaries.height == 54


def test_a_question_says_how_a_gpu_launched_its_kernels(
    study_log: Layout, tables: tuple[pl.DataFrame, pl.DataFrame]
) -> None:
    """The paper's kernels are launched one by one; a GPU's take says its launch."""
    question_rows = questions(printed(study_log, TOLERANCES))
    assert set(question_rows["launch"]) == {"eager"}
    boundaries, latency = tables
    assert set(latency["launch"]) == {"eager"}
    for timer, launch, expected in (
        ("process", "eager", None), ("simulated", "eager", None),
        ("cuda_events", "eager", "eager"), ("cuda_events", "graph", "graph"),
    ):  # fmt: skip
        timed = latency.with_columns(pl.lit(timer).alias("timer"), pl.lit(launch).alias("launch"))
        truth_rows = questions(measured_truth(boundaries, timed, [0.2]))
        assert set(truth_rows["launch"]) == {expected}
        (mine,) = with_launch(read_table(study_log, "cpu", SETTINGS), timed)["launch"].unique()
        assert mine == expected


def test_a_printed_boundary_stands_on_its_grid(study_log: Layout) -> None:
    """N_max and the N after it are neighbours of the grid, which begins at the baseline."""
    truth = printed(study_log, TOLERANCES)
    question_rows = questions(truth).rename({"asked": "curve"})
    for row in truth.boundaries.join(question_rows, on=["curve", "baseline"]).to_dicts():
        grid = [*row["grid"], None]
        assert grid[0] == row["baseline"]
        assert grid[grid.index(row["n_max"]) + 1] == row["next_n"]
        assert row["censored"] == (row["next_n"] is None)
    balanced = question_rows.filter(routing="balanced")
    assert (balanced["baseline"] * balanced["top_k"] == balanced["experts"]).all()


def test_the_paper_s_dense_settings_are_hits(study_log: Layout) -> None:
    """The law hits all six dense settings at epsilon 0.2; what it refuses are misses."""
    evaluation = evaluate(printed(study_log, [0.2]), IdleCompute(), [0.2], EVERY)
    rows = groups(evaluation.scores.filter(predictor="idle_compute"), ["module"])
    assert [(r["module"], r["settings"], r["answered"], r["hits"]) for r in rows] == [
        ("attention", 16, 0, 0),
        ("dense_ffn", 6, 6, 6),
        ("moe_ffn", 32, 0, 0),
    ]
    assert all(row["hits_first_exit"] is None for row in rows)
    assert evaluation.constants == {"work_model": ["none fitted"]}


def test_a_tolerance_without_boundaries_is_refused(
    study_log: Layout, tables: tuple[pl.DataFrame, pl.DataFrame]
) -> None:
    """A tolerance without boundaries is refused with the list of available ones."""
    with pytest.raises(ConfigError, match=r"0\.25: the paper prints 0\.05, 0\.1, 0\.15, 0\.2"):
        printed(study_log, [0.2, 0.25])
    with pytest.raises(ConfigError, match=r"0\.25: the tables hold 0\.05, 0\.1, 0\.2, 0\.3"):
        measured_truth(*tables, [0.25])


def test_measured_boundaries_are_those_of_the_tables(
    tables: tuple[pl.DataFrame, pl.DataFrame],
) -> None:
    """The newest take's boundaries and paired ratios are taken as they stand."""
    boundaries, _ = tables
    truth_rows = measured_truth(*tables, [0.1, 0.2])
    expected = boundaries.filter("newest", pl.col("epsilon").is_in([0.1, 0.2]))
    columns = ["setting_key", "epsilon", "baseline", "n_max", "first_exit", "next_n"]
    joined = truth_rows.boundaries.join(
        truth_rows.settings.select("curve", "setting_key"), on="curve"
    )
    assert joined.select(columns).sort(columns).equals(expected.select(columns).sort(columns))
    assert (
        truth_rows.boundaries["next_n_first"].to_list() == truth_rows.boundaries["next_n"].to_list()
    )
    assert set(truth_rows.settings["platform"]) == {"cpu"}
    assert truth_rows.ratios.group_by("curve").len()["len"].to_list() == [6, 6]
    assert truth_rows.ratios.filter(n=1)["ratio"].to_list() == [1.0, 1.0]


def test_a_boundary_that_a_measurement_left_open_is_undecided(
    tables: tuple[pl.DataFrame, pl.DataFrame],
) -> None:
    """The table's verdict decides it."""
    boundaries, latency = tables
    vague = boundaries.with_columns(pl.lit("undecided").alias("verdict"))
    assert measured_truth(vague, latency, [0.2]).boundaries["undecided"].all()
    assert not measured_truth(boundaries, latency, [0.2]).boundaries["undecided"].any()
