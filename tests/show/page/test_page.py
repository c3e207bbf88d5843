"""The report: every number leads to its evidence, and no link leaves the page's folder."""

import base64
import re
from hashlib import sha256
from pathlib import Path

import polars as pl
import pytest
from nearfree.derive.tables.boundaries import BOUNDARIES
from nearfree.derive.tables.store import read_table
from nearfree.log.document import FOLDER_MANIFEST, FolderManifest, read_document
from nearfree.log.names import Layout
from nearfree.show.page import stage
from nearfree.show.page.sections import n_max

from show.page.conftest import written
from show.page.page import Page

ROWS = "#row="


def test_every_link_has_its_target(read: Page) -> None:
    """Each internal link leads to an existing id."""
    inside = {link[1:] for link in read.links if link.startswith("#") and "=" not in link}
    assert inside
    assert inside - set(read.ids) == set()


def test_every_number_s_row_is_in_the_page(read: Page) -> None:
    """Each row that a number opens is in the page's data or an event of the log."""
    rows = {row for row in read.rows if "#" not in row}
    tables = {row.partition(":")[0] for row in rows}
    assert {"boundaries", "predictions", "scores", "platforms", "lookup", "claims"} <= tables
    for table in tables:
        assert {row for row in rows if row.startswith(f"{table}:")} <= read.ids_of(table)
    assert len(read.rows) == sum(link.startswith(ROWS) for link in read.links)


def test_what_rows_are_made_from_is_in_the_page_too(read: Page, made: Layout) -> None:
    """Each row's inputs are rows of the page, config entries or events."""
    for name in (name for name in read.blocks if name.startswith("table:")):
        for row_id in read.block(name)["from"]["values"]:
            segment, mark, line = row_id.partition("#")
            if mark:
                count = (made.events / f"{segment}.jsonl").read_bytes().count(b"\n")
                assert 1 <= int(line) <= count
            elif row_id.startswith("config/"):
                assert row_id in read.block("config")
            else:
                assert row_id in read.ids_of(row_id.partition(":")[0])


def test_ids_are_unique(read: Page) -> None:
    """No id occurs twice."""
    assert sorted(read.ids) == sorted(set(read.ids))


def test_every_file_that_is_linked_is_there(made: Layout, read: Page) -> None:
    """Each link to a seal or a figure leads to an existing file."""
    outside = {link for link in read.links if not link.startswith("#")}
    assert any(link.endswith(".seal.json") for link in outside)
    for link in outside:
        assert (made.root / "report" / link).resolve().is_file()
        assert link.startswith(("../events/", "figures/"))


def test_the_folder_can_be_mailed(made: Layout, page: str, read: Page) -> None:
    """The folder holds the page, every interactive figure, their script and a manifest."""
    folder = made.root / "report"
    there = {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}
    figures = {link for link in read.links if link.startswith("figures/")}
    assert there == {"index.html", FOLDER_MANIFEST, "figures/vega.js", *figures}
    manifest = read_document(folder / FOLDER_MANIFEST, FolderManifest)
    assert manifest.files == {
        name: sha256((folder / name).read_bytes()).hexdigest() for name in there - {FOLDER_MANIFEST}
    }
    assert (folder / "index.html").read_text(encoding="utf-8") == page


def test_what_is_no_figure_any_more_leaves_the_folder(copy: Layout) -> None:
    """A figure of an older report is removed."""
    old = copy.root / "report" / "figures" / "cpu" / "older.html"
    old.parent.mkdir(parents=True, exist_ok=True)
    old.write_text("older")
    written(copy)
    assert not old.exists()


def test_every_number_of_the_answer_links(read: Page) -> None:
    """In the table of boundaries each number except b opens its row."""
    head, *rows = next(table for table in read.tables if table[0][0].text == "module")
    assert [cell.text for cell in head[:3]] == ["module", "setting", "N_max"]
    assert len(rows) == 2
    for row in rows:
        numbers = [cell for cell in row[2:] if re.search(r"[0-9]", cell.text)]
        assert len(numbers) >= 5
        assert all(cell.href.startswith(ROWS) for cell in numbers)


def test_a_number_is_the_tables(made: Layout, read: Page) -> None:
    """The headline numbers are those of the table of boundaries at the headline tolerance."""
    boundaries = read_table(made, "cpu", BOUNDARIES).filter("newest", epsilon=0.2).sort("batch")
    table = next(table for table in read.tables if table[0][0].text == "module")
    assert [(row[1].text, row[2].text, row[2].href) for row in table[1:]] == [
        (f"b {r['batch']}", n_max(r), f"{ROWS}{r['row_id']}") for r in boundaries.to_dicts()
    ]


def test_nothing_is_loaded_from_a_network(page: str, read: Page) -> None:
    """No source, link or style of the page names another host."""
    for _, name, value in read.attributes:
        if name in {"src", "href", "xlink:href", "srcset", "data", "action", "poster"}:
            assert not re.match(r"\s*(https?:)?//", value)
    assert not re.search(r"url\(\s*['\"]?(https?:)?//", page)
    assert "@import" not in page
    assert not read.tags & {"iframe", "object", "embed", "link", "base", "form", "img"}
    script = "".join(read.scripts)
    assert not re.search(r"\bfetch\(|XMLHttpRequest|WebSocket|sendBeacon|import\(|\beval\(", script)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write", script)


def test_the_policy_names_the_page_s_own_script_alone(read: Page) -> None:
    """The policy allows no other host, script or style, even if text were markup."""
    (policy,) = [v for tag, name, v in read.attributes if tag == "meta" and "default-src" in v]
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    for (text,), rule in ((read.scripts, "script-src"), (read.styles, "style-src")):
        digest = base64.b64encode(sha256(text.encode()).digest()).decode()
        assert f"{rule} 'sha256-{digest}'" in policy
    assert not [name for _, name, _ in read.attributes if name.startswith("on") or name == "style"]


def test_of_nothing_timed_no_share_was_undisturbed(
    copy: Layout, monkeypatch: pytest.MonkeyPatch, page: str
) -> None:
    """A platform that timed nothing has no sentence on its forwards."""
    nothing = pl.Series([], dtype=pl.Int64)
    assert stage._share(nothing, nothing) is None
    assert stage._share(pl.Series([3, 2]), pl.Series([4, 6])) == 0.5
    assert "timed forwards were undisturbed" in page
    monkeypatch.setattr(stage, "_share", lambda *_: None)
    assert "timed forwards were undisturbed" not in written(copy)


def test_the_report_is_the_same_each_time(made: Layout, page: str) -> None:
    """The same tables, figures and log give the same folder byte for byte."""
    folder = made.root / "report"
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert written(made) == page
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_a_moved_root_gives_the_same_report(copy: Layout, page: str) -> None:
    """The page does not depend on the results' path."""
    assert written(copy) == page


def test_what_is_printed_is_named_where_it_is(
    copy: Layout, monkeypatch: pytest.MonkeyPatch, page: str
) -> None:
    """The section on tolerances mentions the paper's values if there are any."""
    assert "Measured here and published for H20 in the paper. The paper prints no grid" in page
    monkeypatch.setattr(stage, "printed", lambda _: "")
    assert '<p class="note">Measured here.</p>' in written(copy)


def test_each_platform_has_its_section(read: Page) -> None:
    """Each measured platform has a section and a link; published ones have none."""
    assert {"platform-cpu", "platform-h20"} <= set(read.ids)
    assert "platform-public" not in read.ids
    assert {"#platform-cpu", "#platform-h20"} <= set(read.links)


def test_long_tables_are_folded(page: str) -> None:
    """The platforms' facts and the gallery are folded."""
    facts = page[page.index('<section id="facts">') : page.index('<section id="adapters">')]
    assert facts.index("<details>") < facts.index("<table>")
    gallery = page[page.index('<section id="gallery">') :]
    assert gallery.index("<details><summary>The paper's ") < gallery.index("<table>")


def test_what_the_log_has_none_of_is_a_sentence(page: str, read: Page) -> None:
    """Where a table would be empty there is none to unfold."""
    assert "No changes of a granularity between recorded releases." in " ".join(read.text.split())
    assert "(0)</summary>" not in page


def test_a_folded_table_tells_its_rows_behind_its_name(page: str) -> None:
    """No count stands before a noun, whose form would follow from it."""
    summaries = re.findall("<summary>(.*?)</summary>", page)
    assert sum(bool(re.search(r" \(\d+\)$", summary)) for summary in summaries) > 5
    assert not any(summary[0].isdigit() for summary in summaries)


def test_each_run_is_told(made: Layout, read: Page) -> None:
    """Each sealed take shows its run with command, commit and versions."""
    for take in made.takes():
        assert str(take).replace("/", "-") in read.ids
        assert str(take) in read.text
        assert str(take) in read.block("runs")
    assert "nearfree measure cpu dense" in read.text
    assert "0123456789abcdef0123456789abcdef01234567" in read.text


def test_platforms_with_the_same_setting_keep_their_own_numbers(read: Page) -> None:
    """A setting measured on two platforms has a line for each."""
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


def test_no_private_path_is_shown(page: str, read: Page, made: Layout) -> None:
    """Page and data hold neither the home folder nor the results' folder."""
    data = [str(read.block(name)) for name in read.blocks if not name.startswith("svg:")]
    for text in (page, *data):
        assert str(Path.home()) not in text or str(Path.home()) == "/"
        assert str(made.root) not in text
