"""The report's section on predictors: scores, with misses counted, and constants."""

import polars as pl
import pytest
from nearfree.core.predictors import PREDICTORS
from nearfree.derive.score.accuracy import ACCURACY
from nearfree.derive.score.scores import SCORES
from nearfree.derive.tables.store import read_table
from nearfree.derive.work_model.constants import recorded_constants
from nearfree.log.names import Layout
from nearfree.show.page import accuracy
from nearfree.show.page.sections import Cell

from show.page.page import Page


@pytest.fixture(scope="module")
def counted(made: Layout) -> pl.DataFrame:
    """Return the predictors' scores on the paper's boundaries."""
    return read_table(made, "public", SCORES)


def line(rows: tuple[tuple[Cell, ...], ...], module: str, predictor: str) -> list[str]:
    """Return the texts of one line."""
    return next([c.text for c in row] for row in rows if [c.text for c in row[1:3]] == [
        module, predictor])  # fmt: skip


def test_scores_count_rows(counted: pl.DataFrame) -> None:
    """Each score names its number of settings and opens its row."""
    grid = accuracy.scores(counted, 0.2)
    assert len(grid.rows) == 3 * len(PREDICTORS)
    dense = line(grid.rows, "dense_ffn", "principle")
    assert dense[4:8] == ["6", "0 (0%)", "6", "1.000"]
    assert {cell.row for row in grid.rows for cell in row[4:12]} == {
        *counted.filter(epsilon=0.2)["row_id"]
    }


def test_what_is_refused_is_counted_as_a_miss_and_said(counted: pl.DataFrame) -> None:
    """A predictor that refuses has no hit, and its line counts the refusals."""
    grid = accuracy.scores(counted, 0.2)
    refused = line(grid.rows, "moe_ffn", "work model")
    assert refused[4:8] == ["32", "32 (100%)", "0", "0.000"]
    assert refused[12] == "-"
    assert "(and 1 more)" in refused[13]


def test_a_sample_is_named(counted: pl.DataFrame) -> None:
    """Constants of other platforms are called out of sample; laws have no sample."""
    grid = accuracy.scores(counted, 0.2)
    assert line(grid.rows, "dense_ffn", "work model")[12] == "constants: out of sample"
    assert line(grid.rows, "dense_ffn", "principle")[12] == "nothing calibrated"
    inside = counted.with_columns(pl.lit(value=True).alias("in_sample"))
    grid = accuracy.scores(inside, 0.2)
    assert line(grid.rows, "dense_ffn", "work model")[12] == "constants: in sample"


def test_every_constant_and_form_is_told(made: Layout, read: Page) -> None:
    """The page holds each constant with its unit, and each form that was tried."""
    events = recorded_constants(made)
    cells = {cell.text for table in read.tables for row in table for cell in row}
    for event in events.values():
        assert set(event.data.tried) <= cells
        assert {f"{constant.value:.4g}" for constant in event.data.constants} <= cells
        assert {constant.meaning for constant in event.data.constants} <= cells
        assert event.event_id in cells
    sentence = (
        "constants were calibrated on a100, h100 and, except for those of collectives, on no other"
    )
    assert sentence in " ".join(read.text.split())
    assert "In sample or out of sample" in read.text


def test_imported_scores_put_unseen_gpus_first() -> None:
    """Unseen GPUs are first, refusals count, and each number links to its row."""
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
    assert all(cell.row.startswith("accuracy:") for cell in grid.rows[0][3:])
