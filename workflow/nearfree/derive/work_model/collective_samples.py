"""Curves that constants of collectives are calibrated on, by family, as arrays."""

import numpy as np
import polars as pl

from nearfree.derive.granularity.facts import with_facts
from nearfree.derive.work_model.collective import COLLECTIVES
from nearfree.derive.work_model.families import FAMILIES, family_of, times_refusal
from nearfree.derive.work_model.fit import Measured
from nearfree.derive.work_model.links import collective_features
from nearfree.derive.work_model.prepare import grids, padded

LARGEST_MIB = 64
"""Payloads beyond this are not fitted: no decode step sends them."""
_BYTES_PER_MIB = 2**20
SELECTIONS = {
    family.name: f"all curves of it, payloads up to {LARGEST_MIB} MiB" for family in COLLECTIVES
}


def collective_measured(
    settings: pl.DataFrame, points: pl.DataFrame, facts: pl.DataFrame
) -> dict[str, tuple[Measured, pl.DataFrame]]:
    """Return the curves of collectives by family, with a row of `settings` and latencies each.

    Parameters
    ----------
    settings, points
        Imported curves; those of other modules are left out.
    """
    lists = (
        points.sort("curve", "n")
        .group_by("curve", maintain_order=True)
        .agg(pl.col("n").alias("grid"), "latency_us")
    )
    rows = with_facts(settings.filter(pl.col("module") == "collective").join(lists, on="curve"),
                      facts)  # fmt: skip
    rows = rows.with_columns(family_of(rows))
    rows = rows.filter(pl.col("family").is_not_null() & times_refusal().is_null()).sort("curve")
    found = {}
    for name in FAMILIES:
        mine = rows.filter(pl.col("family") == name)
        if mine.is_empty():
            continue
        n, counts = grids(mine)
        features = collective_features(name, mine, n)
        small = features["payload"] <= LARGEST_MIB * _BYTES_PER_MIB
        measured = Measured(
            features=features,
            latency_us=padded(mine["latency_us"], n.shape[1]),
            counts=np.asarray(counts & small),
        )
        found[name] = measured, mine
    return found
