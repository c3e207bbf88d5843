"""Table `predictions`: what each predictor says of each setting, or why it refuses."""

import polars as pl

from nearfree.tables.platforms import newest_balances
from nearfree.tables.schema import SETTING_COLUMNS, Table, amount, text
from nearfree.theory import dense
from nearfree.units import BYTES_PER_ELEMENT

PREDICTIONS = Table(
    name="predictions",
    row="one predictor's N_max for one setting, on one basis of hardware facts",
    key=("platform", "setting_key", "predictor", "basis"),
    body={
        "platform": text("the kind of machine"),
        **SETTING_COLUMNS,
        "predictor": text("which law", one_of=("idle_compute", "principle")),
        "basis": text("which facts: datasheet, or probed by one of two methods", nullable=True),
        "n_max": amount("the prediction, a real number", nullable=True),
        "balance_flop_per_byte": amount("rho that it used", nullable=True),
        "limiting_module": text("what stops it", nullable=True),
        "limiting_term": text("the term of the law that is smallest", nullable=True),
        "formula": text("the law, and where the paper states it", nullable=True),
        "refusal": text("which rule or fact is missing", nullable=True),
    },
)

_FORMULAS = {
    "idle_compute": "rho s / (2 b), paper sec. 3.2",
    "principle": "rho s / (2 b), paper sec. 4.1 for a Dense FFN alone",
}
_LAWS = {"idle_compute": dense.idle_compute, "principle": dense.principle}


def predict(settings: pl.DataFrame, platforms: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of `predictions` for every setting, with every basis of its platform.

    Parameters
    ----------
    settings
        Rows of the table `settings`.
    platforms
        Rows of the table `platforms`; of several probes the newest counts.
    """
    asked = settings.unique(["platform", "setting_key"], keep="first", maintain_order=True)
    facts = newest_balances(platforms).select(
        "platform", "dtype", "basis", "balance_flop_per_byte", pl.col("row_id").alias("fact_id")
    )
    joined = asked.join(facts, on=["platform", "dtype"], how="left", maintain_order="left_right")
    element_bytes = pl.col("dtype").replace_strict(
        BYTES_PER_ELEMENT, default=None, return_dtype=pl.Float64
    )
    answered = (pl.col("module") == "dense_ffn") & pl.col("balance_flop_per_byte").is_not_null()
    frames = [
        joined.with_columns(
            pl.lit(name).alias("predictor"),
            pl.when(answered)
            .then(law(pl.col("balance_flop_per_byte"), pl.col("batch"), element_bytes))
            .alias("n_max"),
            pl.when(answered).then(pl.lit("dense_ffn")).alias("limiting_module"),
            pl.when(answered).then(pl.lit("rho s / 2 b")).alias("limiting_term"),
            pl.when(answered).then(pl.lit(_FORMULAS[name])).alias("formula"),
            _refusal().alias("refusal"),
            pl.concat_list("row_id", "fact_id").list.drop_nulls().alias("from_ids"),
        )
        for name, law in _LAWS.items()
    ]
    return pl.concat(frames)


def _refusal() -> pl.Expr:
    return (
        pl.when(pl.col("module") != "dense_ffn")
        .then(pl.format("no law for the module {} yet", "module"))
        .when(pl.col("balance_flop_per_byte").is_null())
        .then(pl.format("no phi or beta of {} for {}", "platform", "dtype"))
    )
