"""Table `validation`: measured and published boundaries against predicted ones."""

import polars as pl

from nearfree.tables.schema import (
    ORIGINS,
    SETTING_COLUMNS,
    Table,
    amount,
    count,
    flag,
    number,
    text,
)

VALIDATION = Table(
    name="validation",
    row="one boundary against one prediction",
    key=("platform", "stream", "setting_key", "epsilon", "predictor", "basis"),
    body={
        "platform": text("the kind of machine"),
        "stream": text("the study, or the table that printed it"),
        **SETTING_COLUMNS,
        "epsilon": amount("tolerance"),
        "origin": text("where the boundary comes from", one_of=ORIGINS),
        "n_max": count("last pass over the grid"),
        "next_n": count("the grid point after it, none at the grid's end", nullable=True),
        "predictor": text("which law"),
        "basis": text("which hardware facts", nullable=True),
        "predicted": amount("the prediction", nullable=True),
        "hit": flag("whether n_max <= predicted < next_n; a refusal is a miss"),
        "within_2": flag("whether it is within a factor of two of that interval"),
        "log2_error": number("log2(predicted / n_max)", nullable=True),
        "refusal": text("why there is no prediction", nullable=True),
    },
)


def validate(boundaries: pl.DataFrame, predictions: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of `validation` for the newest boundary of every setting.

    A hit is a real-valued prediction in [N_max, next grid N), unbounded above where N_max is the
    last grid point. A setting without a prediction counts as a miss.
    """
    truth = boundaries.filter("newest").select(
        "platform", "stream", *SETTING_COLUMNS, "epsilon", "origin", "n_max", "next_n",
        pl.col("row_id").alias("truth_id"),
    )  # fmt: skip
    said = predictions.select(
        "platform", "setting_key", "predictor", "basis", "refusal",
        pl.col("n_max").alias("predicted"), pl.col("row_id").alias("said_id"),
    )  # fmt: skip
    joined = truth.join(
        said, on=["platform", "setting_key"], how="inner", maintain_order="left_right"
    )
    predicted, n_max = pl.col("predicted"), pl.col("n_max")
    following = pl.col("next_n").fill_null(float("inf"))
    return joined.with_columns(
        ((predicted >= n_max) & (predicted < following)).fill_null(value=False).alias("hit"),
        ((2 * predicted >= n_max) & (predicted < 2 * following))
        .fill_null(value=False)
        .alias("within_2"),
        (predicted / n_max).log(2).alias("log2_error"),
        pl.concat_list("truth_id", "said_id").alias("from_ids"),
    )
