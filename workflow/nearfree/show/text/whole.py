"""Errors of predicted steps of whole models, as text and JSON."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import polars as pl

from nearfree.core.predictors import WORK_MODEL
from nearfree.derive.engine_step.form import CONSTANTS, StepConstants
from nearfree.derive.score.whole import COVERED, WholeScore, grouped
from nearfree.derive.score.whole_steps import ROUTING
from nearfree.show.text.forecast import columns

HEADS = {
    "settings": "rows", "answered": "answered", "t_error_median": "T median",
    "t_within_20": "within 20 %",
    "interval_coverage": "covered", "t_ratio_error": "growth median",
    "ratio_error": "T(N)/T(1) median",
}  # fmt: skip
"""Headings of a group's scores, by column."""
TABLES = (
    (), ("several", "draft"), ("engine",), ("platform",),
    ("model", "platform", "precision", "engine", "several"),
)  # fmt: skip
"""Columns that rows are grouped by, table by table, where none are given."""
_SHOWN_REASONS = 40


def lines(
    source: str,
    score: WholeScore,
    constants: Mapping[str, StepConstants],
    tables: Sequence[Sequence[str]],
) -> Iterator[str]:
    """Yield the definitions of the scores, the tables, and the reasons of unanswered rows.

    Parameters
    ----------
    constants
        By engine, fitted to all rows.
    tables
        Columns that rows are grouped by, table by table.
    """
    rows, known = score.rows.height, score.answered
    yield f"data        {source}: {rows} rows, {known} of them ({known / rows:.0%}) answered"
    yield "predicted   T of a step; its engine's constants are fitted to other models' rows only"
    yield f"routing     {ROUTING}, as of real requests"
    yield "error       |predicted / measured - 1| of T; growth: of T / T(fewest rows of its series)"
    bands = ", ".join(f"{engine} {band:.3f}" for engine, band in sorted(score.bands.items()))
    yield f"bands       {bands} of log T, which cover {COVERED:.0%} of an engine's rows"
    yield "covered     share of rows within the band of the engine's other models"
    for engine, values in sorted(constants.items()):
        listed = ", ".join(
            f"{constant.name} {getattr(values, constant.name):.3f}" for constant in CONSTANTS
        )
        yield f"constants   {engine}: {listed} (fitted to all rows)"
    for by in tables:
        yield ""
        yield from _table(by, grouped(score, by))
    if score.refusals:
        yield ""
        yield "Not answered"
        reasons = list(score.refusals.items())
        yield from columns([[count, reason] for reason, count in reasons[:_SHOWN_REASONS]], left=0)
        if len(reasons) > _SHOWN_REASONS:
            yield f"  and {len(reasons) - _SHOWN_REASONS} more reasons"


def _table(by: Sequence[str], rows: pl.DataFrame) -> Iterator[str]:
    names = list(by) or ["rows"]
    words = {"several": "N", "draft": "draft in T", "rows": ""}
    head = [*(words.get(name, name) for name in names), *HEADS.values()]
    cells = [
        [*(_cell(name, row[name]) for name in names), *(_number(row[name]) for name in HEADS)]
        for row in rows.iter_rows(named=True)
    ]
    yield from columns([head, *cells], left=len(names))


def _cell(name: str, value: Any) -> str:
    if name == "several":
        return "N > 1" if value else "N = 1"
    if name == "draft":
        return "yes" if value else "no"
    return str(value)


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return str(value) if isinstance(value, int) else f"{value:.3f}"


def as_json(score: WholeScore, by: Sequence[str]) -> list[dict[str, Any]]:
    """Return the score of all rows, with null columns `by`, followed by the score of each group.

    `not_answered` counts the unanswered rows by reason; `interval_width` is high / low of T.
    """
    labels = {"predictor": WORK_MODEL, "module": "model"}
    (overall,) = grouped(score, ()).drop("rows").to_dicts()
    first = labels | dict.fromkeys(by) | overall | {"not_answered": score.refusals}
    return [first, *(labels | group for group in grouped(score, by).to_dicts())]
