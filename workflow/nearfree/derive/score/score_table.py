"""Table `scores`: how often each predictor was right, counted over the rows that were judged."""

import polars as pl

from nearfree.derive.tables.schema import ORIGINS, Table, amount, count, flag, number, text

SCORES = Table(
    name="scores",
    row="one predictor's record on one module of a platform at one tolerance",
    key=("platform", "origin", "module", "predictor", "basis", "epsilon"),
    body={
        "platform": text("the kind of machine"),
        "origin": text("where the boundaries come from", one_of=ORIGINS),
        "module": text("gemm, dense_ffn, moe_ffn, attention or model"),
        "predictor": text("which predictor"),
        "basis": text("which hardware facts", nullable=True),
        "epsilon": amount("tolerance"),
        "settings": count("boundaries that it was held against"),
        "answered": count("of them, those that it answered", at_least=0),
        "missed": count("of them, those that it refused or that are undecided", at_least=0),
        "hits": count("predictions between N_max and the next N of the grid", at_least=0),
        "hit_share": number("hits of all settings"),
        "within_1_31": number("share of all settings within a factor of 1.31"),
        "within_2": number("share of all settings within a factor of two"),
        "covered": number("share of stated intervals that meet the true one", nullable=True),
        "width": number("median high / low of stated intervals", nullable=True),
        "in_sample": flag("whether any constant was calibrated on this platform"),
        "refusals": count("different reasons for a refusal", at_least=0),
        "refusal": text("the first of them", nullable=True),
        "within": count("of models: predictions inside the measured interval", nullable=True,
                        at_least=0),
        "limiters": count("of models: settings whose limiter is known on both sides",
                          nullable=True, at_least=0),
        "same_limiter": count("of those, where both name the same module", nullable=True,
                              at_least=0),
        "foretold": count("of models: predictions on record before the first sample",
                          nullable=True, at_least=0),
    },
)  # fmt: skip
_KEYS = ["platform", "origin", "module", "predictor", "basis", "epsilon"]


def score_rows(validation: pl.DataFrame, composition: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of `scores`.

    Parameters
    ----------
    validation, composition
        Those tables of a scope; the second says of models what the first does not.
    """
    reasons = pl.col("refusal").drop_nulls()
    counted = validation.group_by(_KEYS, maintain_order=True).agg(
        pl.len().alias("settings"),
        pl.col("answered").sum(),
        (~pl.col("answered") | pl.col("undecided")).sum().alias("missed"),
        pl.col("hit").sum().alias("hits"),
        pl.col("hit").mean().alias("hit_share"),
        pl.col("within_1_31", "within_2", "covered").mean(),
        pl.col("width").median(),
        pl.col("in_sample").any(),
        reasons.n_unique().alias("refusals"),
        reasons.min().alias("refusal"),
        pl.col("row_id").sort().alias("from_ids"),
    )
    of_models = composition.group_by(_KEYS[:2] + _KEYS[3:], maintain_order=True).agg(
        pl.col("within").sum(),
        pl.col("same_limiter").count().alias("limiters"),
        pl.col("same_limiter").sum(),
        pl.col("foretold").sum(),
        pl.col("row_id").sort().alias("judged"),
    )
    pair = [name for name in _KEYS if name != "module"]
    models, rest = counted.filter(module="model"), counted.filter(pl.col("module") != "model")
    joined = models.join(of_models, on=pair, how="left", nulls_equal=True).with_columns(
        pl.concat_list("from_ids", pl.col("judged").fill_null([])).alias("from_ids")
    )
    rows = pl.concat([rest, joined.drop("judged")], how="diagonal")
    whole = {name: pl.Int64 for name, c in SCORES.body.items() if c.dtype == pl.Int64()}
    return rows.select(*SCORES.body, "from_ids").cast(whole)  # type: ignore[arg-type]
