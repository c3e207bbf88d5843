"""The report: every number leads to its evidence, and nothing leads out of the page's folder."""

import re
from pathlib import Path

import pytest
from nearfree.events.names import Layout
from nearfree.report.stage import write_report
from nearfree.tables.boundaries import BOUNDARIES
from nearfree.tables.store import read_table
from tables.logs import SHEETS

from report.conftest import SCOPES
from report.page import Page


@pytest.fixture(scope="module")
def read(page: str) -> Page:
    """Return the parsed report."""
    return Page(page)


def test_every_link_has_its_target(read: Page) -> None:
    """Each link inside the page leads to an id that is there."""
    inside = {link[1:] for link in read.links if link.startswith("#")}
    assert inside
    assert inside - set(read.ids) == set()


def test_ids_are_unique(read: Page) -> None:
    """No id stands twice, so that a link leads to one place."""
    assert sorted(read.ids) == sorted(set(read.ids))


def test_every_file_that_is_linked_is_there(made: Layout, read: Page) -> None:
    """Each link to a segment, a seal or a figure leads to a file beside the report."""
    outside = {link for link in read.links if not link.startswith("#")}
    assert any(link.endswith(".jsonl") for link in outside)
    for link in outside:
        assert (made.root / "report" / link).resolve().is_file()
        assert link.startswith(("../events/", "../figures/"))


def test_every_number_of_the_answer_links(read: Page) -> None:
    """In the first table each cell that holds a number links to its audit line, but for b."""
    head, *rows = read.tables[0]
    assert [cell.text for cell in head[:3]] == ["module", "setting", "N_max"]
    assert len(rows) == 2
    for row in rows:
        numbers = [cell for cell in row[2:] if re.search(r"[0-9]", cell.text)]
        assert len(numbers) >= 5
        assert all(cell.href.startswith("#") for cell in numbers)


def test_a_number_is_the_tables(made: Layout, read: Page) -> None:
    """The headline numbers are those of the table of boundaries, at the headline tolerance."""
    found = read_table(made, "cpu", BOUNDARIES).filter("newest", epsilon=0.2).sort("batch")
    shown = [(row[1].text, row[2].text, row[2].href) for row in read.tables[0][1:]]
    assert shown == [
        (f"b {r['batch']}", str(r["n_max"]), f"#{r['row_id'].replace(':', '-')}")
        for r in found.to_dicts()
    ]


def test_nothing_is_loaded_from_a_network(page: str, read: Page) -> None:
    """No source, link or style of the page names another host."""
    for _, name, value in read.attributes:
        if name in {"src", "href", "xlink:href", "srcset", "data", "action", "poster"}:
            assert not re.match(r"\s*(https?:)?//", value)
    assert not re.search(r"url\(\s*['\"]?(https?:)?//", page)
    assert "@import" not in page
    assert not read.tags & {"script", "iframe", "object", "embed", "link", "base", "form"}


def test_the_page_forbids_scripts(page: str) -> None:
    """The page's own policy allows no script and no other host."""
    assert "Content-Security-Policy\" content=\"default-src 'none';" in page
    assert "script-src" not in page


def test_the_page_is_the_same_each_time(made: Layout, page: str) -> None:
    """The same tables give the same page, byte for byte."""
    assert write_report(made, SCOPES, SHEETS, 0.2).read_text(encoding="utf-8") == page


def test_each_platform_has_its_section(read: Page) -> None:
    """There is a section and a link for each platform, and none for what is only published."""
    assert {"platform-cpu", "platform-h20"} <= set(read.ids)
    assert "platform-public" not in read.ids
    assert {"#platform-cpu", "#platform-h20"} <= set(read.links)


def test_each_run_is_told(made: Layout, read: Page) -> None:
    """Each sealed take has its run, with command, commit and versions."""
    for take in made.takes():
        assert str(take).replace("/", "-") in read.ids
        assert str(take) in read.text
    assert "nearfree measure cpu dense" in read.text
    assert "0123456789abcdef0123456789abcdef01234567" in read.text


def test_platforms_with_the_same_setting_keep_their_own_numbers(read: Page) -> None:
    """A setting that two platforms measured has a line for each of them."""
    lines = [
        tuple(cell.text for cell in row[:3])
        for table in read.tables
        if table[0][0].text == "study or table"
        for row in table[1:]
    ]
    assert len(lines) == len(set(lines))
    for platform in ("cpu (measured)", "h20 (measured)"):
        batches = [
            what[:7] for table, name, what in lines if (table, name) == ("dense_ffn", platform)
        ]
        assert sorted(batches) == ["batch 1", "batch 2"]


def test_no_private_path_is_shown(page: str, made: Layout) -> None:
    """The page holds neither the home folder nor the folder of the results."""
    assert str(Path.home()) not in page or str(Path.home()) == "/"
    assert str(made.root) not in page
