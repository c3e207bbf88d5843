"""The calibration curves of collectives, by family, as arrays."""

import numpy as np
import polars as pl

from nearfree.derive.granularity.facts import with_facts
from nearfree.derive.work_model.collective import COLLECTIVES
from nearfree.derive.work_model.families import FAMILIES, family_of, times_refusal
from nearfree.derive.work_model.fit import Measured
from nearfree.derive.work_model.links import collective_features
from nearfree.derive.work_model.prepare import grids, padded

LARGEST_MIB = 64
"""Largest payload that is fitted: no decode step sends more."""
_BYTES_PER_MIB = 2**20
SELECTIONS = {
    family.name: f"all curves of it, payloads up to {LARGEST_MIB} MiB" for family in COLLECTIVES
}

_OTHER_MACHINES = {
    ("l40s", "sglang", "0.5.12"): 8,
    ("rtx_pro_6000", "sglang", "0.5.10"): 1,
    ("rtx_pro_6000", "vllm", "0.19.0"): 1,
    ("rtx_pro_6000", "trtllm", "1.3.0rc10"): 1,
}
"""`direct_gpus` of tables from another machine than the other tables of their GPU, by platform,
backend and release: their bandwidth shows it (config/platforms.yaml, `direct_gpus`)."""


def collective_measured(
    settings: pl.DataFrame, points: pl.DataFrame, facts: pl.DataFrame
) -> dict[str, tuple[Measured, pl.DataFrame]]:
    """Return the curves of collectives by family, with their rows of `settings` and latencies.

    Parameters
    ----------
    settings, points
        Imported curves; other modules are left out.
    """
    latencies = (
        points.sort("curve", "n")
        .group_by("curve", maintain_order=True)
        .agg(pl.col("n").alias("grid"), "latency_us")
    )
    rows = with_facts(settings.filter(pl.col("module") == "collective").join(latencies, on="curve"),
                      facts)  # fmt: skip
    rows = rows.with_columns(_direct_gpus(), family_of(rows))
    rows = rows.filter(pl.col("family").is_not_null() & times_refusal().is_null()).sort("curve")
    by_family = {}
    for name in FAMILIES:
        family_rows = rows.filter(pl.col("family") == name)
        if family_rows.is_empty():
            continue
        n, counts = grids(family_rows)
        features = collective_features(name, family_rows, n)
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
