"""Every figure of the whole models that a platform measured, each with the rows that it shows."""

from collections.abc import Callable, Iterator
from typing import Any

import polars as pl
from msgspec import Struct, structs

from nearfree.core.modules.kind import ModuleKind
from nearfree.core.modules.model import MODEL
from nearfree.show.figures.latency import latency_against_n
from nearfree.show.figures.limiters import limiter_map, limiters
from nearfree.show.figures.listing import MODELS, Drawing, drawing
from nearfree.show.figures.model_boundaries import CURVE, DENSE, MOE, nmax_of_models
from nearfree.show.figures.time_shares import time_shares_against_n


class ModelRows(Struct, frozen=True, kw_only=True):
    """The tables of one platform that figures of models are drawn from."""

    latency: pl.DataFrame
    boundaries: pl.DataFrame
    time_shares: pl.DataFrame
    composition: pl.DataFrame


def model_drawings(rows: ModelRows, epsilon: float) -> Iterator[Drawing]:
    """Yield the figures of models; nothing where the platform measured none."""
    whole = (pl.col("module") == "model") & pl.col("newest")
    latency = rows.latency.filter(whole)
    at, predictions = (
        frame.filter(pl.col("epsilon") == epsilon).join(latency, on=CURVE, how="semi")
        for frame in (rows.boundaries.filter(whole), rows.composition)
    )
    for module, settings in (
        (DENSE, pl.col("top_k").is_null()),
        (MOE, pl.col("top_k").is_not_null()),
    ):
        yield from _boundaries(at.filter(settings), predictions, epsilon, module)
    named = limiters(predictions)
    if not named.is_empty():
        caption = "the module that stops each: measured, and as predictors name it."
        shown = predictions.filter(pl.col("row_id").is_in(named["row_id"].implode()))
        yield _drawing(limiter_map, (named, epsilon), "limiters", caption, shown)
    shares = rows.time_shares.filter("newest")
    for model in latency["model"].unique().sort():
        module = structs.replace(MODEL, title=model)
        of_model = pl.col("model") == model
        curves, ends = latency.filter(of_model), at.filter(of_model)
        caption = "T(N) of every setting, with the tolerance band and the boundary."
        arguments = (curves, ends, epsilon, module)
        name = f"latency_against_n_{model}"
        yield _drawing(latency_against_n, arguments, name, caption, curves, ends, subject=model)
        parts = shares.filter(of_model)
        if not parts.is_empty():
            caption = "the part of a forward's time that each module takes, against N."
            ends = ends.join(parts, on=CURVE, how="semi")
            arguments = (parts, ends, epsilon, module)
            name = f"time_shares_{model}"
            yield _drawing(
                time_shares_against_n, arguments, name, caption, parts, ends, subject=model
            )


def _boundaries(
    at: pl.DataFrame, predictions: pl.DataFrame, epsilon: float, module: ModuleKind
) -> Iterator[Drawing]:
    """Yield the figure of N_max over one variable, if any setting has a boundary."""
    if not at.is_empty():
        drawn = predictions.drop_nulls("predicted").join(at, on=CURVE, how="semi")
        caption = f"N_max against {module.letter}: measured, and as predictors have it."
        arguments = (at, drawn, epsilon, module)
        yield _drawing(nmax_of_models, arguments, f"nmax_against_{module.own}", caption, at, drawn)


def _drawing(
    draws: Callable[..., Any],
    arguments: tuple[object, ...],
    name: str,
    caption: str,
    *shown: pl.DataFrame,
    subject: str = "Whole models",
) -> Drawing:
    caption = f"{subject}: {caption}"
    return drawing(draws, arguments, f"model_{name}", caption, *shown, about=MODELS)
