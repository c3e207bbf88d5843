"""Curves that constants are calibrated on, by family, as arrays."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import polars as pl
from msgspec import Struct

from nearfree.derive.granularity.facts import with_facts
from nearfree.derive.granularity.resolve import Resolver
from nearfree.derive.truth.datasets import heavy_enough
from nearfree.derive.truth.truth import questions, truth
from nearfree.derive.work_model import collective_samples
from nearfree.derive.work_model.attention_rows import decode_tiles
from nearfree.derive.work_model.families import FAMILIES, OF_KERNELS, carried
from nearfree.derive.work_model.family import Array, Flags, column
from nearfree.derive.work_model.fit import Measured, taken
from nearfree.derive.work_model.prepare import (
    PACKING,
    Prepared,
    attention_features,
    grids,
    padded,
    prepare,
)
from nearfree.log.line import sha256
from nearfree.public.curves import ImportedCurves

LEAST_MB = 64.0
"""Smaller weights of a product may stay in the last-level cache."""
_ANY = 0.2
"""A tolerance; what is used of the truth, grids and ratios, is the same at each."""
SELECTIONS = {
    "gemm": f"16-bit products with weights of {LEAST_MB:g} MB or more",
    "moe_triton": "16-bit balanced MoE layers of Triton's fused kernel, from ceil(E / k) tokens on",
    "moe_library": "16-bit balanced MoE layers of other kernels, from ceil(E / k) tokens on",
    "attention_prefill": "16-bit attention without a cache, from the smallest N > 1 on",
    "attention_cached": "16-bit attention of one position, over the contexts of a curve",
    **collective_samples.SELECTIONS,
}


_APART = [
    *("dense_ffn", "collective"),
    *{
        module
        for name, family in FAMILIES.items()
        if name in OF_KERNELS or family.stated is not None
        for module in family.modules
    },
]
"""Modules without constants of their own to calibrate here."""


class Sample(Struct, frozen=True):
    """The curves of a family: arrays, and a digest of the rows that they are made of."""

    measured: Measured
    curves: pl.DataFrame
    rows_sha256: str


def samples(curves: ImportedCurves, facts: pl.DataFrame, resolver: Resolver) -> dict[str, Sample]:
    """Return the calibration's curves by family; a family without one is left out.

    Parameters
    ----------
    curves
        Those of the platforms that are calibrated on.
    """
    settings = curves.settings.filter(carried().is_null())
    kept = heavy_enough(settings, LEAST_MB).filter(
        ~pl.col("module").is_in(_APART)
        & ((pl.col("module") != "moe_ffn") | (pl.col("routing") == "balanced"))
    )
    several = (pl.col("module") != "attention") | (pl.col("n") > 1)
    points = curves.points.join(kept.select("curve", "module"), on="curve").filter(several)
    known = truth(kept, points.drop("module"), [_ANY])
    latency = known.ratios.join(points.select("curve", "n", "latency_us"), on=["curve", "n"])
    asked = with_facts(questions(known), facts)
    parts: dict[str, list[Prepared]] = {}
    for part in prepare(asked.sort("asked"), resolver, at_once=max(asked.height, 1)):
        if isinstance(part, Prepared):
            parts.setdefault(part.family.name, []).append(part)
    found = {name: _sample(each, latency, kept) for name, each in parts.items()}
    cached = _over_contexts(settings, curves.points, facts)
    sent = collective_samples.collective_measured(settings, curves.points, facts)
    return (
        found
        | ({} if cached is None else {"attention_cached": cached})
        | {
            name: _with_digest(measured, rows.select("curve", "latency_us"), settings)
            for name, (measured, rows) in sent.items()
        }
    )


def _sample(parts: list[Prepared], latency: pl.DataFrame, settings: pl.DataFrame) -> Sample:
    (part,) = parts  # every family is of one module here, and all of its rows come at once
    lists = latency.sort("curve", "n").group_by("curve", maintain_order=True).agg("latency_us")
    rows = part.rows.select(pl.col("asked").alias("curve")).join(
        lists, on="curve", how="left", maintain_order="left"
    )
    times = padded(rows["latency_us"], part.counts.shape[1])
    measured = Measured(features=part.features, latency_us=times, counts=part.counts)
    return _with_digest(measured, rows, settings)


def _over_contexts(
    settings: pl.DataFrame, points: pl.DataFrame, facts: pl.DataFrame
) -> Sample | None:
    """Return curves T(1) over L: what reads the cache, without a second position."""
    lists = (
        points.filter(pl.col("context").is_not_null())
        .sort("curve", "context")
        .group_by("curve", maintain_order=True)
        .agg(pl.col("context").alias("grid"), "latency_us")
    )
    rows = settings.filter(pl.col("module") == "attention").join(lists, on="curve")
    known = ("peak_tflops", "bandwidth_gb_s", "sm_count")
    rows = with_facts(rows, facts).drop_nulls(known).sort("curve")
    if rows.is_empty():
        return None
    contexts, counts = grids(rows)
    one = np.ones_like(contexts)
    packs = rows["kernel"].fill_null("").str.contains(PACKING).to_numpy()[:, None]
    group = np.where(packs, column(rows, "heads") / column(rows, "kv_heads"), 1.0)
    features = attention_features(rows, one) | {"context": contexts} | decode_tiles(one, group)
    times = padded(rows["latency_us"], contexts.shape[1])
    measured = Measured(features=features, latency_us=times, counts=counts)
    return _with_digest(measured, rows.select("curve", "latency_us"), settings)


def _with_digest(measured: Measured, rows: pl.DataFrame, settings: pl.DataFrame) -> Sample:
    named = rows.join(settings, on="curve", how="left", maintain_order="left")
    told = named.select(
        "platform", "setting_key", "backend", "backend_version", "kernel", "latency_us"
    )
    return Sample(measured, named, sha256(told.write_ndjson().encode()))


_CURVES_AT_ONCE = 20_000


def parts(
    curves: ImportedCurves, facts: pl.DataFrame, resolver: Resolver
) -> Iterator[tuple[str, str, Sample]]:
    """Yield the curves that constants can be fitted to: platform, family, and the curves.

    A platform and family can come several times, one module each. Collectives are left out.

    Parameters
    ----------
    facts
        phi, beta and the number of SMs, a row a platform and dtype.
    """
    computed = curves.settings.filter(pl.col("module") != "collective")
    for (platform, _), rows in computed.sort("curve").group_by(
        "platform", "module", maintain_order=True
    ):
        for begin in range(0, rows.height, _CURVES_AT_ONCE):
            mine = rows[begin : begin + _CURVES_AT_ONCE]
            points = curves.points.join(mine.select("curve"), on="curve", how="semi")
            for family, sample in samples(ImportedCurves(mine, points), facts, resolver).items():
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
