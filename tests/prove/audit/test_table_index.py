"""Rules that rows cite: the audit and the report's page find the same rows."""

import json
import shutil
from pathlib import Path

import polars as pl
import pytest
from browsing import start
from derive.tables.logs import CONFIG
from msgspec import json as msgspec_json
from nearfree.core.scopes import SOURCES
from nearfree.derive.tables.granularity import GRANULARITY
from nearfree.derive.tables.project import project
from nearfree.derive.tables.tuned import TUNED
from nearfree.errors import EvidenceError
from nearfree.log.names import Layout
from nearfree.prove.audit.table_index import TableIndex, rules_behind
from nearfree.show.page import inline
from nearfree.show.page.inline import facts, packed

RECORDED = CONFIG.parent / "results/events/sources"
RELEASES = ("flash_attn_2_8_3", "vllm_0_33_0")
FLASH = "csrc/flash_attn/flash_api.cpp"
CALLED = "317-317"
"""The split heuristic's line in that file, which the rules of calls quote beside their own."""


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> TableIndex:
    """Return the tables of two recorded releases: one with C++ sources, one with tuned files."""
    layout = Layout(tmp_path_factory.mktemp("rules"))
    for name in RELEASES:
        shutil.copytree(RECORDED / name, layout.events / SOURCES / name)
    project(layout, SOURCES, {})
    return TableIndex(layout)


@pytest.fixture(scope="module")
def cited(index: TableIndex) -> dict[str, str]:
    """Return texts that cite a branch, a line that no row holds, and a tuned file."""
    read, tuned = (index.table(SOURCES, table.name) for table in (GRANULARITY, TUNED))
    assert read is not None
    assert tuned is not None
    branch = read.filter(package="vllm", path="block_size_m").row(0, named=True)
    flash = read.filter(place=FLASH).row(0, named=True)
    file = tuned.row(0, named=True)
    texts = {
        "branch": (branch["place"], branch["lines"], branch["sha256"]),
        "called": (FLASH, CALLED, flash["sha256"]),
        "tuned": (file["file"], "2-2", file["sha256"]),
    }
    return {name: f"{at}:{lines} ({sha[:12]}), x" for name, (at, lines, sha) in texts.items()}


def test_each_cited_rule_is_found(index: TableIndex, cited: dict[str, str]) -> None:
    """A cited branch is found by its lines, a tuned file as a whole, other lines by their rules."""
    for name, text in cited.items():
        rows = index.rows(rules_behind({"evidence": text}, index)).values()
        assert rows
        if name == "tuned":
            assert {node.row["file"] for node in rows} == {text.partition(":")[0]}
            continue
        lines = {node.row["lines"] for node in rows}
        assert (lines == {text.partition(":")[2].partition(" ")[0]}) == (name == "branch")
        if name == "called":
            rules = [node.row["path"] for node in rows]
            assert {"dense_call", "varlen_call", "kvcache_call"} < set(rules)
            assert len(rules) == len(set(rules))


def test_a_column_has_one_value(index: TableIndex) -> None:
    """A column with two values is refused as such, not as a row that is not there."""
    asked = "tuned:package=vllm,package=sglang"
    with pytest.raises(EvidenceError, match="package is asked for twice, as 'vllm' and as 'sglan"):
        index.by_key(asked)
    with pytest.raises(EvidenceError, match="rows of tuned fit 'package=vllm, package=vllm': "):
        index.by_key("tuned:package=vllm, package=vllm")


@pytest.mark.parametrize("asked", ["experts=0", "d_ff=672", "experts=32", "experts="])
def test_rows_that_fit_are_counted_and_twenty_listed(index: TableIndex, asked: str) -> None:
    """The message counts all rows that fit, and lists at most twenty; an empty value is none."""
    tuned = index.table(SOURCES, TUNED.name)
    assert tuned is not None
    column, _, value = asked.partition("=")
    fits = pl.col(column) == int(value) if value else pl.col(column).is_null()
    ids = tuned.filter(fits)["row_id"].to_list()
    listed = f": {', '.join(ids[:20])}{', ...' if len(ids) > 20 else ''}" if ids else ""
    with pytest.raises(EvidenceError) as caught:
        index.by_key(f"tuned:{asked}")
    assert caught.value.what == f"{len(ids)} rows of tuned fit {asked!r}{listed}"


def test_the_counts_of_the_test_above_differ(index: TableIndex) -> None:
    """Of the rows that are asked for there are none, a few, and more than are listed."""
    tuned = index.table(SOURCES, TUNED.name)
    assert tuned is not None
    counts = [tuned.filter(pl.col(name) == number).height for name, number in
              (("experts", 0), ("d_ff", 672), ("experts", 32))]  # fmt: skip
    assert counts[0] == 0 < counts[1] <= 20 < counts[2]


@pytest.mark.browser
@pytest.mark.slow
def test_the_page_opens_the_rules_that_an_audit_names(
    index: TableIndex, cited: dict[str, str], tmp_path: Path
) -> None:
    """For each citation the page opens the rows that the audit names."""
    assets = Path(inline.__file__).parent / "assets"
    constants = (
        f"const {name} = {msgspec_json.encode(value).decode()};" for name, value in facts().items()
    )
    source = "".join((assets / name).read_text() for name in ("data.js", "words.js", "origins.js"))
    tables = [packed(table, index.table(SOURCES, table.name)) for table in (GRANULARITY, TUNED)]
    script = f"""{"".join(constants)}{source}
    const rules = JSON.parse(arguments[0]).map(({{ from, ...rest }}) => new Table(rest));
    return JSON.parse(arguments[1]).map((text) => [...text.matchAll(CITED)]
      .flatMap((parts) => citedRows(...rules, parts)).map((row) => row.rules.id(row.at)));
    """
    browser = start(tmp_path / "profile")
    try:
        texts = json.dumps([*cited.values()])
        opened = browser.execute_script(script, msgspec_json.encode(tables).decode(), texts)
    finally:
        browser.quit()
    assert [sorted(ids) for ids in opened] == [
        sorted(rules_behind({"evidence": text}, index)) for text in cited.values()
    ]
