"""Results with tables and figures, and the report over them, made once for all tests."""

import shutil
from pathlib import Path

import pytest
from derive.tables.logs import (
    CONFIG,
    SHEETS,
    make_tables,
    write_probe,
    write_public,
    write_study,
)
from nearfree.log.names import Layout
from nearfree.show.figures.gallery import read_gallery
from nearfree.show.figures.stage import draw
from nearfree.show.page.stage import write_report
from once import made_once

from show.page.page import Page

CONSTANTS = Path(__file__).parents[3] / "results/events/public/constants"
SCOPES = ["cpu", "h20", "public"]


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    """Return a root with two takes of this machine, another machine, the paper, and figures."""

    def make(folder: Path) -> None:
        layout = Layout(folder)
        for scope in ("cpu", "h20"):
            write_probe(layout, scope)
            write_study(layout, scope)
        write_study(layout, take=2, slower=1.1)
        write_public(layout)
        shutil.copytree(CONSTANTS, layout.events / "public" / "constants")
        for scope in SCOPES:
            make_tables(layout, scope)
        for scope in SCOPES:
            draw(layout, scope, 0.2)
        written(layout)

    return Layout(made_once(tmp_path_factory, "page", make))


@pytest.fixture(scope="session")
def page(made: Layout) -> str:
    """Return the report."""
    return (made.root / "report" / "index.html").read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def read(page: str) -> Page:
    """Return the parsed report."""
    return Page(page)


def written(layout: Layout) -> str:
    """Write the report over all scopes of a root, and return it."""
    paper = read_gallery(layout, CONFIG, SCOPES)
    return write_report(layout, SCOPES, SHEETS, 0.2, paper).read_text(encoding="utf-8")


@pytest.fixture
def copy(made: Layout, tmp_path: Path) -> Layout:
    """Return a copy of the results, which a test may change."""
    return Layout(Path(shutil.copytree(made.root, tmp_path / "results")))
