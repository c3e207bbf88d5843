"""Over which other caches kernels of a question are known, where they are not over its own."""

import polars as pl

from nearfree.derive.granularity.resolve import Resolver
from nearfree.derive.reference.regimes import Reference
from nearfree.derive.work_model.prepare import Prepared, prepare

_OF_KERNEL = ("platform", "backend", "backend_version", "kernel", "api", "dtype", "kv_dtype")
"""What tells apart the kernels that questions ask of."""


def other_caches(rows: pl.DataFrame, family: str, known: Reference, resolver: Resolver) -> str:
    """Return how else to ask, to be said behind a refusal; nothing where that would be refused.

    Parameters
    ----------
    rows
        Questions of one family that are refused.
    """
    if rows.is_empty():
        return ""
    asked = rows.unique(_OF_KERNEL, maintain_order=True)
    caches = {key.kv_dtype or key.dtype for key in known.groups if key.family == family}
    others = [each for each in sorted(caches) if _all_known(asked, each, known, resolver)]
    options = " or ".join(f"--kv-dtype {each}" for each in others)
    return f" for this GPU and cache: others are known with {options}" if others else ""


def _all_known(rows: pl.DataFrame, cache: str, known: Reference, resolver: Resolver) -> bool:
    """Return whether there are kernels of all questions over a cache in some format."""
    over = pl.when(pl.col("dtype") != cache).then(pl.lit(cache)).alias("kv_dtype")
    parts = prepare(rows.with_columns(over), resolver)
    told = (int(known.knows(part).sum()) for part in parts if isinstance(part, Prepared))
    return sum(told) == rows.height
