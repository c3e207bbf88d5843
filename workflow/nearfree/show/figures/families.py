"""Every figure of one platform and module, each with the rows that it shows."""

from collections.abc import Callable, Iterator
from typing import Any

import altair as alt
import polars as pl
from msgspec import Struct, structs

from nearfree.core.modules.kind import ModuleKind
from nearfree.core.plan import MODULES_SUFFIX as APART
from nearfree.core.plan import PROFILE_SUFFIX
from nearfree.show.figures.boundaries import nmax_against_own
from nearfree.show.figures.latency import latency_against_n
from nearfree.show.figures.listing import Figure, drawn_by
from nearfree.show.figures.predicted import (
    error_by_backend,
    known_as,
    predicted_against_measured,
    share_bars,
    shares_of,
)
from nearfree.show.figures.sensitivity import sensitivity_map
from nearfree.show.figures.staircase import flop_against_n, intensity_against_n
from nearfree.show.figures.utilization import utilization_against_n, utilization_at_one

Drawing = tuple[Figure, alt.FacetChart]
_SETTING = ["platform", "setting_key"]


class Rows(Struct, frozen=True, kw_only=True):
    """The tables that figures are drawn from: a platform's, with published ones beside them."""

    latency: pl.DataFrame
    work: pl.DataFrame
    boundaries: pl.DataFrame
    predictions: pl.DataFrame

    def of(self, module: str) -> "Rows":
        """Return the rows of one module, without what models' modules gave when measured apart.

        Figures of models are about them, and they are many.
        """
        frames = {n: f.filter(pl.col("module") == module) for n, f in structs.asdict(self).items()}
        predictions = frames.pop("predictions")
        own = {name: frame.filter(~_apart()) for name, frame in frames.items()}
        left_out = frames["boundaries"].join(own["boundaries"], on=_SETTING, how="anti")
        asked = predictions.join(left_out, on=_SETTING, how="anti", maintain_order="left")
        return Rows(**own, predictions=asked)


def _apart() -> pl.Expr:
    """Return whether a row, or the study that it is a profile of, is of a model's modules."""
    return pl.col("stream").str.strip_suffix(PROFILE_SUFFIX).str.ends_with(APART)


def drawings(rows: Rows, epsilon: float, module: ModuleKind) -> Iterator[Drawing]:
    """Yield what a module's rows can fill; nothing where the platform measured none of it."""
    latency, every = rows.latency.filter("newest"), rows.boundaries.filter("newest")
    if latency.is_empty():
        return
    at = every.filter(pl.col("epsilon") == epsilon)
    laws = rows.predictions.filter(pl.col("epsilon") == epsilon).drop_nulls("n_max")
    yield (
        _figure(
            latency_against_n,
            module,
            "latency_against_n",
            "T(N) of every setting, with the tolerance band and the boundary.",
            latency,
            at.filter(pl.col("origin") != "published"),
        ),
        latency_against_n(latency, every, epsilon, module),
    )
    yield (
        _figure(
            nmax_against_own,
            module,
            f"nmax_against_{module.own}",
            f"N_max against {module.letter}: measured here, published for H20, and predicted.",
            at,
            laws,
        ),
        nmax_against_own(every, laws, epsilon, module),
    )
    yield (
        _figure(
            sensitivity_map,
            module,
            "sensitivity",
            "N_max over tolerances: measured here and published for H20.",
            every,
        ),
        sensitivity_map(every, module),
    )
    yield from _of_work(rows.work.filter("newest"), module)


def _of_work(work: pl.DataFrame, module: ModuleKind) -> Iterator[Drawing]:
    """Yield the figures of executed work: staircases where rows are padded, and utilisation."""
    executed = work.filter(pl.col("flop_executed") > 0)
    weighed = executed.filter(pl.col("bytes") > 0)
    used = work.filter(pl.any_horizontal(pl.col("^.*_utilization$").is_not_null()))
    said = "executed and logical, counted by the adapter or seen by a profiler."
    if module.granular and not weighed.is_empty():
        caption = f"arithmetic intensity, {said}"
        figure = _figure(intensity_against_n, module, "intensity_against_n", caption, weighed)
        yield figure, intensity_against_n(weighed, module)
    if module.granular and not executed.is_empty():
        figure = _figure(
            flop_against_n, module, "flop_against_n", f"FLOPs of a forward, {said}", executed
        )
        yield figure, flop_against_n(executed, module)
    at_one = used.filter(pl.col("n") == 1)
    if not at_one.is_empty():
        caption = f"utilisation of compute and bandwidth at N = 1 against {module.letter}."
        figure = _figure(
            utilization_at_one, module, f"utilization_against_{module.own}", caption, at_one
        )
        yield figure, utilization_at_one(at_one, module)
    if not used.is_empty():
        caption = "utilisation of compute and bandwidth against N."
        figure = _figure(utilization_against_n, module, "utilization_against_n", caption, used)
        yield figure, utilization_against_n(used, module)


def accuracy_drawings(validation: pl.DataFrame, epsilon: float) -> Iterator[Drawing]:
    """Yield the figures of predictions against boundaries; nothing where nothing was predicted.

    Parameters
    ----------
    validation
        Rows of that table, of one scope.
    """
    at = validation.filter(pl.col("epsilon") == epsilon)
    answered = at.filter("answered")
    if answered.is_empty():
        return
    known = known_as(at)
    for draws, what, caption, shown, chart in (
        (
            predicted_against_measured,
            "predicted_against_measured",
            f"predicted against {known} N_max.",
            at,
            predicted_against_measured(at, epsilon),
        ),
        (
            share_bars,
            "shares",
            "shares of hits by predictor and module.",
            at,
            share_bars(
                shares_of(at, epsilon),
                f"Shares of hits, tolerance {epsilon:.0%}",
                f"Of all {known} settings: what is refused or undecided is a miss.",
            ),
        ),
        (
            error_by_backend,
            "error_by_backend",
            "how far predictions are from the boundary, by backend and version.",
            answered.drop_nulls("log2_error"),
            error_by_backend(at, epsilon),
        ),
    ):
        yield drawn_by(draws, f"accuracy_{what}", f"Predictions: {caption}", shown), chart


def _figure(
    draws: Callable[..., Any], module: ModuleKind, what: str, caption: str, *shown: pl.DataFrame
) -> Figure:
    full_caption = f"{module.title[0].upper()}{module.title[1:]}: {caption}"
    return drawn_by(draws, f"{module.name}_{what}", full_caption, *shown)
