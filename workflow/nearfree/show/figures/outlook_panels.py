"""Panels of whole models: one a serving condition; and what is said of them in captions."""

from collections.abc import Callable, Iterator
from math import gcd
from typing import Any

import polars as pl
from msgspec import Struct

from nearfree.show.figures.listing import OUTLOOK, Figure, drawn_by

_TELLING = ("deployment", "attention", "moe", "dtype")
"""What is said of a condition where another one has the same model, platform and routing."""
_MOST_PANELS = 24


class Part(Struct, frozen=True, kw_only=True):
    """What one figure shows of a table.

    Parameters
    ----------
    name
        The figure's name.
    model
        The model that it is about, None where it is about all of them.
    shown
        The rows that are drawn, with their `panel`, in the order of panels.
    refused
        How many rows have nothing to draw.
    """

    name: str
    model: str | None
    shown: pl.DataFrame
    refused: int

    def of(self, what: str) -> str:
        """Return a title: what is shown, and of which model."""
        return f"{what[0].upper()}{what[1:]}: {self.model or 'whole models'}"

    def figure(self, draws: Callable[..., Any], what: str, *drawn: pl.DataFrame) -> Figure:
        """Return the figure's entry: what draws it, its caption, and the rows that it draws."""
        said = [
            f"{self.of(what)}.",
            "Predicted, not measured.",
            "Kernels between the modules are not counted.",
            *_constants(drawn[-1]),
        ]
        if self.refused:
            said.append(f"Refused, left out: {self.refused} of the predictions.")
        return drawn_by(draws, self.name, " ".join(said), *drawn, about=OUTLOOK)


def with_condition(frame: pl.DataFrame) -> pl.DataFrame:
    """Return rows with `condition`, all but batch and context in words, in its order.

    Parameters
    ----------
    frame
        Rows of `lookup` or `forecast`.
    """
    same = ("model", "platform", "routing")
    told = [
        pl.when(pl.col(name).n_unique().over(same) > 1).then(pl.col(name).fill_null("none"))
        for name in _TELLING
    ]
    first = pl.format("{} on {}", "model", "platform")
    where = pl.concat_str(first, "routing", *told, separator=": ", ignore_nulls=True)
    return frame.with_columns(where.alias("condition")).sort(
        "model", "routing", "platform", *_TELLING, "batch", "context", "row_id"
    )


def middle(name: str) -> pl.Expr:
    """Return the middle value of a column among the rows of a condition, the lower one of two."""
    values = pl.col(name).unique().sort()
    return values.get((values.len() - 1) // 2).over("condition")


def under(said: pl.Expr) -> pl.Expr:
    """Return `panel`: the condition, with a line under it."""
    return pl.format("{}: {}", "condition", said).alias("panel")


def columns_of(shown: pl.DataFrame) -> int | None:
    """Return how many panels stand side by side so that each row is of one model and routing."""
    sizes = shown.group_by("model", "routing").agg(pl.col("panel").n_unique())["panel"]
    across = gcd(*sizes)
    return across if 2 < across <= 6 else None


def figures_of(name: str, panels: pl.DataFrame, shown: pl.Expr) -> Iterator[Part]:
    """Yield what each figure shows: all panels where they are few, else a model's.

    Parameters
    ----------
    name
        The figure's name; where there are several, each has its number behind it.
    panels
        Rows with `panel` and `model`, in order.
    shown
        Which rows have something to draw.
    """
    drawn = panels.filter(shown)
    if drawn["panel"].n_unique() <= _MOST_PANELS:
        parts: list[tuple[str, str | None]] = [(name, None)] if drawn.height else []
    else:
        models = drawn["model"].unique(maintain_order=True)
        parts = [(f"{name}_{place}", model) for place, model in enumerate(models, 1)]
    for part, model in parts:
        of_model = pl.lit(value=True) if model is None else pl.col("model") == model
        asked, there = panels.filter(of_model).height, drawn.filter(of_model)
        yield Part(name=part, model=model, shown=there, refused=asked - there.height)


def _constants(lookup: pl.DataFrame) -> list[str]:
    """Return which constants rows of `lookup` were made with, and where they were calibrated."""
    timed = lookup.drop_nulls("constants")
    every = {each for said in timed["constants"].unique() for each in said.split("; ")}
    if not every:
        return []
    own = ", ".join(timed.filter("in_sample")["platform"].unique().sort())
    seen = f"; predictions for {own} are in sample" if own else ""
    return [f"Constants of the work model: {'; '.join(sorted(every))}{seen}."]
