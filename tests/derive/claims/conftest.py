"""The paper's values with all tables of their scope, made once for all tests of this folder."""

import pytest
from nearfree.log.names import Layout

from derive.tables.logs import make_tables, write_public


@pytest.fixture(scope="package")
def public(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    """Return a results root with the public scope alone."""
    layout = Layout(tmp_path_factory.mktemp("public") / "results")
    write_public(layout)
    make_tables(layout, "public", (0.05, 0.1, 0.15, 0.2, 0.3))
    return layout
