"""A log of all modules with its tables, made once for all tests of figures."""

import shutil
from pathlib import Path

import polars as pl
import pytest
from derive.tables.logs import make_tables, write_probe
from nearfree.derive.predict.predictions import PREDICTIONS
from nearfree.derive.tables.boundaries import BOUNDARIES
from nearfree.derive.tables.latency import LATENCY
from nearfree.derive.tables.schema import Table
from nearfree.derive.tables.store import read_table
from nearfree.derive.tables.work import WORK
from nearfree.log.names import Layout
from nearfree.show.figures.families import Rows
from once import made_once

from show.figures.studies import GRID, STUDIES, profiled, write_module_study


@pytest.fixture(scope="session")
def made(published: Layout, tmp_path_factory: pytest.TempPathFactory) -> Layout:
    """Return a root with a probe, studies of all modules, the paper's values, and tables.

    The dense study is there in two takes; attention was profiled, too.
    """

    def make(folder: Path) -> None:
        shutil.copytree(published.root, folder)
        layout = Layout(folder)
        write_probe(layout)
        write_module_study(layout, "dense_ffn", take=2)
        for stream, settings in STUDIES.items():
            seen = [profiled(setting, n) for setting, _ in settings for n in GRID]
            write_module_study(layout, stream, *(seen if stream == "attention" else []))
        make_tables(layout, "cpu")

    return Layout(made_once(tmp_path_factory, "drawn", make))


@pytest.fixture(scope="session")
def rows(made: Layout) -> Rows:
    """Return the rows of every table that this machine's figures use."""

    def of(kind: Table, *scopes: str) -> pl.DataFrame:
        return pl.concat(read_table(made, scope, kind) for scope in scopes)

    return Rows(
        latency=of(LATENCY, "cpu"),
        work=of(WORK, "cpu"),
        boundaries=of(BOUNDARIES, "cpu", "public"),
        predictions=of(PREDICTIONS, "cpu", "public"),
    )


@pytest.fixture(scope="session")
def dense(rows: Rows) -> Rows:
    """Return the rows of dense FFNs."""
    return rows.of("dense_ffn")


@pytest.fixture(scope="session")
def moe(rows: Rows) -> Rows:
    """Return the rows of MoE FFNs."""
    return rows.of("moe_ffn")


@pytest.fixture(scope="session")
def attention(rows: Rows) -> Rows:
    """Return the rows of attention."""
    return rows.of("attention")
