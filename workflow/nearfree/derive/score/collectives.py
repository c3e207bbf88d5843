"""Accuracy of T(N) of collectives on a GPU that was left out of the calibration.

A collective is a term of a forward's sum, so the error is that of T itself: |predicted / measured -
1| of each point, with the form's constants fitted to all platforms but the point's own.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from nearfree.derive.work_model.collective import EXCHANGES
from nearfree.derive.work_model.families import FAMILIES
from nearfree.derive.work_model.family import Flags, times_of
from nearfree.derive.work_model.fit import fit, selected_curves
from nearfree.derive.work_model.samples import collective_measured
from nearfree.public.curves import ImportedCurves

LEAST_KIB, MOST_MIB = 8, 16
"""Range of scored payloads; of dispatch and combine all payloads are scored that are fitted."""
BY = ("family", "platform", "backend", "backend_version", "kernel", "operation", "gpus")
"""Columns that errors can be grouped by."""
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
"""Most curves per platform and family that are fitted, evenly spread; all curves are scored."""
_ANY = 0.2
"""A tolerance for the fit's signature; it has no effect where T itself is fitted."""


def left_out_errors(curves: ImportedCurves, facts: pl.DataFrame) -> pl.DataFrame:
    """Return the error of T at each point of collectives, with its platform left out of the fit.

    A family with curves of one platform only is omitted: there is no other platform to fit. Curves
    of other modules are ignored.

    Returns
    -------
    polars.DataFrame
        One row per point: the columns of BY, `n`, `payload_bytes`, `latency_us`, `predicted_us` and
        `error`, |predicted / measured - 1|.
    """
    exchanges = {exchange.name for exchange in EXCHANGES}
    frames = [pl.DataFrame(schema=_SCHEMA)]
    for name, (measured, rows) in collective_measured(
        curves.settings, curves.points, facts
    ).items():
        platforms = rows["platform"].to_numpy()
        fitted_rows = _spread(platforms)
        for platform in sorted(set(platforms)):
            held_out = platforms == platform
            if held_out.all():
                continue
            constants = fit(
                FAMILIES[name], selected_curves(measured, fitted_rows & ~held_out), _ANY
            )
            held_out_measured = selected_curves(measured, held_out)
            payload, n = held_out_measured.features["payload"], held_out_measured.features["n"]
            scored = held_out_measured.counts & (
                (name in exchanges)
                | ((payload >= LEAST_KIB * 2**10) & (payload <= MOST_MIB * 2**20))
            )
            predicted = times_of(FAMILIES[name], constants, held_out_measured.features)
            row_index, _ = np.nonzero(scored)
            settings = rows.filter(pl.Series(held_out))[row_index.tolist()]
            frames.append(
                settings.select(*BY)
                .with_columns(
                    pl.Series("n", n[scored]).cast(pl.Int64),
                    pl.Series("payload_bytes", payload[scored]),
                    pl.Series("latency_us", held_out_measured.latency_us[scored]),
                    pl.Series("predicted_us", predicted[scored]),
                    pl.Series(
                        "error", np.abs(predicted / held_out_measured.latency_us - 1.0)[scored]
                    ),
                )
                .select(*_SCHEMA)
            )
    return pl.concat(frames)


def _spread(platforms: npt.NDArray[Any]) -> Flags:
    """Return a mask of the curves to fit: at most MOST per platform, in the order of the rows."""
    fitted = np.zeros(len(platforms), dtype=bool)
    for platform in set(platforms):
        (places,) = np.nonzero(platforms == platform)
        selection = np.linspace(0, len(places) - 1, min(MOST, len(places))).round().astype(int)
        fitted[places[selection]] = True
    return fitted


def grouped(errors: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """Return the errors of groups of points: their number, median and 90th percentile.

    `by` are some of BY.
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
