"""Which kernel decodes each question of attention over a cache, by its public curves."""

import polars as pl

from nearfree.backends.decode_kernels import DECODE_KERNELS, Decodes, decode_kernel
from nearfree.backends.records import BY_NAME

_PUBLIC = [each.kernel for each in DECODE_KERNELS]


def decode_kernels(rows: pl.DataFrame) -> list[Decodes | None]:
    """Return the kernel whose public curves speak of each question, None where there is none.

    Parameters
    ----------
    rows
        Questions of attention over a cache with the facts of their platform, or public curves.
    """
    cache = pl.coalesce("kv_dtype", "dtype")
    named = pl.when(pl.col("kernel").is_in(_PUBLIC)).then("kernel").otherwise("backend")
    asked = rows.select(named, "sm", cache.alias("cache")).rows()
    known = {each: decode_kernel(*each) for each in dict.fromkeys(asked)}
    return [known[each] for each in asked]


def as_decoded(rows: pl.DataFrame) -> pl.DataFrame:
    """Return questions where a public curve is a call of the backend whose tiles its kernel has."""
    curves = rows["kernel"].is_in(_PUBLIC).to_list()
    columns = ("backend", "backend_version", "api", "page_size")
    told = rows.select(columns).rows()
    for place, (curve, each) in enumerate(zip(curves, decode_kernels(rows), strict=True)):
        if curve and each is not None:
            record = BY_NAME[each.backend]
            told[place] = (each.backend, each.release, record.api, record.page_size)
    return rows.with_columns(
        pl.Series(name, values, dtype=rows.schema[name])
        for name, values in zip(columns, zip(*told, strict=True), strict=True)
    )
