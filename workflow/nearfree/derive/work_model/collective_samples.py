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

_OTHER_MACHINES = {
    ("l40s", "sglang", "0.5.12"): 8,
    ("rtx_pro_6000", "sglang", "0.5.10"): 1,
    ("rtx_pro_6000", "vllm", "0.19.0"): 1,
    ("rtx_pro_6000", "trtllm", "1.3.0rc10"): 1,
}
"""`direct_gpus` of tables that are of another machine than the rest of their GPU, by platform,
backend and release: told by their own bandwidth (config/platforms.yaml, `direct_gpus`)."""


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
    rows = rows.with_columns(_direct(), family_of(rows))
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


def _direct() -> pl.Expr:
    """Return `direct_gpus` of the machine that a table is of."""
    found = pl.col("direct_gpus")
    for names, gpus in _OTHER_MACHINES.items():
        of = zip(("platform", "backend", "backend_version"), names, strict=True)
        mine = pl.all_horizontal(pl.col(column) == name for column, name in of)
        found = pl.when(mine).then(gpus).otherwise(found)
    return found.alias("direct_gpus")
