"""The first screen: this machine's boundaries, and each predictor's share of hits."""

from collections import Counter
from collections.abc import Iterator

import polars as pl
from msgspec import Struct

from nearfree.core.label import AXES, label, ordered
from nearfree.core.modules.registry import KINDS
from nearfree.core.predictors import PREDICTORS
from nearfree.core.setting import FIELDS, MODULES, STORED
from nearfree.show.page.models import SETTING
from nearfree.show.page.sections import Cell, Row, cell, from_one, interval, n_max

DESCRIPTION_FIELDS = ("backend", "moe", "dtype", *STORED)
ENGINE_FIELDS = ("backend", "release", "file_type")
"""Fields that describe an engine: the format of its weights is its file type, not the dtype."""
FACTS_PREFERENCE = ("datasheet", "probed_gemm", "probed_stream")
"""Origins of hardware facts: the first screen uses the first one that is available."""
SETTING_FIELDS = ordered(
    (*AXES, *(name for name, field in FIELDS.items() if field.role in ("shape", "call"))), "routing"
)


class Chip(Struct, frozen=True):
    """One boundary: its setting in words, its value, its notes and the limiting module."""

    label: str
    value: Cell
    notes: tuple[str, ...]
    limiter: str = ""
    undecided: bool = False
    """Whether the value is only one of its interval: the page shows it in a lighter weight."""


class Line(Struct, frozen=True):
    """The boundaries of one module with one backend, or of one model."""

    name: str
    about: str
    chips: tuple[Chip, ...]


class Hits(Struct, frozen=True):
    """A predictor's hits on one module: their share, and their number among the settings."""

    share: Cell
    count: str = ""
    per_cent: int = 0


class Score(Struct, frozen=True):
    """A predictor's hits by module."""

    predictor: str
    hits: tuple[Hits, ...]


class PlatformScores(Struct, frozen=True):
    """The hits of predictors on one platform's boundaries."""

    platform: str
    about: str
    modules: tuple[str, ...]
    scores: tuple[Score, ...]


def answers(boundaries: pl.DataFrame, composition: pl.DataFrame, epsilon: float) -> list[Line]:
    """Return N_max of every module that was measured in isolation, and of every model."""
    several_modules = pl.col("module").n_unique().over("stream") > 1
    newest = boundaries.filter("newest", pl.col("epsilon") == epsilon).filter(~several_modules)
    limiting = composition.filter(epsilon=epsilon).drop_nulls("measured_limiter")
    setting = pl.concat_str("stream", "setting_key")
    limiters = dict(limiting.select(setting, "measured_limiter").rows())
    lines: dict[tuple[str, str], list[Row]] = {}
    for row in newest.sort("module", "model", "backend", "stream", *SETTING[1:]).to_dicts():
        lines.setdefault(_line(row), []).append(row)
    return [Line(*name, tuple(_chips(rows, limiters))) for name, rows in lines.items()]


def _line(row: Row) -> tuple[str, str]:
    about = label(row, ENGINE_FIELDS if row["module"] == "engine" else DESCRIPTION_FIELDS, "short")
    return (row["model"] or KINDS[row["module"]].title, about)


def _chips(rows: list[Row], limiters: dict[str, str]) -> Iterator[Chip]:
    """Yield a line's settings, each labelled with the fields in which they differ.

    The label has the study where several studies hold the same setting.
    """
    set_fields = [name for name in SETTING_FIELDS if any(row[name] is not None for row in rows)]
    differing = [name for name in set_fields if len({row[name] for row in rows}) > 1] or set_fields[
        :1
    ]
    studies = Counter(key for key, _ in {(row["setting_key"], row["stream"]) for row in rows})
    for row in rows:
        fields = [*differing, "stream"] if studies[row["setting_key"]] > 1 else differing
        yield Chip(
            label(row, fields, "short"),
            cell(n_max(row), row["row_id"]),
            tuple(_notes(row)),
            limiters.get(row["stream"] + row["setting_key"], ""),
            undecided=row["verdict"] == "undecided",
        )


def _notes(row: Row) -> Iterator[str]:
    """Yield the notes of a boundary: a wide interval, a loose verdict, its baseline."""
    if row["n_low"] is not None and row["n_low"] != row["n_high"]:
        yield interval(row)
    if row["verdict"] in ("undecided", "censored"):
        yield row["verdict"]
    if row["baseline"] > 1:
        single = from_one(row)
        from_first = "" if single is None else f" (from N = 1: {single})"
        yield f"baseline N = {row['baseline']}{from_first}"


def predictors(scores: pl.DataFrame, epsilon: float) -> list[PlatformScores]:
    """Return the hits of predictors by platform and module."""
    chosen = scores.filter(epsilon=epsilon).filter(pl.col("basis").is_in(FACTS_PREFERENCE))
    scored = []
    for group in chosen.sort("platform", "origin").partition_by("platform", "origin"):
        basis = next(name for name in FACTS_PREFERENCE if name in group["basis"])
        first = group.row(0, named=True)
        about = f"{first['origin']}; rho {basis.replace('_', ' ')}"
        scored.append(_platform_scores(first["platform"], about, group.filter(basis=basis)))
    return scored


def unseen(accuracy: pl.DataFrame) -> list[PlatformScores]:
    """Return the hits of predictors on GPUs that no constant was calibrated on.

    Parameters
    ----------
    accuracy
        Rows of the table `accuracy` by module, none where no curves were imported.
    """
    rows = accuracy.filter(~pl.col("seen"))
    return [] if rows.is_empty() else [_platform_scores("unseen GPUs", "imported curves", rows)]


def _platform_scores(platform: str, about: str, rows: pl.DataFrame) -> PlatformScores:
    by_column = {(row["predictor"], _column(row)): row for row in rows.to_dicts()}
    order = {str(module): index for index, module in enumerate(MODULES)}
    columns = sorted(
        {_column(row) for row in rows.to_dicts()},
        key=lambda column: (order[column[0]], column[1]),
    )
    lines = (
        Score(
            predictor.replace("_", " "),
            tuple(_hits(by_column.get((predictor, column))) for column in columns),
        )
        for predictor in PREDICTORS
        if any((predictor, column) in by_column for column in columns)
    )
    names = tuple(
        " ".join(filter(None, (KINDS[module].title, routing.replace("_", " "))))
        for module, routing in columns
    )
    return PlatformScores(platform, about, names, tuple(lines))


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
