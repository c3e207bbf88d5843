"""Predictions as lines: one a law and basis of facts in each panel of boundaries."""

import polars as pl

from nearfree.core.modules.kind import ModuleKind

BASES = {
    "datasheet": "datasheet phi and beta",
    "probed_stream": "probed, beta by streaming",
    "probed_gemm": "probed, beta by weight traffic",
    "none": "no facts of the platform",
}
"""What each basis of hardware facts is called."""
DASHES = dict(zip(BASES.values(), ([1, 0], [6, 3], [2, 2], [8, 2, 2, 2]), strict=True))


def laws(predictions: pl.DataFrame, boundaries: pl.DataFrame, module: ModuleKind) -> pl.DataFrame:
    """Return the points of each line; laws that agree all along a panel are one line.

    Parameters
    ----------
    boundaries
        The rows that are drawn, with their `panel`; a setting's predictions go where it is.
    """
    places = boundaries.select("platform", "origin", "setting_key", "panel").unique()
    answered = (
        predictions.drop_nulls("n_max")
        .join(places, on=["platform", "origin", "setting_key"])
        .with_columns(
            pl.col(module.own).alias("own"),
            pl.col("basis").fill_null("none").replace(BASES).alias("facts"),
        )
        .sort("panel", "facts", "predictor", "own", "row_id")
    )
    lines = answered.group_by("panel", "facts", "predictor", maintain_order=True).agg(
        "own", "n_max", "row_id"
    )
    alike = lines.group_by("panel", "facts", "own", "n_max", maintain_order=True).agg(
        pl.col("predictor").str.replace_all("_", " ").str.join(" = ").alias("law"),
        pl.col("row_id").first(),
    )
    return alike.select(
        *("panel", "law", "facts", "own", "n_max", "row_id"),
        pl.format("{}, {}", "law", "facts").alias("line"),
        pl.lit("law").alias("kind"),
    ).explode("own", "n_max", "row_id")
