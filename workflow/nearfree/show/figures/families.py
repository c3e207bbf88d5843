"""Every figure of one platform and module, each with the rows that it shows."""

from collections.abc import Callable, Iterator
from typing import Any

import polars as pl
from msgspec import Struct, structs

from nearfree.core.modules.kind import ModuleKind
from nearfree.core.plan import MODULES_SUFFIX, PROFILE_SUFFIX
from nearfree.show.figures.boundaries import nmax_against_own, printed, sensitivity_map
from nearfree.show.figures.latency import latency_against_n
from nearfree.show.figures.listing import Drawing, drawing
from nearfree.show.figures.predicted import (
    OF_INTERVALS,
    error_by_backend,
    origins_of,
    predicted_against_measured,
    share_bars,
    shares_of,
)
from nearfree.show.figures.work import (
    flop_against_n,
    intensity_against_n,
    utilization_against_n,
    utilization_at_one,
)

_SETTING = ["platform", "setting_key"]


class Rows(Struct, frozen=True, kw_only=True):
    """The tables that figures are drawn from: a platform's, with published ones beside them."""

    latency: pl.DataFrame
    work: pl.DataFrame
    boundaries: pl.DataFrame
    predictions: pl.DataFrame

    def of(self, module: str) -> "Rows":
        """Return the rows of one module, less the studies of a model's modules by themselves.

        Figures of models show those.
        """
        frames = {n: f.filter(pl.col("module") == module) for n, f in structs.asdict(self).items()}
        predictions = frames.pop("predictions")
        own = {name: frame.filter(~_of_models_modules()) for name, frame in frames.items()}
        left_out = frames["boundaries"].join(own["boundaries"], on=_SETTING, how="anti")
        of_rows = predictions.join(left_out, on=_SETTING, how="anti", maintain_order="left")
        return Rows(**own, predictions=of_rows)


def _of_models_modules() -> pl.Expr:
    """Return whether a row, or the study that it is a profile of, is of a model's modules."""
    return pl.col("stream").str.strip_suffix(PROFILE_SUFFIX).str.ends_with(MODULES_SUFFIX)


def drawings(rows: Rows, epsilon: float, module: ModuleKind) -> Iterator[Drawing]:
    """Yield what a module's rows can fill; nothing where the platform measured none of it."""
    latency, boundaries = rows.latency.filter("newest"), rows.boundaries.filter("newest")
    if latency.is_empty():
        return
    at = boundaries.filter(pl.col("epsilon") == epsilon)
    laws = rows.predictions.filter(pl.col("epsilon") == epsilon).drop_nulls("n_max")
    predicted = [] if laws.is_empty() else ["predicted"]
    yield _drawing(
        latency_against_n,
        (latency, boundaries, epsilon, module),
        "latency_against_n",
        "T(N) of every setting, with the tolerance band and the boundary.",
        latency,
        at.filter(pl.col("origin") != "published"),
    )
    yield _drawing(
        nmax_against_own,
        (boundaries, laws, epsilon, module),
        f"nmax_against_{module.own}",
        f"N_max against {module.letter}: {_shown(at, *predicted)}.",
        at,
        laws,
    )
    yield _drawing(
        sensitivity_map,
        (boundaries, module),
        "sensitivity",
        f"N_max over tolerances: {_shown(boundaries)}.",
        boundaries,
    )
    yield from _of_work(rows.work.filter("newest"), module)


def _shown(boundaries: pl.DataFrame, *more: str) -> str:
    """Return in words what a figure shows: what was measured, what is printed of it, and more."""
    named = printed(boundaries)
    first, *parts = ("measured here", *([f"published for {named}"] if named else []), *more)
    if len(parts) > 1:
        return f"{first}, {parts[0]}, and {parts[1]}"
    return " and ".join((first, *parts))


def _of_work(work: pl.DataFrame, module: ModuleKind) -> Iterator[Drawing]:
    """Yield the figures of executed work: staircases where rows are padded, and utilisation."""
    executed = work.filter(pl.col("flop_executed") > 0)
    weighed = executed.filter(pl.col("bytes") > 0)
    used = work.filter(pl.any_horizontal(pl.col("^.*_utilization$").is_not_null()))
    counted = "executed and logical, counted by the adapter or seen by a profiler."
    usage = "utilisation of compute and bandwidth"
    figures: list[tuple[Callable[..., Any], str, str, pl.DataFrame]] = [
        (
            utilization_at_one,
            f"utilization_against_{module.own}",
            f"{usage} at N = 1 against {module.letter}.",
            used.filter(pl.col("n") == 1),
        ),
        (utilization_against_n, "utilization_against_n", f"{usage} against N.", used),
    ]
    if module.granular:
        figures = [
            (
                intensity_against_n,
                "intensity_against_n",
                f"arithmetic intensity, {counted}",
                weighed,
            ),
            (flop_against_n, "flop_against_n", f"FLOPs of a forward, {counted}", executed),
            *figures,
        ]
    for draws, name, caption, shown in figures:
        if not shown.is_empty():
            yield _drawing(draws, (shown, module), name, caption, shown)


def accuracy_drawings(validation: pl.DataFrame, epsilon: float) -> Iterator[Drawing]:
    """Yield the figures of predictions against boundaries; nothing where nothing was predicted."""
    at = validation.filter(pl.col("epsilon") == epsilon)
    answered = at.filter("answered")
    if answered.is_empty():
        return
    origins = origins_of(at)
    yield drawing(
        predicted_against_measured,
        (at, epsilon),
        "accuracy_predicted_against_measured",
        f"Predictions: predicted against {origins} N_max.",
        at,
    )
    yield drawing(
        share_bars,
        (
            shares_of(at, epsilon),
            f"Shares of hits, tolerance {epsilon:.0%}",
            f"Of all {origins} settings: what is refused or undecided is a miss. {OF_INTERVALS}",
        ),
        "accuracy_shares",
        "Predictions: shares of hits by predictor and module.",
        at,
    )
    known = answered.drop_nulls("log2_error")
    if not known.is_empty():
        yield drawing(
            error_by_backend,
            (at, epsilon),
            "accuracy_error_by_backend",
            "Predictions: how far predictions are from the boundary, by backend and version.",
            known,
        )


def _drawing(
    draws: Callable[..., Any],
    arguments: tuple[Any, ...],
    name: str,
    caption: str,
    *shown: pl.DataFrame,
) -> Drawing:
    """Return a figure of a module, the last argument: its name and caption begin with it."""
    module: ModuleKind = arguments[-1]
    subject = f"{module.title[0].upper()}{module.title[1:]}"
    return drawing(draws, arguments, f"{module.name}_{name}", f"{subject}: {caption}", *shown)
