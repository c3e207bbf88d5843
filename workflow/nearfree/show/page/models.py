"""The report's section on measured models: N_max of each, and how each predictor did at it."""

from collections.abc import Sequence

import polars as pl

from nearfree.core.label import AXES, NESTED, ordered
from nearfree.core.setting import FIELDS
from nearfree.show.figures.theme import PREDICTORS
from nearfree.show.page.sections import Cell, Grid, Row, cell, interval, n_max

CURVE = ["platform", "stream", "setting_key"]
SETTING = ("model", *ordered(AXES, "batch", "context", "routing"))
"""What tells a model's settings apart, as columns."""
ORDER = ("model", *NESTED, "setting_key")
_WAY = ("predictor", "basis")
_HEAD = (
    *(FIELDS[name].symbol for name in SETTING),
    *("from N", "N_max", "interval", "verdict", "grew most, part of the growth"),
)


def measured(boundaries: pl.DataFrame, composition: pl.DataFrame) -> Grid:
    """Return each model's boundary, the module that grew most, and what each predictor says.

    A predictor that refuses every setting has no column.

    Parameters
    ----------
    boundaries
        Newest rows of that table of measured models at one tolerance.
    composition
        Rows of that table at the same tolerance.
    """
    predictions: dict[tuple[str, ...], dict[tuple[str, str | None], Row]] = {}
    for row in composition.to_dicts():
        key = tuple(row[name] for name in CURVE)
        predictions.setdefault(key, {})[row["predictor"], row["basis"]] = row
    answered = composition.drop_nulls("predicted")
    shown = answered.select(_WAY).unique().sort(_place(), *_WAY).rows()
    rows = []
    for row in boundaries.sort(ORDER).with_columns(_study()).to_dicts():
        here = predictions.get(tuple(row[name] for name in CURVE), {})
        rows.append(
            (
                *(Cell("-" if row[name] is None else str(row[name])) for name in SETTING),
                cell(row["baseline"], row["row_id"]),
                cell(n_max(row), row["row_id"]),
                cell(interval(row), row["row_id"]),
                Cell(row["verdict"]),
                _grew(next(iter(here.values()), None)),
                *(_prediction(here.get(way)) for way in shown),
            )
        )
    return Grid((*_HEAD, *(_named(*way) for way in shown)), tuple(rows))


def ways(scores: pl.DataFrame) -> Grid:
    """Return how often each predictor answered and was right about models.

    Parameters
    ----------
    scores
        Rows of that table of models, of one platform, at one tolerance.
    """
    rows = []
    for row in scores.sort(_place(), *_WAY).to_dicts():
        settings, counts = row["settings"], ("answered", "hits", "within")
        rows.append(
            (
                Cell(_named(row["predictor"], row["basis"])),
                cell(settings, row["row_id"]),
                *(cell(f"{row[name]} of {settings}", row["row_id"]) for name in counts),
                cell(f"{row['same_limiter']} of {row['limiters']}", row["row_id"]),
                cell(f"{row['foretold']} of {settings}", row["row_id"]),
            )
        )
    head = ("predictor", "settings", "answered", "hits", "within the interval", "same limiter")
    return Grid((*head, "foretold"), tuple(rows))


def number(value: float) -> str:
    """Return a number of positions: whole where it is."""
    return f"{value:.0f}" if value == int(value) else f"{value:.1f}"


def _study() -> pl.Expr:
    """Return a row's model, with its study where several are of one model."""
    several = pl.col("stream").n_unique().over("model") > 1
    named = pl.format("{} ({})", "model", "stream")
    return pl.when(several).then(named).otherwise("model").alias("model")


def _place() -> pl.Expr:
    """Return the place of a row's predictor among all."""
    places = {name: place for place, name in enumerate(PREDICTORS)}
    return pl.col("predictor").replace_strict(places, return_dtype=pl.Int64)


def _named(predictor: str, basis: str | None) -> str:
    parts: Sequence[str] = (predictor, basis) if basis else (predictor,)
    return ", ".join(part.replace("_", " ") for part in parts)


def _grew(row: Row | None) -> Cell:
    if row is None or row["measured_limiter"] is None:
        return Cell("-")
    growth = row["measured_growth"]
    part = "" if growth is None else f", {growth:.0%}"
    return cell(f"{row['measured_limiter']}{part}", row["row_id"])


def _prediction(row: Row | None) -> Cell:
    if row is None:
        return Cell("-")
    if row["predicted"] is None and not row["unbounded"]:
        return cell("refused", row["row_id"])
    mark = "hit" if row["hit"] else "near" if row["within"] else "miss"
    limiter = f", {row['limiter']}" if row["limiter"] else ""
    value = "unbounded" if row["unbounded"] else number(row["predicted"])
    return cell(f"{value} {mark}{limiter}", row["row_id"])
