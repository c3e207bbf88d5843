"""Rows by id, key or citation, and ids that do not exist; the page finds the same rules."""

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
from nearfree.derive.tables.store import write_table
from nearfree.derive.tables.tuned import TUNED
from nearfree.errors import EvidenceError
from nearfree.log.names import Layout
from nearfree.log.seal import read_seal
from nearfree.prove.audit.table_index import (
    TableIndex,
    rules_behind,
    table_files,
    unresolved_ids,
)
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


def test_printed_rows_are_found_by_their_table(index: TableIndex, tmp_path: Path) -> None:
    """Of a cited printed table the rows whose condition or path is named are found, else all.

    At most forty rules are behind a row.
    """
    read = index.table(SOURCES, GRANULARITY.name)
    assert read is not None
    number = pl.int_range(45)
    printed = read.head(45).with_columns(
        row_id=pl.format("granularity:{}", pl.lit("0" * 10) + (10 + number).cast(pl.String)),
        place=pl.when(number < 3).then(pl.lit("tab:few")).otherwise(pl.lit("tab:many-rows")),
        condition=pl.format("head_dim <= {}0", number + 1),
        path=pl.format("kernel_{}", number),
    )
    layout = Layout(tmp_path)
    write_table(layout, SOURCES, GRANULARITY, printed, {})
    ids = printed["row_id"].to_list()
    for text, expected in (
        ("tab:few", ids[:3]),
        ("tab:few, head_dim <= 20", ids[1:2]),
        ("tab:few, kernel_2", ids[2:3]),
        ("tab:few: kernel_2", ids[:3]),
        ("tab:few, head_dim <= 10, kernel_2; tab:other", [ids[0], ids[2]]),
        ("tab:many-rows tab:few", ids[3:43]),
        ("tab:few tab:many-rows", ids[:40]),
    ):
        assert rules_behind({"rule": text}, TableIndex(layout)) == expected
    assert rules_behind({"evidence": None, "says": "tab:few"}, TableIndex(layout)) == []


def test_a_column_has_one_value(index: TableIndex) -> None:
    """A column with two values is refused as such, not as a row that is not there."""
    asked = "tuned:package=vllm,package=sglang"
    with pytest.raises(EvidenceError, match="package is asked for twice, as 'vllm' and as 'sglan"):
        index.by_key(asked)
    with pytest.raises(EvidenceError, match="rows of tuned fit 'package=vllm, package=vllm': "):
        index.by_key("tuned:package=vllm, package=vllm")


def test_a_value_with_commas_stands_between_double_quotes(index: TableIndex) -> None:
    """Names of tuned files have commas and equals signs; bare, their parts are no columns."""
    tuned = index.table(SOURCES, TUNED.name)
    assert tuned is not None
    file, rows = next((file, rows) for (file,), rows in tuned.group_by("file") if "," in file)
    row = rows.row(0, named=True)
    row_id = row["row_id"]
    for asked in (f'file="{file}",row_id={row_id}', f'row_id="{row_id}",,file="{file}"'):
        assert index.by_key(f"tuned:{asked}").row == row
    with pytest.raises(EvidenceError) as caught:
        index.by_key(f"tuned:file={file}")
    assert 'column="a,b"' in caught.value.remedy


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


def test_a_row_is_found_by_its_id(index: TableIndex) -> None:
    """Rows of several tables are found by their ids, each with its scope and table."""
    tables = {table.name: index.table(SOURCES, table.name) for table in (GRANULARITY, TUNED)}
    first = {name: frame.row(0, named=True) for name, frame in tables.items() if frame is not None}
    rows = index.rows([row["row_id"] for row in first.values()])
    assert {row_id: (row.scope, row.table.name, row.row) for row_id, row in rows.items()} == {
        row["row_id"]: (SOURCES, name, row) for name, row in first.items()
    }


@pytest.mark.parametrize("asked", ["tuned:000000000000", "nothing:000000000000", "tuned", ""])
def test_an_id_without_a_row_is_refused(index: TableIndex, asked: str) -> None:
    """An id that no table has is named, whether or not its form is that of an id."""
    with pytest.raises(EvidenceError) as caught:
        index.rows([asked])
    assert caught.value.what == f"no table has the row {asked}"


def test_one_row_is_found_by_its_key(index: TableIndex) -> None:
    """Numbers, texts, flags and empty values of a row's key name it; spaces do not count."""
    tuned = index.table(SOURCES, TUNED.name)
    assert tuned is not None
    row = tuned.filter(pl.col("per_channel_quant").not_()).row(-1, named=True)
    names = [name for name in TUNED.dtypes if name not in ("row_id", "from_ids", "file")]
    text = ", ".join(f"{name} = {'' if row[name] is None else row[name]}" for name in names)
    assert index.by_key(f"tuned:{text}").row == row


@pytest.mark.parametrize(
    ("flag", "value"), [("true", 1), ("YES", 1), ("1", 1), ("no", 0), ("0", 0)]
)
def test_a_flag_is_asked_for_in_any_form(index: TableIndex, flag: str, value: int) -> None:
    """A flag is true, yes or 1, or false, no or 0, in any case."""
    tuned = index.table(SOURCES, TUNED.name)
    assert tuned is not None
    count = tuned.filter(pl.col("per_channel_quant") == value).height
    with pytest.raises(EvidenceError, match=f"^{count} rows of tuned fit"):
        index.by_key(f"tuned:per_channel_quant={flag}")


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("nothing:package=vllm", "there is no table 'nothing'"),
        ("tuned:colour=red", "tuned has no column 'colour' to search"),
        ("tuned:from_ids=x", "tuned has no column 'from_ids' to search"),
        ("tuned:experts=many", "experts is a number, not 'many'"),
        ("tuned:per_channel_quant=ture", "per_channel_quant is true or false, not 'ture'"),
    ],
)
def test_a_key_that_cannot_be_searched_is_refused(
    index: TableIndex, asked: str, message: str
) -> None:
    """An unknown table or column, a list, and a value of another type are refused by name."""
    with pytest.raises(EvidenceError) as caught:
        index.by_key(asked)
    assert caught.value.what == message


def test_scopes_and_tables_are_those_on_disk(tmp_path: Path) -> None:
    """Folders with tables are scopes, in order; a table that is not there is none."""
    layout = Layout(tmp_path)
    for scope in ("h20", "cpu"):
        write_table(layout, scope, TUNED, pl.DataFrame(schema=TUNED.dtypes), {"events/cpu": scope})
    (tmp_path / "tables" / "notes.txt").touch()
    index = TableIndex(layout)
    assert index.scopes == ["cpu", "h20"]
    assert [scope for scope, _ in index.parts(TUNED.name)] == ["cpu", "h20"]
    assert list(index.parts(GRANULARITY.name)) == []
    assert index.table("cpu", GRANULARITY.name) is None
    assert index.inputs("h20", TUNED.name) == {"events/cpu": "h20"}
    assert table_files(layout) == [layout.table(scope, TUNED.name) for scope in ("cpu", "h20")]


def test_ids_that_do_not_exist_are_told_by_table(index: TableIndex, tmp_path: Path) -> None:
    """Each table with an id of no row and no event is told, by the first such id and their count.

    Entries of the config are no rows; of a segment all its events exist, and none besides.
    """
    layout = Layout(tmp_path)
    shutil.copytree(index.layout.events, layout.events)
    tuned = index.table(SOURCES, TUNED.name)
    assert tuned is not None
    take = layout.takes(SOURCES)[0]
    (part,) = read_seal(layout, take).segments
    segment = take.segment(part.attempt)
    sound = [f"{segment}#1", f"{segment}#{part.events}", "config/x", tuned["row_id"][-1]]
    path = layout.table(SOURCES, TUNED.name)
    for absent, told in (
        ([], None),
        ([f"{segment}#0"], f"'{segment}#0'"),
        ([f"{segment}#{part.events + 1}"], f"'{segment}#{part.events + 1}'"),
        (["tuned:000000000000", f"{segment}0#1", "a"], "'a' and 2 more"),
    ):
        ids = pl.Series("from_ids", [sound + absent] * tuned.height)
        write_table(layout, SOURCES, TUNED, tuned.with_columns(ids), {})
        messages = [] if told is None else [f"{path}: names {told}, not there"]
        assert unresolved_ids(layout) == messages


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
