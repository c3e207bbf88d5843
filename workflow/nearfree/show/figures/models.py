"""Every figure of the whole models that a platform measured, each with the rows that it shows."""

from collections.abc import Callable, Iterator
from typing import Any

import polars as pl
from msgspec import Struct, structs

from nearfree.core.modules.kind import ModuleKind
from nearfree.core.modules.model import MODEL
from nearfree.show.figures.families import Drawing
from nearfree.show.figures.latency import latency_against_n
from nearfree.show.figures.limiters import limiter_map, limiters
from nearfree.show.figures.listing import MODELS, Figure, drawn_by
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
    at, said = (
        frame.filter(pl.col("epsilon") == epsilon).join(latency, on=CURVE, how="semi")
        for frame in (rows.boundaries.filter(whole), rows.composition)
    )
    for module, mine in ((DENSE, pl.col("top_k").is_null()), (MOE, pl.col("top_k").is_not_null())):
        yield from _boundaries(at.filter(mine), said, epsilon, module)
    named = limiters(said)
    if not named.is_empty():
        caption = "the module that stops each: measured, and as predictors name it."
        shown = said.filter(pl.col("row_id").is_in(named["row_id"].implode()))
        yield (
            _figure(limiter_map, "limiters", "Whole models", caption, shown),
            limiter_map(named, epsilon),
        )
    shares = rows.time_shares.filter("newest")
    for model in latency["model"].unique().sort():
        module = structs.replace(MODEL, title=model)
        mine = pl.col("model") == model
        curves, ends = latency.filter(mine), at.filter(mine)
        caption = "T(N) of every setting, with the tolerance band and the boundary."
        yield (
            _figure(latency_against_n, f"latency_against_n_{model}", model, caption, curves, ends),
            latency_against_n(curves, ends, epsilon, module),
        )
        parts = shares.filter(mine)
        if not parts.is_empty():
            caption = "the part of a forward's time that each module takes, against N."
            ends = ends.join(parts, on=CURVE, how="semi")
            yield (
                _figure(time_shares_against_n, f"time_shares_{model}", model, caption, parts, ends),
                time_shares_against_n(parts, ends, epsilon, module),
            )


def _boundaries(
    at: pl.DataFrame, said: pl.DataFrame, epsilon: float, module: ModuleKind
) -> Iterator[Drawing]:
    """Yield the figure of N_max over one variable, if any setting has a boundary."""
    if not at.is_empty():
        drawn = said.drop_nulls("predicted").join(at, on=CURVE, how="semi")
        caption = f"N_max against {module.letter}: measured, and as predictors have it."
        name = f"nmax_against_{module.own}"
        figure = _figure(nmax_of_models, name, "Whole models", caption, at, drawn)
        yield figure, nmax_of_models(at, drawn, epsilon, module)


def _figure(
    draws: Callable[..., Any], what: str, subject: str, caption: str, *shown: pl.DataFrame
) -> Figure:
    return drawn_by(draws, f"model_{what}", f"{subject}: {caption}", *shown, about=MODELS)
