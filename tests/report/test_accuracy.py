"""The report's section on predictors: scores that count what is missing, and their constants."""

import polars as pl
import pytest
from nearfree.events.names import Layout
from nearfree.report import accuracy
from nearfree.report.audit import anchor
from nearfree.report.sections import Cell
from nearfree.tables.store import read_table
from nearfree.theory.accuracy import ACCURACY
from nearfree.theory.scores import PREDICTORS
from nearfree.theory.times.constants import recorded_constants
from nearfree.theory.validation import VALIDATION

from report.page import Page


@pytest.fixture(scope="module")
def validation(made: Layout) -> pl.DataFrame:
    """Return the paper's boundaries against their predictions."""
    return read_table(made, "public", VALIDATION)


def line(rows: tuple[tuple[Cell, ...], ...], module: str, predictor: str) -> list[str]:
    """Return the texts of one line."""
    return next([c.text for c in row] for row in rows if [c.text for c in row[1:3]] == [
        module, predictor])  # fmt: skip


def test_scores_count_rows(validation: pl.DataFrame) -> None:
    """Each score says of how many settings it is, and links to a line that lists their rows."""
    grid, backing = accuracy.scores(validation, 0.2)
    at = validation.filter(pl.col("epsilon") == 0.2)
    assert sorted(row for _, rows in backing for row in rows) == sorted(at["row_id"])
    assert len(grid.rows) == 3 * len(PREDICTORS)
    dense = line(grid.rows, "dense_ffn", "principle")
    assert dense[4:8] == ["6", "0 (0%)", "6", "1.000"]
    assert {row[4].href for row in grid.rows} == {f"#{anchor(name)}" for name, _ in backing}


def test_what_is_refused_is_counted_as_a_miss_and_said(validation: pl.DataFrame) -> None:
    """A predictor that refuses has no hits among all settings, and the line says how many."""
    grid, _ = accuracy.scores(validation, 0.2)
    refused = line(grid.rows, "moe_ffn", "work model")
    assert refused[4:8] == ["32", "32 (100%)", "0", "0.000"]
    assert refused[13] == "-"
    assert "(and 1 more)" in refused[14]


def test_a_sample_is_named(validation: pl.DataFrame) -> None:
    """Constants of other platforms are out of sample; laws have none."""
    grid, _ = accuracy.scores(validation, 0.2)
    assert line(grid.rows, "dense_ffn", "work model")[13] == "constants: out of sample"
    assert line(grid.rows, "dense_ffn", "principle")[13] == "nothing calibrated"
    inside = validation.with_columns(pl.lit(value=True).alias("in_sample"))
    grid, _ = accuracy.scores(inside, 0.2)
    assert line(grid.rows, "dense_ffn", "work model")[13] == "constants: in sample"


def test_every_constant_and_form_is_told(made: Layout, page: str) -> None:
    """The page holds each constant with its unit and each form that was tried."""
    events = recorded_constants(made)
    told = Page(page)
    cells = {cell.text for table in told.tables for row in table for cell in row}
    for event in events.values():
        assert set(event.data.tried) <= cells
        assert {f"{each.value:.4g}" for each in event.data.constants} <= cells
        assert {each.meaning for each in event.data.constants} <= cells
        assert event.event_id in cells
    assert accuracy.calibrated_on(events) == "a100, h100"
    assert "What is out of sample" in told.text


def test_imported_scores_put_unseen_gpus_first() -> None:
    """Unseen GPUs come first, refusals count, and each number links to its row."""
    row = {
        "grouping": "module", "predictor": "work_model", "module": "moe_ffn", "seen": False,
        "platform": None, "backend": None, "backend_version": None, "routing": "balanced",
        "epsilon": 0.2, "settings": 10, "answered": 8, "undecided": 1, "hits": 4,
        "hit_share": 0.4, "within_1_31": 0.5, "within_2": 0.6, "t_ratio_error": 0.03,
        "interval_coverage": None, "interval_width": None, "from_ids": ["e#1"],
    }  # fmt: skip
    rows = [row | {"seen": True}, row, row | {"grouping": "platform", "platform": "h200"}]
    table = ACCURACY.build(ACCURACY.frame(rows), {"e#1"})
    grid = accuracy.imported_scores(table)
    assert [row[0].text for row in grid.rows] == ["unseen", "calibrated on"]
    texts = [cell.text for cell in grid.rows[0]]
    assert texts[1:6] == ["moe_ffn balanced", "work model", "10", "3 (30%)", "4"]
    assert texts[6:] == ["0.400", "0.500", "0.600", "0.030", "-", "-"]
    assert all(cell.href.startswith("#accuracy-") for cell in grid.rows[0][3:])
