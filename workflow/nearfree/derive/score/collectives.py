"""How well T(N) of collectives is known on a GPU that no constant has seen.

A collective stands in a forward's sum, so what counts is T itself: |predicted / measured - 1| of
each point, with the constants of a form fitted to all platforms but the point's own.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from nearfree.derive.work_model.collective import EXCHANGES
from nearfree.derive.work_model.collective_samples import collective_measured
from nearfree.derive.work_model.families import FAMILIES
from nearfree.derive.work_model.family import Flags, times_of
from nearfree.derive.work_model.fit import fit, taken
from nearfree.public.curves import ImportedCurves

LEAST_KIB, MOST_MIB = 8, 16
"""Payloads that are scored; of dispatch and combine every one is, as far as it is fitted."""
BY = ("family", "platform", "backend", "backend_version", "kernel", "operation", "gpus")
"""What errors can be grouped by."""
_SCHEMA = {
    **dict.fromkeys(BY, pl.String),
    "gpus": pl.Int64,
    "n": pl.Int64,
    "payload_bytes": pl.Float64,
    "latency_us": pl.Float64,
    "predicted_us": pl.Float64,
    "error": pl.Float64,
}
MOST = 60
"""Curves of a platform and family that are fitted, evenly spread; all are scored."""
_ANY = 0.2
"""The fit asks for a tolerance, which says nothing where T itself is fitted."""


def left_out_errors(curves: ImportedCurves, facts: pl.DataFrame) -> pl.DataFrame:
    """Return the error of T at each point of collectives, their platform left out of the fit.

    A family with curves of one platform alone has no other one to be fitted to, and is left out.

    Parameters
    ----------
    curves
        Imported curves; those of other modules are left out.

    Returns
    -------
    polars.DataFrame
        A row a point: the columns of BY, `n`, `payload_bytes`, `latency_us`, `predicted_us` and
        `error`, |predicted / measured - 1|.
    """
    every = {each.name for each in EXCHANGES}
    frames = [pl.DataFrame(schema=_SCHEMA)]
    for name, (measured, rows) in collective_measured(
        curves.settings, curves.points, facts
    ).items():
        platforms = rows["platform"].to_numpy()
        fitted_on = _spread(platforms)
        for platform in sorted(set(platforms)):
            mine = platforms == platform
            if mine.all():
                continue
            fitted = fit(FAMILIES[name], taken(measured, fitted_on & ~mine), _ANY)
            here = taken(measured, mine)
            payload, n = here.features["payload"], here.features["n"]
            scored = here.counts & (
                (name in every) | ((payload >= LEAST_KIB * 2**10) & (payload <= MOST_MIB * 2**20))
            )
            predicted = times_of(FAMILIES[name], fitted, here.features)
            place, _ = np.nonzero(scored)
            of = rows.filter(pl.Series(mine))[place.tolist()]
            frames.append(
                of.select(*BY)
                .with_columns(
                    pl.Series("n", n[scored]).cast(pl.Int64),
                    pl.Series("payload_bytes", payload[scored]),
                    pl.Series("latency_us", here.latency_us[scored]),
                    pl.Series("predicted_us", predicted[scored]),
                    pl.Series("error", np.abs(predicted / here.latency_us - 1.0)[scored]),
                )
                .select(*_SCHEMA)
            )
    return pl.concat(frames)


def _spread(platforms: npt.NDArray[Any]) -> Flags:
    """Return which curves are fitted: at most MOST a platform, in the order of their rows."""
    kept = np.zeros(len(platforms), dtype=bool)
    for platform in set(platforms):
        (places,) = np.nonzero(platforms == platform)
        at = np.linspace(0, len(places) - 1, min(MOST, len(places))).round().astype(int)
        kept[places[at]] = True
    return kept


def grouped(errors: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """Return the errors of groups of points: how many, their median, and the worst tenth's begin.

    Parameters
    ----------
    by
        Some of BY.
    """
    error = pl.col("error")
    return (
        errors.group_by(by)
        .agg(
            pl.col("platform").n_unique().alias("platforms"),
            pl.len().alias("points"),
            error.median().alias("median_error"),
            error.quantile(0.9).alias("error_90"),
        )
        .sort(by)
    )
