"""Boundaries as they are read: from a curve's baseline, and from N=1 where that is another N."""

import polars as pl


def readings(boundaries: pl.DataFrame) -> pl.DataFrame:
    """Return a row a reading, with `from_one`; both readings of a boundary have its `row_id`."""
    second = boundaries.drop_nulls("n_max_from_1").with_columns(
        pl.lit(1, dtype=pl.Int64).alias("baseline"),
        *(pl.col(f"{name}_from_1").alias(name) for name in ("n_max", "n_low", "n_high")),
        pl.lit(value=True).alias("from_one"),
    )
    return pl.concat([boundaries.with_columns(pl.lit(value=False).alias("from_one")), second])
