"""Tables `granularity` and `tuned`, of rules that were read from source."""

from pathlib import Path

import polars as pl
import pytest
from nearfree.core.scopes import SOURCES
from nearfree.derive.tables.granularity import GRANULARITY
from nearfree.derive.tables.project import project
from nearfree.derive.tables.store import read_table
from nearfree.derive.tables.tuned import TUNED
from nearfree.log.names import Layout
from nearfree.sources import record
from nearfree.sources.fetching.cache import Cache
from nearfree.sources.record import record_extraction
from sources.moe_release import FOLDER, PATH, made_release
from sources.moe_release import TUNED as FILES

ODD = f"{FOLDER}/configs/E=8,N=8,device_name=NVIDIA_H20,backend=other.json"


@pytest.fixture
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Layout:
    """Return a log with the made-up release, one file of it odd, and its tables."""
    made = made_release(tuned={**FILES, ODD: {}})
    monkeypatch.setattr(record, "extract", lambda *_, **__: made)
    layout = Layout(tmp_path)
    record_extraction(layout, "vllm", "1.0", cache=Cache(tmp_path / "cache"))
    project(layout, SOURCES, {})
    return layout


@pytest.mark.slow
def test_a_row_is_a_branch_with_its_place(layout: Layout) -> None:
    """Each branch of each rule is a row, with value, condition, file, lines and digest."""
    rows = read_table(layout, SOURCES, GRANULARITY)
    made = made_release()
    assert rows.height == sum(len(rule.branches) for rule in made.rules)
    blocks = rows.filter(pl.col("path") == "block_size_m").sort("branch")
    assert set(blocks["origin"]) == {"extracted"}
    assert sorted(blocks["value"]) == ["128", "16", "32", "64"]
    assert set(blocks["place"]) == {PATH}
    assert set(blocks["sha256"]) == {"b" * 64}
    assert "size = 16" in blocks.filter(pl.col("value") == "16")["quote"][0]


def test_an_absent_mechanism_is_a_row_without_a_place(layout: Layout) -> None:
    """A mechanism that a release lacks is a row, not left out."""
    rows = read_table(layout, SOURCES, GRANULARITY)
    absent = rows.filter(pl.col("path") == "mechanism_modular_naive").to_dicts()
    assert [(row["value"], row["place"], row["lines"]) for row in absent] == [
        ("'absent'", "none", None)
    ]


def test_a_tuned_file_is_its_intervals(layout: Layout) -> None:
    """Intervals follow the nearest entry, meet without a gap, and the last one is open."""
    rows = read_table(layout, SOURCES, TUNED).filter(pl.col("odd").is_null())
    tiles = rows.sort("tokens_from").select("tokens_from", "tokens_to", "block_size_m").rows()
    assert tiles == [(1, 16, 16), (17, 47, 32), (48, None, 64)]
    assert set(rows["device"]) == {"NVIDIA_H20"}


def test_an_interval_ends_where_any_size_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of one BLOCK_SIZE_M are several intervals where their depth or warps differ."""
    sizes = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 32, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 1}
    sizes |= {"num_warps": 4, "num_stages": 3}
    deep = sizes | {"BLOCK_SIZE_K": 32}
    entries = {"1": sizes, "8": sizes, "64": deep, "256": deep | {"num_warps": 8}}
    made = made_release(tuned={next(iter(FILES)): entries})
    monkeypatch.setattr(record, "extract", lambda *_, **__: made)
    layout = Layout(tmp_path)
    record_extraction(layout, "vllm", "1.0", cache=Cache(tmp_path / "cache"))
    project(layout, SOURCES, {})
    rows = read_table(layout, SOURCES, TUNED).sort("tokens_from")
    names = ("tokens_from", "tokens_to", "block_size_m", "block_size_n", "block_size_k")
    assert rows.select(*names).rows() == [
        (1, 36, 16, 32, 64), (37, 160, 16, 32, 32), (161, None, 16, 32, 32),
    ]  # fmt: skip
    assert rows["group_size_m"].to_list() == [1, 1, 1]
    assert rows["num_warps"].to_list() == [4, 4, 8]
    assert rows["num_stages"].to_list() == [3, 3, 3]


def test_only_the_newest_take_of_a_release_has_rows(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A release that was read again has the rows of its newest take only."""
    monkeypatch.setattr(record, "extract", lambda *_, **__: made_release(tuned=FILES))
    record_extraction(layout, "vllm", "1.0", cache=Cache(layout.root / "cache"), take=2)
    project(layout, SOURCES, {})
    rows = read_table(layout, SOURCES, TUNED)
    assert rows.height == 3
    assert all("/2-" in event_id for ids in rows["from_ids"] for event_id in ids)
    rules = read_table(layout, SOURCES, GRANULARITY)
    assert rules.height == sum(len(rule.branches) for rule in made_release().rules)


def test_an_odd_file_is_one_row_that_says_why(layout: Layout) -> None:
    """A tuned file without an entry is a row with the reason."""
    rows = read_table(layout, SOURCES, TUNED).filter(pl.col("odd").is_not_null()).to_dicts()
    assert [(row["file"], row["block_size_m"]) for row in rows] == [(ODD, None)]
    assert "backend=other" in rows[0]["odd"]
