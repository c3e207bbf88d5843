"""The first screen: this machine's boundaries, and how often each predictor was right."""

from collections import Counter
from collections.abc import Iterator

import polars as pl
from msgspec import Struct

from nearfree.core.label import AXES, label, ordered
from nearfree.core.setting import FIELDS, MODULES, STORED
from nearfree.show.page.models import SETTING
from nearfree.show.page.sections import Cell, Row, cell, from_one, interval, n_max

_SHOWN = ("idle_compute", "principle", "principle_resolved", "work_model")
_ABOUT = ("backend", "moe", "dtype", *STORED)
_OF_ENGINE = ("backend", "release", "file_type")
"""An engine's weights have formats of their own: the element type is that of what comes out."""
_FACTS = ("datasheet", "probed_gemm", "probed_stream")
"""Which hardware facts count for the first screen: the first of these that there is."""
_FIELDS = ordered(
    (*AXES, *(name for name, field in FIELDS.items() if field.role in ("shape", "call"))), "routing"
)


class Chip(Struct, frozen=True):
    """One boundary: its setting in words, its value, its notes and the limiting module."""

    label: str
    value: Cell
    notes: tuple[str, ...]
    limiter: str = ""


class Line(Struct, frozen=True):
    """The boundaries of one module with one backend, or of one model."""

    name: str
    about: str
    chips: tuple[Chip, ...]


class Hits(Struct, frozen=True):
    """How often a predictor was right about one module: the share, and of how many settings."""

    share: Cell
    of: str = ""
    per_cent: int = 0


class Score(Struct, frozen=True):
    """How often a predictor was right, by module."""

    predictor: str
    hits: tuple[Hits, ...]


class Scored(Struct, frozen=True):
    """The scores of predictors on one platform's boundaries."""

    platform: str
    about: str
    modules: tuple[str, ...]
    scores: tuple[Score, ...]


def answers(boundaries: pl.DataFrame, composition: pl.DataFrame, epsilon: float) -> list[Line]:
    """Return N_max of every module that was measured for itself, and of every model."""
    several = pl.col("module").n_unique().over("stream") > 1
    at = boundaries.filter("newest", pl.col("epsilon") == epsilon).filter(~several)
    known = composition.filter(epsilon=epsilon).drop_nulls("measured_limiter")
    limiters = dict(known.select(pl.concat_str("stream", "setting_key"), "measured_limiter").rows())
    lines: dict[tuple[str, str], list[Row]] = {}
    for row in at.sort("module", "model", "backend", "stream", *SETTING[1:]).to_dicts():
        lines.setdefault(_line(row), []).append(row)
    return [Line(*name, tuple(_chips(rows, limiters))) for name, rows in lines.items()]


def _line(row: Row) -> tuple[str, str]:
    about = label(row, _OF_ENGINE if row["module"] == "engine" else _ABOUT, "short")
    return (row["model"] or row["module"].replace("_", " "), about)


def _chips(rows: list[Row], limiters: dict[str, str]) -> Iterator[Chip]:
    """Yield a line's settings, each named by the fields in which they differ.

    The study is named where several hold one setting.
    """
    known = [name for name in _FIELDS if any(row[name] is not None for row in rows)]
    telling = [name for name in known if len({row[name] for row in rows}) > 1] or known[:1]
    studies = Counter(key for key, _ in {(row["setting_key"], row["stream"]) for row in rows})
    for row in rows:
        fields = [*telling, "stream"] if studies[row["setting_key"]] > 1 else telling
        yield _chip(label(row, fields, "short"), row, limiters)


def _chip(label: str, row: Row, limiters: dict[str, str]) -> Chip:
    return Chip(
        label,
        cell(n_max(row), row["row_id"]),
        tuple(_notes(row)),
        limiters.get(row["stream"] + row["setting_key"], ""),
    )


def _notes(row: Row) -> Iterator[str]:
    """Yield the notes of a boundary: a wide interval, a loose verdict, its baseline."""
    if row["n_low"] is not None and row["n_low"] != row["n_high"]:
        yield interval(row)
    if row["verdict"] in ("undecided", "censored"):
        yield row["verdict"]
    if row["baseline"] > 1:
        yield f"from N = {row['baseline']}"
        if (single := from_one(row)) is not None:
            yield f"from N = 1: {single}"


def predictors(scores: pl.DataFrame, epsilon: float) -> list[Scored]:
    """Return how often predictors were right, by platform and module."""
    at = scores.filter(epsilon=epsilon).filter(pl.col("basis").is_in(_FACTS))
    scored = []
    for part in at.sort("platform", "origin").partition_by("platform", "origin"):
        basis = next(name for name in _FACTS if name in part["basis"])
        first = part.row(0, named=True)
        about = f"{first['origin']}; rho {basis.replace('_', ' ')}"
        scored.append(_scored(first["platform"], about, part.filter(basis=basis)))
    return scored


def unseen(accuracy: pl.DataFrame) -> list[Scored]:
    """Return how often predictors were right on GPUs that nothing was calibrated on.

    Parameters
    ----------
    accuracy
        Rows of that table by module, none where no curves were imported.
    """
    rows = accuracy.filter(~pl.col("seen"))
    return [] if rows.is_empty() else [_scored("unseen GPUs", "imported curves", rows)]


def _scored(platform: str, about: str, rows: pl.DataFrame) -> Scored:
    by_column = {(row["predictor"], _column(row)): row for row in rows.to_dicts()}
    place = {str(module): place for place, module in enumerate(MODULES)}
    columns = sorted({_column(row) for row in rows.to_dicts()}, key=lambda c: (place[c[0]], c[1]))
    lines = (
        Score(
            predictor.replace("_", " "),
            tuple(_hits(by_column.get((predictor, c))) for c in columns),
        )
        for predictor in _SHOWN
        if any((predictor, c) in by_column for c in columns)
    )
    names = tuple(" ".join(filter(None, column)).replace("_", " ") for column in columns)
    return Scored(platform, about, names, tuple(lines))


def _column(row: Row) -> tuple[str, str]:
    """Return a row's module, with its routing where it has one."""
    return row["module"], row.get("routing") or ""


def _hits(row: Row | None) -> Hits:
    if row is None:
        return Hits(Cell("-"))
    if not row["answered"]:
        return Hits(cell("refused", row["row_id"]), f"all {row['settings']}")
    share = round(100 * row["hits"] / row["settings"])
    return Hits(cell(f"{share} %", row["row_id"]), f"{row['hits']} of {row['settings']}", share)
