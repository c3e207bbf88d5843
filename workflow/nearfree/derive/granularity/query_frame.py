"""The frame of questions that laws and forms of T(N) answer, and what its rows ask of rules."""

from collections.abc import Iterable, Sequence

import polars as pl
from msgspec import Struct

from nearfree.core.modules.attention import AttentionQuestion
from nearfree.core.modules.moe_ffn import MoeQuestion
from nearfree.core.modules.routing import routing_baseline
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


_DENSE_UP_TO, _PER_OCTAVE = 32, 8


class Question(Struct, frozen=True, kw_only=True):
    """A setting with one version of its backend on one platform."""

    platform: str
    setting: Setting
    version: str | None = None


def asked_frame(questions: Iterable[Question], most: int) -> pl.DataFrame:
    """Return questions as a frame, numbered in their order in the column `asked`.

    The grid of N begins at the baseline and ends at `most`. With balanced routing the baseline is
    the first N at which all experts are active (paper, sec. 3.3).
    """
    rows = [
        question_row(number, question, _grid(question.setting, most))
        for number, question in enumerate(questions)
    ]
    return pl.DataFrame(rows, schema=ASKED_SCHEMA)


def sparse_positions(most: int) -> list[int]:
    """Return N up to `most`: all up to 32, then eight per octave."""
    octaves = range(_DENSE_UP_TO.bit_length() - 1, most.bit_length())
    above = [2**octave * (_PER_OCTAVE + step) // _PER_OCTAVE
             for octave in octaves for step in range(1, _PER_OCTAVE + 1)]  # fmt: skip
    return [n for n in (*range(1, _DENSE_UP_TO + 1), *above) if n <= most]


def _grid(setting: Setting, most: int) -> list[int]:
    baseline = routing_baseline(setting.routing, setting.experts, setting.top_k, setting.batch)
    return [baseline, *(n for n in sparse_positions(most) if n > baseline)]


def question_row(number: int, question: Question, grid: Sequence[int]) -> dict[str, object]:
    """Return a row of the frame of questions, by a grid that begins at the baseline."""
    return {
        "asked": number,
        "platform": question.platform,
        **setting_row(question.setting),
        "backend_version": question.version,
        "kernel": None,
        "baseline": grid[0],
        "grid": grid,
    }


def moe_questions(rows: pl.DataFrame) -> list[MoeQuestion]:
    """Return what rows of questions ask of rules of expert blocks."""
    layers = rows.select(MoeQuestion.__struct_fields__)
    return [MoeQuestion(**row) for row in layers.iter_rows(named=True)]


def attention_questions(rows: pl.DataFrame) -> list[AttentionQuestion]:
    """Return what rows of questions ask of rules of query tiles."""
    with_most = rows.with_columns(pl.col("grid").list.max().alias("most"))
    calls = with_most.select(AttentionQuestion.__struct_fields__)
    return [AttentionQuestion(**row) for row in calls.iter_rows(named=True)]
