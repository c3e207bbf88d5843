"""The calibration curves of constants, by family, as arrays."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import polars as pl
from msgspec import Struct

from nearfree.core.modules.attention import ATTENTION
from nearfree.derive.granularity.facts import with_facts
from nearfree.derive.granularity.resolve import Resolver
from nearfree.derive.truth.datasets import heavy_enough
from nearfree.derive.truth.truth import questions, truth
from nearfree.derive.work_model.attention import ATTENTION_CACHED, decode_tiles
from nearfree.derive.work_model.collective import COLLECTIVES
from nearfree.derive.work_model.families import (
    FAMILIES,
    OF_KERNELS,
    carried,
    family_of,
    times_refusal,
)
from nearfree.derive.work_model.family import Array, Flags
from nearfree.derive.work_model.fit import Measured, selected_curves
from nearfree.derive.work_model.prepare import Prepared, grids, padded, prepare
from nearfree.log.line import sha256
from nearfree.public.curves import ImportedCurves

LEAST_MB = 64.0
"""Least weights of a product, in MB; smaller ones may stay in the last-level cache."""
LARGEST_MIB = 64
"""Largest payload that is fitted: no decode step sends more."""
_BYTES_PER_MIB = 2**20
_ANY = 0.2
"""Any tolerance: grids and ratios of the truth, which are used here, do not depend on it."""
SELECTIONS = {
    "gemm": f"16-bit products with weights of {LEAST_MB:g} MB or more",
    "moe_triton": "16-bit balanced MoE layers of Triton's fused kernel, from ceil(E / k) tokens on",
    "moe_library": "16-bit balanced MoE layers of other kernels, from ceil(E / k) tokens on",
    "attention_prefill": "16-bit attention without a cache, from the smallest N > 1 on",
    "attention_cached": "16-bit attention of one position, over the contexts of a curve",
    **{
        family.name: f"all curves of it, payloads up to {LARGEST_MIB} MiB" for family in COLLECTIVES
    },
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
"""Modules whose constants are not calibrated here."""


_OTHER_MACHINES = {
    ("l40s", "sglang", "0.5.12"): 8,
    ("rtx_pro_6000", "sglang", "0.5.10"): 1,
    ("rtx_pro_6000", "vllm", "0.19.0"): 1,
    ("rtx_pro_6000", "trtllm", "1.3.0rc10"): 1,
}
"""`direct_gpus` of tables from another machine than the other tables of their GPU, by platform,
backend and release: their bandwidth shows it (config/platforms.yaml, `direct_gpus`)."""


class Sample(Struct, frozen=True):
    """The curves of a family: arrays, and a digest of their source rows."""

    measured: Measured
    curves: pl.DataFrame
    rows_sha256: str


def samples(curves: ImportedCurves, facts: pl.DataFrame, resolver: Resolver) -> dict[str, Sample]:
    """Return the calibration curves by family; a family without curves is left out."""
    settings = curves.settings.filter(carried().is_null())
    selected = heavy_enough(settings, LEAST_MB).filter(
        ~pl.col("module").is_in(_APART)
        & ((pl.col("module") != "moe_ffn") | (pl.col("routing") == "balanced"))
    )
    counted = (pl.col("module") != ATTENTION.name) | (pl.col("n") > 1)
    points = curves.points.join(selected.select("curve", "module"), on="curve").filter(counted)
    curve_truth = truth(selected, points.drop("module"), [_ANY])
    latency = curve_truth.ratios.join(points.select("curve", "n", "latency_us"), on=["curve", "n"])
    question_rows = with_facts(questions(curve_truth), facts)
    by_family: dict[str, list[Prepared]] = {}
    for part in prepare(
        question_rows.sort("asked"), resolver, at_once=max(question_rows.height, 1)
    ):
        if isinstance(part, Prepared):
            by_family.setdefault(part.family.name, []).append(part)
    computed = {
        name: _sample(family_parts, latency, selected) for name, family_parts in by_family.items()
    }
    over_contexts = _over_contexts(settings, curves.points, facts)
    collectives = collective_measured(settings, curves.points, facts)
    return (
        computed
        | ({} if over_contexts is None else {"attention_cached": over_contexts})
        | {
            name: _with_digest(measured, rows.select("curve", "latency_us"), settings)
            for name, (measured, rows) in collectives.items()
        }
    )


def _listed(points: pl.DataFrame, axis: str) -> pl.DataFrame:
    """Return curves, a row each: their numbers of an axis as the list `grid`, and latency_us."""
    ordered = points.sort("curve", axis).group_by("curve", maintain_order=True)
    return ordered.agg(pl.col(axis).alias("grid"), "latency_us")


def _sample(parts: list[Prepared], latency: pl.DataFrame, settings: pl.DataFrame) -> Sample:
    (part,) = parts  # here a family has one module, and its rows come in one part
    rows = part.rows.select(pl.col("asked").alias("curve")).join(
        _listed(latency, "n").drop("grid"), on="curve", how="left", maintain_order="left"
    )
    latency_us = padded(rows["latency_us"], part.counts.shape[1])
    measured = Measured(features=part.features, latency_us=latency_us, counts=part.counts)
    return _with_digest(measured, rows, settings)


def _over_contexts(
    settings: pl.DataFrame, points: pl.DataFrame, facts: pl.DataFrame
) -> Sample | None:
    """Return the curves of T(1) over L: attention of one position over a cache."""
    latencies = _listed(points.filter(pl.col("context").is_not_null()), "context")
    rows = settings.filter(pl.col("module") == ATTENTION.name).join(latencies, on="curve")
    required = ("peak_tflops", "bandwidth_gb_s", "sm_count")
    rows = with_facts(rows, facts).drop_nulls(required).sort("curve")
    if rows.is_empty():
        return None
    contexts, counts = grids(rows)
    ones = np.ones_like(contexts)
    features = ATTENTION_CACHED.features(rows, ones) | {"context": contexts}
    features |= decode_tiles(ones, features["rows_per_position"])
    latency_us = padded(rows["latency_us"], contexts.shape[1])
    measured = Measured(features=features, latency_us=latency_us, counts=counts)
    return _with_digest(measured, rows.select("curve", "latency_us"), settings)


def collective_measured(
    settings: pl.DataFrame, points: pl.DataFrame, facts: pl.DataFrame
) -> dict[str, tuple[Measured, pl.DataFrame]]:
    """Return the curves of collectives by family, with their rows of settings and latencies."""
    collectives = settings.filter(pl.col("module") == "collective")
    rows = with_facts(collectives.join(_listed(points, "n"), on="curve"), facts)
    rows = rows.with_columns(_direct_gpus(), family_of(rows))
    rows = rows.filter(pl.col("family").is_not_null() & times_refusal().is_null()).sort("curve")
    by_family = {}
    for name in filter(set(rows["family"]).__contains__, FAMILIES):
        family_rows = rows.filter(pl.col("family") == name)
        n, counts = grids(family_rows)
        features = FAMILIES[name].features(family_rows, n)
        small = features["payload"] <= LARGEST_MIB * _BYTES_PER_MIB
        measured = Measured(
            features=features,
            latency_us=padded(family_rows["latency_us"], n.shape[1]),
            counts=np.asarray(counts & small),
        )
        by_family[name] = measured, family_rows
    return by_family


def _direct_gpus() -> pl.Expr:
    """Return `direct_gpus` of the machine that a table was measured on."""
    direct = pl.col("direct_gpus")
    for table, gpus in _OTHER_MACHINES.items():
        conditions = zip(("platform", "backend", "backend_version"), table, strict=True)
        is_table = pl.all_horizontal(pl.col(column) == name for column, name in conditions)
        direct = pl.when(is_table).then(gpus).otherwise(direct)
    return direct.alias("direct_gpus")


def _with_digest(measured: Measured, rows: pl.DataFrame, settings: pl.DataFrame) -> Sample:
    source_rows = rows.join(settings, on="curve", how="left", maintain_order="left")
    digest_columns = source_rows.select(
        "platform", "setting_key", "backend", "backend_version", "kernel", "latency_us"
    )
    return Sample(measured, source_rows, sha256(digest_columns.write_ndjson().encode()))


_CURVES_AT_ONCE = 20_000


def parts(
    curves: ImportedCurves, facts: pl.DataFrame, resolver: Resolver
) -> Iterator[tuple[str, str, Sample]]:
    """Yield platform, family and curves, for all curves to which constants can be fitted.

    A platform and family may be repeated, with one module each. Collectives are left out.
    """
    computed = curves.settings.filter(pl.col("module") != "collective")
    for (platform, _), rows in computed.sort("curve").group_by(
        "platform", "module", maintain_order=True
    ):
        for begin in range(0, rows.height, _CURVES_AT_ONCE):
            batch = curves.of(rows[begin : begin + _CURVES_AT_ONCE])
            for family, sample in samples(batch, facts, resolver).items():
                yield str(platform), family, sample


def spread(sample: Sample, most: int) -> Measured:
    """Return at most `most` curves, evenly spread in the order of their settings."""
    order = sample.curves.with_row_index("place").sort("setting_key", "backend_version", "place")
    rows = np.linspace(0, order.height - 1, min(most, order.height)).round().astype(int)
    return selected_curves(sample.measured, np.unique(order["place"].to_numpy()[rows]))


def joined(measured: Sequence[Measured]) -> Measured:
    """Return curves of one family in one; shorter grids repeat their last point, uncounted."""
    width = max(curves.counts.shape[1] for curves in measured)
    counts: list[Flags] = [
        np.pad(curves.counts, ((0, 0), (0, width - curves.counts.shape[1]))) for curves in measured
    ]
    features: dict[str, Any] = {}
    for name, value in measured[0].features.items():
        values = [curves.features[name] for curves in measured]
        features[name] = _products(values) if isinstance(value, list) else _stacked(values)
    return Measured(
        features=features,
        latency_us=_stacked([curves.latency_us for curves in measured]),
        counts=np.concatenate(counts),
    )


def _stacked(arrays: Sequence[Array]) -> Array:
    width = max(array.shape[1] for array in arrays)
    return np.concatenate(
        [np.pad(array, ((0, 0), (0, width - array.shape[1])), mode="edge") for array in arrays]
    )


def _products(lists: Sequence[Sequence[tuple[Any, ...]]]) -> list[tuple[Array, ...]]:
    """Return products (K, N, times) of all rows; those that a row lacks run 0 times."""
    count = max(len(products) for products in lists)
    full = [
        [(k, n, np.broadcast_to(times, k.shape)) for k, n, times in products]
        + [(products[0][0], products[0][1], np.zeros_like(products[0][0]))]
        * (count - len(products))
        for products in lists
    ]
    return [
        (*(_stacked([products[number][part] for products in full]) for part in range(3)),)
        for number in range(count)
    ]
