"""A log and its tables, made once for all tests of this folder."""

from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from nearfree.derive.tables.schema import Table
from nearfree.derive.tables.store import read_table
from nearfree.log.names import Layout
from once import made_once

from derive.tables.logs import make_results


@pytest.fixture(scope="session")
def made(published: Layout, tmp_path_factory: pytest.TempPathFactory) -> Layout:
    """Return a results root with a probe, two takes of a study, the paper's values and tables."""
    made = made_once(tmp_path_factory, "tabled", lambda to: make_results(Layout(to), published))
    return Layout(made)


@pytest.fixture
def table(made: Layout) -> Callable[[Table, str], pl.DataFrame]:
    """Return a reader of those tables."""
    return lambda kind, scope="cpu": read_table(made, scope, kind)


@pytest.fixture
def empty(tmp_path: Path) -> Layout:
    """Return an empty results root."""
    return Layout(tmp_path / "results")
