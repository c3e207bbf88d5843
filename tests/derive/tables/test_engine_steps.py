"""Table `engine_steps`: where an engine's passes change, by its release's rules."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from engine_takes import FILE, GRID, MATRICES, RELEASE, SETTING, loaded, write_engine, write_rules
from msgspec import structs
from nearfree.config.files import Config
from nearfree.core.setting import Setting
from nearfree.derive.tables.engine_steps import ENGINE_STEPS, write_engine_steps
from nearfree.derive.tables.project import project
from nearfree.derive.tables.store import read_table
from nearfree.errors import TableError
from nearfree.log.events import RuleExtracted
from nearfree.log.evidence import read_scope
from nearfree.log.names import Layout

from derive.tables.logs import CONFIG, write_study

FOURS = (5, 9, 13)


def table(layout: Layout) -> pl.DataFrame:
    """Return the table that a log makes, checked against its schema and its ids."""
    project(layout, "cpu", {})
    write_engine_steps(layout, "cpu", Config(CONFIG))
    return read_table(layout, "cpu", ENGINE_STEPS)


def made(layout: Layout, *settings: Setting, **changes: Any) -> pl.DataFrame:
    """Return the table of one take, with the release's rules on record."""
    write_rules(layout)
    write_engine(layout, *settings, **changes)
    return table(layout)


def rows_of(steps: pl.DataFrame, kind: str = "q8_0", **changes: Any) -> list[int]:
    """Return the numbers of rows at which the passes over one type change."""
    return steps.filter(type=kind, **changes)["rows"].sort().to_list()


def test_a_row_a_type_and_number_of_rows(layout: Layout) -> None:
    """Blocks of four rows change passes at their ends, other weights at each row."""
    table_rows = made(layout)
    blocks = table_rows.filter(type="q8_0").sort("rows")
    more = blocks.filter(pl.col("passes") > pl.col("passes_before"))
    assert more["rows"].to_list() == [*FOURS]
    assert more["passes"].to_list() == [2, 3, 4]
    assert rows_of(table_rows, "q4_1") == [*range(2, GRID[-1] + 1)]


def test_matrices_of_one_type_that_agree_are_one_row(layout: Layout) -> None:
    """Matrices with equal passes are one row with all names."""
    table_rows = made(layout)
    assert set(table_rows.select("type", "parts").rows()) == {
        ("q8_0", "ffn_up, attn_q"),
        ("q4_1", "output"),
    }


def test_a_step_names_the_rule_with_file_and_lines(layout: Layout) -> None:
    """The step from one row to two cites the rule that chooses the way."""
    table_rows = made(layout).filter(type="q8_0").sort("rows")
    first, *_, last = table_rows.select("rows", "rule", "path", "file", "lines").rows()
    assert first == (2, "sgemm", "sgemm", FILE, "30-31")
    assert last[1:] == ("block_tile", "sgemm", FILE, "40-41")


def test_a_step_rests_on_what_was_loaded_and_on_its_rule(layout: Layout) -> None:
    """A row's ids are the loaded engine's event and the rule's."""
    table_rows = made(layout)
    rules = {
        event.event_id: event.data.rule
        for take in read_scope(layout, "sources")
        for event in take.events_of(RuleExtracted)
    }
    for row in table_rows.to_dicts():
        ran, rule_id = row["from_ids"]
        assert ran.startswith("cpu/an_engine/")
        assert rules[rule_id] == row["rule"]


def test_n_is_the_least_that_has_the_rows(layout: Layout) -> None:
    """N is the smallest with that many rows: for five rows of four requests, 2."""
    table_rows = made(layout, structs.replace(SETTING, batch=4))
    assert table_rows.filter(rows=5)["n"].unique().to_list() == [2]
    assert table_rows["rows"].max() == 4 * GRID[-1]


def test_features_that_the_library_does_not_have_change_nothing(layout: Layout) -> None:
    """Without the kernel's CPU feature Q8_0 goes row by row, too."""
    plain = loaded(system_info="CPU : WIDE = 0 | LLAMAFILE = 1 | REPACK = 1 |")
    assert rows_of(made(layout, ran=[plain])) == [*range(2, GRID[-1] + 1)]


@pytest.mark.parametrize("lacking", ["release", "rule", "type"])
def test_what_no_rule_says_is_one_row_with_the_reason(layout: Layout, lacking: str) -> None:
    """An unknown release, rule or type gives one row with the refusal."""
    if lacking != "release":
        write_rules(layout, without=["block_tile"] if lacking == "rule" else [])
    odd = structs.replace(MATRICES[0], type="tq1_0")
    write_engine(layout, ran=[loaded(matrices=(odd,) if lacking == "type" else MATRICES[:1])])
    (row,) = table(layout).to_dicts()
    assert row["rows"] is None
    assert {"release": RELEASE, "rule": "block_tile", "type": "tq1_0"}[lacking] in row["refusal"]


@pytest.mark.parametrize("what", ["experts", "LLAMAFILE"])
def test_what_is_not_read_is_not_guessed(layout: Layout, what: str) -> None:
    """Rows of experts, and a library without the rules' way, are refused."""
    routed = [structs.replace(matrix, routed=what == "experts") for matrix in MATRICES]
    system_info = "CPU : WIDE = 1 |" if what == "LLAMAFILE" else loaded().system_info
    table_rows = made(layout, ran=[loaded(matrices=tuple(routed), system_info=system_info)])
    assert table_rows["rows"].null_count() == table_rows.height == 2
    assert all(what in refusal for refusal in table_rows["refusal"])


def test_an_engine_that_did_not_run_says_nothing(layout: Layout) -> None:
    """A setting's steps use its own run's libraries, not another file's."""
    assert made(layout, ran=[loaded(file_type="q4_0")]).is_empty()


def test_a_platform_without_engines_has_no_row(layout: Layout) -> None:
    """Without engines the table is empty."""
    write_study(layout)
    assert table(layout).is_empty()


def test_a_row_of_another_event_is_refused(tmp_path: Path) -> None:
    """A row with an unknown event is an error."""
    layout = Layout(tmp_path)
    table_rows = made(layout)
    with pytest.raises(TableError, match="not there"):
        ENGINE_STEPS.build(table_rows.drop("row_id"), [])


def test_an_engine_without_matrices_on_record_has_no_steps(layout: Layout) -> None:
    """A serving engine's take gives no row, since no rule covers its forward."""
    served = structs.replace(SETTING, backend="vllm", release="0.20.2")
    ran = loaded(engine="vllm", release="0.20.2", matrices=(), system_info="attention FLASH_ATTN")
    write_engine(layout, served, ran=[ran])
    assert table(layout).is_empty()
