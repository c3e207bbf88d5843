"""Questions to the predictors, from settings: the frame that laws and forms of T(N) are asked."""

from collections.abc import Iterable

import polars as pl
from msgspec import Struct

from nearfree.core.modules.routing import first_full
from nearfree.core.setting import Setting
from nearfree.derive.tables.columns import SETTING_COLUMNS
from nearfree.derive.tables.settings import setting_row

ASKED_SCHEMA = {
    "asked": pl.Int64,
    "platform": pl.String,
    **{name: column.dtype for name, column in SETTING_COLUMNS.items()},
    "backend_version": pl.String,
    "kernel": pl.String,
    "window": pl.Int64,
    "nodes": pl.Int64,
    "fewest": pl.Int64,
    "dense_kernel": pl.String,
    "baseline": pl.Int64,
    "grid": pl.List(pl.Int64),
}


_EACH, _EACH_OCTAVE = 32, 8


class Question(Struct, frozen=True, kw_only=True):
    """A setting with one version of its backend on one platform."""

    platform: str
    setting: Setting
    version: str | None = None


def asked_frame(questions: Iterable[Question], most: int) -> pl.DataFrame:
    """Return questions as the frame that predictors are asked, numbered in their order.

    Parameters
    ----------
    most
        The largest N of the grid, which begins at the baseline; of balanced routing that is the
        first N at which every expert is active (paper, sec. 3.3).
    """
    rows = [_row(number, question, most) for number, question in enumerate(questions)]
    return pl.DataFrame(rows, schema=ASKED_SCHEMA)


def sparse_positions(most: int) -> list[int]:
    """Return N up to `most`: each one up to 32, from there on eight to an octave."""
    octaves = range(_EACH.bit_length() - 1, most.bit_length())
    above = [2**octave * (_EACH_OCTAVE + step) // _EACH_OCTAVE
             for octave in octaves for step in range(1, _EACH_OCTAVE + 1)]  # fmt: skip
    return [n for n in (*range(1, _EACH + 1), *above) if n <= most]


def _row(number: int, question: Question, most: int) -> dict[str, object]:
    asked = question.setting
    first = first_full(asked.routing, asked.experts, asked.top_k, asked.batch)
    return {
        "asked": number,
        "platform": question.platform,
        **setting_row(asked),
        "backend_version": question.version,
        "kernel": None,
        "baseline": first,
        "grid": [first, *(n for n in sparse_positions(most) if n > first)],
    }
