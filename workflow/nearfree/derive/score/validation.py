"""Table `validation`: measured and published boundaries against predicted ones.

`scores` defines a hit and all other judgements.
"""

import polars as pl

from nearfree.derive.predict.predictions import PREDICTIONS
from nearfree.derive.score.composition import COMPOSITION, PREDICTED, compose
from nearfree.derive.score.scores import SCORES, judgement, score_rows
from nearfree.derive.tables.boundaries import BOUNDARIES
from nearfree.derive.tables.columns import (
    ORIGINS,
    SETTING_COLUMNS,
    amount,
    count,
    flag,
    number,
    text,
)
from nearfree.derive.tables.schema import Table
from nearfree.derive.tables.store import digests, read_table, seals_digest, write_table
from nearfree.derive.tables.time_shares import TIME_SHARES
from nearfree.log.events import LatencyMeasured, PredictionRecorded
from nearfree.log.evidence import Take, open_takes
from nearfree.log.names import Layout

VALIDATION = Table(
    name="validation",
    row="one boundary against one prediction",
    key=("platform", "stream", "setting_key", "epsilon", "predictor", "basis"),
    formula="a hit is n_max <= predicted < next N of the grid; refused or undecided is none",
    code="nearfree.derive.score.validation",
    body={
        "platform": text("the kind of machine"),
        "stream": text("the study, or the table that printed it"),
        **SETTING_COLUMNS,
        "epsilon": amount("tolerance"),
        "origin": text("where the boundary comes from", one_of=ORIGINS),
        "n_max": count("last pass over the grid"),
        "next_n": count("the grid point after it, none at the grid's end", nullable=True),
        "undecided": flag("whether the measurement is too loose to tell; it counts as a miss"),
        "predictor": text("the predictor"),
        **PREDICTED,
        "in_sample": flag("whether its constants were calibrated on this platform"),
        "answered": flag("whether there is a prediction at all"),
        "hit": flag("n_max <= predicted < next_n; never if refused or undecided"),
        "within_1_31": flag("whether it is within a factor of 1.31 of that interval"),
        "within_2": flag("whether it is within a factor of two of it"),
        "log2_error": number("doublings from the prediction to the nearest end of that interval, "
                             "none where that is infinite", nullable=True),
        "covered": flag("whether its own interval meets that one", nullable=True),
        "width": number("high / low", nullable=True),
        "refusal": text("why there is no prediction", nullable=True),
    },
)  # fmt: skip
_PAIR = ["platform", "origin", "setting_key", "baseline", "epsilon"]


def write_validation(layout: Layout, scope: str) -> None:
    """Write the tables `validation`, `composition` and `scores` of a scope."""
    boundaries = read_table(layout, scope, BOUNDARIES)
    predictions = read_table(layout, scope, PREDICTIONS)
    row_ids = {*boundaries["row_id"], *predictions["row_id"]}
    frame = VALIDATION.build(validate(boundaries, predictions), row_ids)
    made_from = digests(layout, scope, BOUNDARIES, PREDICTIONS)
    write_table(layout, scope, VALIDATION, frame, made_from)
    shares = read_table(layout, scope, TIME_SHARES)
    opened = open_takes(layout, scope, only=(LatencyMeasured, PredictionRecorded))
    rows = compose(frame, boundaries, predictions, shares, (Take(*take) for take in opened))
    row_ids = {*frame["row_id"], *row_ids, *shares["row_id"]}
    composition = COMPOSITION.build(COMPOSITION.frame(rows), row_ids)
    write_table(layout, scope, COMPOSITION, composition, made_from | seals_digest(layout, scope))
    scores = SCORES.build(
        score_rows(frame, composition), {*frame["row_id"], *composition["row_id"]}
    )
    write_table(layout, scope, SCORES, scores, digests(layout, scope, VALIDATION, COMPOSITION))


def validate(boundaries: pl.DataFrame, predictions: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of `validation` for the newest boundary of every setting.

    A setting without a prediction counts as a miss, and so does an undecided boundary.
    """
    truth = boundaries.filter("newest").select(
        *_PAIR, "stream", *(name for name in SETTING_COLUMNS if name != "setting_key"),
        "n_max", "next_n", (pl.col("verdict") == "undecided").alias("undecided"),
        pl.col("row_id").alias("truth_id"),
    )  # fmt: skip
    predicted = predictions.select(
        *_PAIR, "predictor", "basis", "low", "high", "unbounded", "in_sample", "refusal",
        pl.col("n_max").alias("predicted"), pl.col("row_id").alias("prediction_id"),
    )  # fmt: skip
    joined = truth.join(predicted, on=_PAIR, how="inner", maintain_order="left_right")
    value = pl.when("unbounded").then(float("inf")).otherwise("predicted").fill_nan(None)
    judged = joined.with_columns(value.alias("predicted")).select(judgement())
    error = pl.col("log2_error")
    return joined.hstack(judged).with_columns(
        pl.when(error.is_finite()).then(error).alias("log2_error"),
        pl.concat_list("truth_id", "prediction_id").alias("from_ids"),
    )
