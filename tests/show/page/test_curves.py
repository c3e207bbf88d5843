"""The report's section on imported curves, which exists if the log keeps some."""

import shutil
from pathlib import Path

import pytest
from derive.reference.kept import SOURCE, kept_on_two, write_kept
from nearfree.derive.reference.kernels import KERNELS, write_kernels
from nearfree.derive.tables.store import read_table
from nearfree.log.names import Layout
from nearfree.show.figures.stage import draw
from once import made_once

from show.page.conftest import written
from show.page.page import Page

FIGURE = "figure-public-imported_curves"


@pytest.fixture(scope="module")
def kept_results(made: Layout, tmp_path_factory: pytest.TempPathFactory) -> Layout:
    """Return results with kernels in the log, and their report."""

    def make(folder: Path) -> None:
        layout = Layout(Path(shutil.copytree(made.root, folder)))
        write_kept(layout, *kept_on_two())
        write_kernels(layout, "public", epsilon=0.2)
        draw(layout, "public", 0.2)
        written(layout)

    return Layout(made_once(tmp_path_factory, "kept", make))


@pytest.fixture(scope="module")
def shown(kept_results: Layout) -> Page:
    """Return that report."""
    return Page((kept_results.root / "report" / "index.html").read_text(encoding="utf-8"))


@pytest.mark.slow
def test_the_section_stands_between_published_boundaries_and_the_gallery(shown: Page) -> None:
    """The section has a link, and says what is kept, where, and that it is imported."""
    places = [shown.ids.index(name) for name in ("tolerance", "curves", "gallery")]
    assert places == sorted(places)
    assert "#curves" in shown.links
    section = shown.text.partition("Imported curves")[2]
    assert "Imported, not measured here" in shown.text
    assert "public/kernels" in section


def test_the_figure_is_there_once_with_its_origin(shown: Page) -> None:
    """The figure is in this section only; its caption names release and licence."""
    assert shown.ids.count(FIGURE) == 1
    assert shown.ids.index("curves") < shown.ids.index(FIGURE) < shown.ids.index("gallery")
    assert SOURCE in shown.text
    assert "figures/public/imported_curves.html" in shown.links


def test_every_row_of_the_figure_is_in_the_page(kept_results: Layout, shown: Page) -> None:
    """A mark's row opens the ids that it was made from."""
    rows = set(read_table(kept_results, "public", KERNELS)["row_id"])
    assert rows
    assert rows == shown.ids_of("kernels")


def test_without_kept_curves_there_is_no_section(read: Page) -> None:
    """Without the stream there is no section and no link to it."""
    assert "curves" not in read.ids
    assert "#curves" not in read.links
    assert read.ids_of("kernels") == set()


def test_a_workflow_makes_the_table_for_the_public_scope_alone(made: Layout) -> None:
    """The stages write the table for the public scope, not for a platform."""
    assert read_table(made, "public", KERNELS).is_empty()
    assert not made.table("cpu", "kernels").exists()
