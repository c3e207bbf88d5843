"""The figures of one platform and module, each with the rows that it shows."""

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
    """The tables that figures are drawn from: those of a platform, with published rows added."""

    latency: pl.DataFrame
    work: pl.DataFrame
    boundaries: pl.DataFrame
    predictions: pl.DataFrame

    def of(self, module: str) -> "Rows":
        """Return the rows of one module, without studies of a model's isolated modules.

        Figures of models show these.
        """
        frames = {n: f.filter(pl.col("module") == module) for n, f in structs.asdict(self).items()}
        predictions = frames.pop("predictions")
        study = pl.col("stream").str.strip_suffix(PROFILE_SUFFIX)  # a profile belongs to its study
        isolated = study.str.ends_with(MODULES_SUFFIX)
        kept = {name: frame.filter(~isolated) for name, frame in frames.items()}
        excluded = frames["boundaries"].join(kept["boundaries"], on=_SETTING, how="anti")
        kept_predictions = predictions.join(
            excluded, on=_SETTING, how="anti", maintain_order="left"
        )
        return Rows(**kept, predictions=kept_predictions)


def drawings(rows: Rows, epsilon: float, module: ModuleKind) -> Iterator[Drawing]:
    """Yield the figures that a module's rows can fill, none where the platform measured none."""
    latency, boundaries = rows.latency.filter("newest"), rows.boundaries.filter("newest")
    if latency.is_empty():
        return
    at_tolerance = boundaries.filter(pl.col("epsilon") == epsilon)
    laws = rows.predictions.filter(pl.col("epsilon") == epsilon).drop_nulls("n_max")
    predicted = [] if laws.is_empty() else ["predicted"]
    yield _drawing(
        latency_against_n,
        (latency, boundaries, epsilon, module),
        "latency_against_n",
        "T(N) of every setting, with the tolerance band and the boundary.",
        latency,
        at_tolerance.filter(pl.col("origin") != "published"),
    )
    yield _drawing(
        nmax_against_own,
        (boundaries, laws, epsilon, module),
        f"nmax_against_{module.own}",
        f"N_max against {module.letter}: {_shown(at_tolerance, *predicted)}.",
        at_tolerance,
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


def _shown(boundaries: pl.DataFrame, *further: str) -> str:
    """Return the origins that a figure shows, in words: measured, published, and further ones."""
    platforms = printed(boundaries)
    first, *parts = (
        "measured here",
        *([f"published for {platforms}"] if platforms else []),
        *further,
    )
    if len(parts) > 1:
        return f"{first}, {parts[0]}, and {parts[1]}"
    return " and ".join((first, *parts))


def _of_work(work: pl.DataFrame, module: ModuleKind) -> Iterator[Drawing]:
    """Yield the figures of executed work: FLOPs and intensity of padded rows, and utilisation."""
    executed = work.filter(pl.col("flop_executed") > 0)
    with_bytes = executed.filter(pl.col("bytes") > 0)
    with_utilization = work.filter(pl.any_horizontal(pl.col("^.*_utilization$").is_not_null()))
    counted = "executed and logical, counted by the adapter or measured by a profiler."
    usage = "utilisation of compute and bandwidth"
    figures: list[tuple[Callable[..., Any], str, str, pl.DataFrame]] = [
        (
            utilization_at_one,
            f"utilization_against_{module.own}",
            f"{usage} at N = 1 against {module.letter}.",
            with_utilization.filter(pl.col("n") == 1),
        ),
        (utilization_against_n, "utilization_against_n", f"{usage} against N.", with_utilization),
    ]
    if module.granular:
        figures = [
            (
                intensity_against_n,
                "intensity_against_n",
                f"arithmetic intensity, {counted}",
                with_bytes,
            ),
            (flop_against_n, "flop_against_n", f"FLOPs of a forward, {counted}", executed),
            *figures,
        ]
    for draw, name, caption, rows in figures:
        if not rows.is_empty():
            yield _drawing(draw, (rows, module), name, caption, rows)


def accuracy_drawings(validation: pl.DataFrame, epsilon: float) -> Iterator[Drawing]:
    """Yield the figures of predictions against boundaries, none without predictions."""
    at_tolerance = validation.filter(pl.col("epsilon") == epsilon)
    answered = at_tolerance.filter("answered")
    if answered.is_empty():
        return
    origins = origins_of(at_tolerance)
    yield drawing(
        predicted_against_measured,
        (at_tolerance, epsilon),
        "accuracy_predicted_against_measured",
        f"Predictions: predicted against {origins} N_max.",
        at_tolerance,
    )
    yield drawing(
        share_bars,
        (
            shares_of(at_tolerance, epsilon),
            f"Shares of hits, tolerance {epsilon:.0%}",
            f"Of all {origins} settings: refused and undecided ones are misses. {OF_INTERVALS}",
        ),
        "accuracy_shares",
        "Predictions: shares of hits by predictor and module.",
        at_tolerance,
    )
    with_error = answered.drop_nulls("log2_error")
    if not with_error.is_empty():
        yield drawing(
            error_by_backend,
            (at_tolerance, epsilon),
            "accuracy_error_by_backend",
            "Predictions: error of predictions in doublings, by backend and version.",
            with_error,
        )


def _drawing(
    draw: Callable[..., Any],
    arguments: tuple[Any, ...],
    name: str,
    caption: str,
    *rows: pl.DataFrame,
) -> Drawing:
    """Return a figure of a module, the last of `arguments`; name and caption begin with it."""
    module: ModuleKind = arguments[-1]
    subject = f"{module.title[0].upper()}{module.title[1:]}"
    return drawing(draw, arguments, f"{module.name}_{name}", f"{subject}: {caption}", *rows)
