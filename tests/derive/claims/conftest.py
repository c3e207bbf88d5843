"""The paper's values with all tables of their scope, made once for all tests of this folder."""

from pathlib import Path

import pytest
from nearfree.log.names import Layout
from once import made_once

from derive.tables.logs import make_tables, write_public


@pytest.fixture(scope="session")
def public(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    """Return a results root with the public scope alone."""

    def make(folder: Path) -> None:
        write_public(Layout(folder))
        make_tables(Layout(folder), "public", (0.05, 0.1, 0.15, 0.2, 0.3))

    return Layout(made_once(tmp_path_factory, "claims", make))
