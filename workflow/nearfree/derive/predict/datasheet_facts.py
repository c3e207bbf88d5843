"""Facts of datasheets, each with the row of the table `platforms` that it stands in."""

from collections.abc import Mapping

import polars as pl

from nearfree.derive.granularity.facts import datasheet_facts
from nearfree.hardware.platforms import Platform


def sheet_facts(sheets: Mapping[str, Platform], platforms: pl.DataFrame) -> pl.DataFrame:
    """Return the facts of datasheets with `fact_id`, null where the table holds none.

    Parameters
    ----------
    sheets
        The datasheets.
    platforms
        Rows of the table `platforms`.
    """
    held = platforms.filter(basis="datasheet").select(
        "platform", "dtype", pl.col("row_id").alias("fact_id")
    )
    return datasheet_facts(sheets).join(
        held, on=["platform", "dtype"], how="left", maintain_order="left"
    )
