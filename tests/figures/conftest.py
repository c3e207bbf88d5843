"""A log with its tables, made once for all tests of figures."""

from collections.abc import Callable

import polars as pl
import pytest
from nearfree.events.names import Layout
from nearfree.tables.schema import Table
from nearfree.tables.store import read_table
from tables.logs import make_results


@pytest.fixture(scope="package")
def made(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    """Return a results root with a probe, a study in two takes, the paper's values and tables."""
    return make_results(Layout(tmp_path_factory.mktemp("made") / "results"))


@pytest.fixture(scope="package")
def dense(made: Layout) -> Callable[..., pl.DataFrame]:
    """Return a reader of the dense rows of those tables, over some scopes."""

    def read(kind: Table, *scopes: str) -> pl.DataFrame:
        frames = [read_table(made, scope, kind) for scope in scopes or ("cpu",)]
        return pl.concat(frames).filter(pl.col("module") == "dense_ffn")

    return read
