"""Printed and measured boundaries as truths: every one of them, and what they are scored as."""

from collections import Counter

import polars as pl
import pytest
from nearfree.core.scopes import PUBLIC
from nearfree.derive.score.evaluation import EVERY, evaluate
from nearfree.derive.score.scores import groups
from nearfree.derive.tables.boundaries import BOUNDARIES
from nearfree.derive.tables.latency import LATENCY
from nearfree.derive.tables.store import read_table
from nearfree.derive.truth.boundary_tables import measured_truth, published_truth
from nearfree.derive.truth.truth import Truth, questions
from nearfree.errors import ConfigError
from nearfree.log.evidence import read_scope
from nearfree.log.names import Layout
from nearfree.public import published

from derive.curves import IdleCompute
from derive.tables.logs import make_tables, write_probe, write_public, write_study

TOLERANCES = [0.05, 0.1, 0.15, 0.2, 0.3]


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    """Return a log of the paper's values and of two takes of a study, with its tables."""
    layout = Layout(tmp_path_factory.mktemp("results"))
    write_public(layout)
    write_probe(layout)
    for take in (1, 2):
        write_study(layout, "cpu", take, slower=1.0 if take == 2 else 3.0)
    make_tables(layout, "cpu")
    return layout


@pytest.fixture(scope="module")
def tables(layout: Layout) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the tables of boundaries and of latencies."""
    return read_table(layout, "cpu", BOUNDARIES), read_table(layout, "cpu", LATENCY)


def printed(layout: Layout, epsilons: list[float]) -> Truth:
    """Return the paper's boundaries."""
    (take,) = read_scope(layout, PUBLIC, stream=published.STREAM)
    return published_truth(take, epsilons)


def test_the_paper_s_settings(layout: Layout) -> None:
    """There are 54 settings of three modules on H20, and 270 boundaries over five tolerances."""
    found = printed(layout, TOLERANCES)
    assert Counter(found.settings["module"]) == {"dense_ffn": 6, "attention": 16, "moe_ffn": 32}
    assert set(found.settings["platform"]) == {"h20"}
    assert found.boundaries.height == 270
    assert printed(layout, [0.2]).boundaries.height == 54


def test_a_printed_boundary_stands_on_its_grid(layout: Layout) -> None:
    """N_max and the N after it are neighbours of the grid, which begins at the baseline."""
    found = printed(layout, TOLERANCES)
    asked = questions(found).rename({"asked": "curve"})
    for row in found.boundaries.join(asked, on=["curve", "baseline"]).to_dicts():
        grid = [*row["grid"], None]
        assert grid[0] == row["baseline"]
        assert grid[grid.index(row["n_max"]) + 1] == row["next_n"]
        assert row["censored"] == (row["next_n"] is None)
    balanced = asked.filter(routing="balanced")
    assert (balanced["baseline"] * balanced["top_k"] == balanced["experts"]).all()


def test_the_paper_s_dense_settings_are_hits(layout: Layout) -> None:
    """The law hits all six dense settings at epsilon 0.2; what it refuses are misses."""
    found = evaluate(printed(layout, [0.2]), IdleCompute(), [0.2], EVERY)
    rows = groups(found.scores.filter(predictor="idle_compute"), ["module"])
    assert [(r["module"], r["settings"], r["answered"], r["hits"]) for r in rows] == [
        ("attention", 16, 0, 0),
        ("dense_ffn", 6, 6, 6),
        ("moe_ffn", 32, 0, 0),
    ]
    assert all(row["hits_first_exit"] is None for row in rows)
    assert found.constants == {"work_model": ["none fitted"]}


def test_a_tolerance_that_nobody_printed(
    layout: Layout, tables: tuple[pl.DataFrame, pl.DataFrame]
) -> None:
    """A tolerance without boundaries is refused, with those that there are."""
    with pytest.raises(ConfigError, match=r"0\.25: the paper prints 0\.05, 0\.1, 0\.15, 0\.2"):
        printed(layout, [0.2, 0.25])
    with pytest.raises(ConfigError, match=r"0\.25: the tables hold 0\.05, 0\.1, 0\.2, 0\.3"):
        measured_truth(*tables, [0.25])


def test_measured_boundaries_are_those_of_the_tables(
    tables: tuple[pl.DataFrame, pl.DataFrame],
) -> None:
    """The newest take's boundaries and paired ratios are taken as they stand."""
    boundaries, _ = tables
    found = measured_truth(*tables, [0.1, 0.2])
    expected = boundaries.filter("newest", pl.col("epsilon").is_in([0.1, 0.2]))
    columns = ["setting_key", "epsilon", "baseline", "n_max", "first_exit", "next_n"]
    joined = found.boundaries.join(found.settings.select("curve", "setting_key"), on="curve")
    assert joined.select(columns).sort(columns).equals(expected.select(columns).sort(columns))
    assert found.boundaries["next_n_first"].to_list() == found.boundaries["next_n"].to_list()
    assert set(found.settings["platform"]) == {"cpu"}
    assert found.ratios.group_by("curve").len()["len"].to_list() == [6, 6]
    assert found.ratios.filter(n=1)["ratio"].to_list() == [1.0, 1.0]


def test_a_boundary_that_a_measurement_left_open_is_undecided(
    tables: tuple[pl.DataFrame, pl.DataFrame],
) -> None:
    """The table's verdict decides it."""
    boundaries, latency = tables
    vague = boundaries.with_columns(pl.lit("undecided").alias("verdict"))
    assert measured_truth(vague, latency, [0.2]).boundaries["undecided"].all()
    assert not measured_truth(boundaries, latency, [0.2]).boundaries["undecided"].any()
