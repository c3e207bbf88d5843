"""Cache formats over which a refused question's kernels have curves."""

import polars as pl

from nearfree.derive.granularity.resolve import Resolver
from nearfree.derive.reference.regimes import Reference
from nearfree.derive.work_model.prepare import Prepared, prepare

_KERNEL_COLUMNS = ("platform", "backend", "backend_version", "kernel", "api", "dtype", "kv_dtype")
"""The columns that distinguish the kernels of questions."""


def other_caches(rows: pl.DataFrame, family: str, reference: Reference, resolver: Resolver) -> str:
    """Return the end of a refusal's text: the cache formats that would be answered, if any.

    `rows` are refused questions of one family.
    """
    if rows.is_empty():
        return ""
    distinct = rows.unique(_KERNEL_COLUMNS, maintain_order=True)
    formats = {key.kv_dtype or key.dtype for key in reference.groups if key.family == family}
    covered = [
        format_
        for format_ in sorted(formats)
        if _covers_all(distinct, format_, reference, resolver)
    ]
    options = " or ".join(f"--kv-dtype {format_}" for format_ in covered)
    return f" for this GPU and cache: others are known with {options}" if covered else ""


def _covers_all(
    rows: pl.DataFrame, cache_dtype: str, reference: Reference, resolver: Resolver
) -> bool:
    """Return whether groups cover all questions if their cache has this format."""
    kv_dtype = pl.when(pl.col("dtype") != cache_dtype).then(pl.lit(cache_dtype)).alias("kv_dtype")
    parts = prepare(rows.with_columns(kv_dtype), resolver)
    covered = (int(reference.covers(part).sum()) for part in parts if isinstance(part, Prepared))
    return sum(covered) == rows.height
