"""Samples of several platforms and modules: taken apart, thinned, and put together again."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import polars as pl

from nearfree.derive.granularity.resolve import Resolver
from nearfree.derive.work_model.family import Array, Flags
from nearfree.derive.work_model.fit import Measured, taken
from nearfree.derive.work_model.samples import Sample, samples
from nearfree.public.curves import Curves

_CURVES_AT_ONCE = 20_000


def parts(
    curves: Curves, facts: pl.DataFrame, resolver: Resolver
) -> Iterator[tuple[str, str, Sample]]:
    """Yield the curves that constants can be fitted to: platform, family, and the curves.

    A platform and family can come several times, one module each.

    Parameters
    ----------
    facts
        phi, beta and the number of SMs, a row a platform and dtype.
    """
    for (platform, _), rows in curves.settings.sort("curve").group_by(
        "platform", "module", maintain_order=True
    ):
        for begin in range(0, rows.height, _CURVES_AT_ONCE):
            mine = rows[begin : begin + _CURVES_AT_ONCE]
            points = curves.points.join(mine.select("curve"), on="curve", how="semi")
            for family, sample in samples(Curves(mine, points), facts, resolver).items():
                yield str(platform), family, sample


def spread(sample: Sample, most: int) -> Measured:
    """Return at most so many curves, evenly spread over them in the order of their settings."""
    order = sample.curves.with_row_index("place").sort("setting_key", "backend_version", "place")
    places = np.linspace(0, order.height - 1, min(most, order.height)).round().astype(int)
    kept = np.zeros(order.height, dtype=bool)
    kept[order["place"].to_numpy()[places]] = True
    return taken(sample.measured, kept)


def joined(measured: Sequence[Measured]) -> Measured:
    """Return curves of one family together; shorter grids repeat their last point, uncounted."""
    width = max(each.counts.shape[1] for each in measured)
    first = measured[0].features
    counts: list[Flags] = [
        np.pad(each.counts, ((0, 0), (0, width - each.counts.shape[1]))) for each in measured
    ]
    features: dict[str, Any] = {
        name: _products([each.features[name] for each in measured])
        if isinstance(value, list)
        else _stacked([each.features[name] for each in measured])
        for name, value in first.items()
    }
    return Measured(
        features=features,
        latency_us=_stacked([each.latency_us for each in measured]),
        counts=np.concatenate(counts),
    )


def _stacked(arrays: Sequence[Array]) -> Array:
    width = max(array.shape[1] for array in arrays)
    return np.concatenate(
        [np.pad(array, ((0, 0), (0, width - array.shape[1])), mode="edge") for array in arrays]
    )


def _products(lists: Sequence[Sequence[tuple[Any, ...]]]) -> list[tuple[Array, ...]]:
    """Return products (K, N, how often) of all rows; who has fewer does the others no time."""
    most = max(len(each) for each in lists)
    full = [
        [(k, n, np.broadcast_to(times, k.shape)) for k, n, times in each]
        + [(each[0][0], each[0][1], np.zeros_like(each[0][0]))] * (most - len(each))
        for each in lists
    ]
    return [
        (*(_stacked([each[place][column] for each in full]) for column in range(3)),)
        for place in range(most)
    ]
