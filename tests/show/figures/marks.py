"""The rows behind a chart's marks."""

from typing import Any

import altair as alt
import polars as pl
from nearfree.core.modules.registry import MAIN

DENSE, MOE, ATTENTION = MAIN


def marks(chart: alt.FacetChart, kind: str | None = None) -> list[dict[str, Any]]:
    """Return the rows of a chart's marks, of one kind if it is given."""
    (data,) = chart.to_dict()["datasets"].values()
    return [row for row in data if kind is None or row["kind"] == kind]


def wider(frame: pl.DataFrame, **changes: object) -> pl.DataFrame:
    """Return a frame with its rows repeated under another setting."""
    other = frame.with_columns(
        *(pl.lit(value, dtype=frame.schema[name]).alias(name) for name, value in changes.items()),
        pl.format("{}-other", "setting_key").alias("setting_key"),
        pl.format("{}-other", "row_id").alias("row_id"),
    )
    return pl.concat([frame, other])


def again(frame: pl.DataFrame) -> pl.DataFrame:
    """Return a frame with its rows repeated under another study."""
    other = frame.with_columns(
        pl.format("{}_slowly", "stream").alias("stream"),
        pl.format("{}-again", "row_id").alias("row_id"),
    )
    return pl.concat([frame, other])
