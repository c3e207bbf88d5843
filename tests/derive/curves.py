"""Synthetic curves, and a predictor that answers from a law alone."""

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl
from conftest import make_setting
from nearfree.config.files import Config
from nearfree.core.precision import ELEMENT_BYTES
from nearfree.derive.tables.settings import setting_row
from nearfree.derive.truth.datasets import SETTINGS
from nearfree.derive.truth.truth import Truth, truth

from derive.tables.logs import CONFIG

SHEETS = Config(CONFIG).platforms
CURVE_COLUMNS = {
    name: dtype for name, dtype in SETTINGS.items() if name not in ("baseline", "grid")
}
POINTS = {"curve": pl.Int64, "n": pl.Int64, "latency_us": pl.Float64, "context": pl.Int64}
Curve = tuple[dict[str, Any], Mapping[int, float]]


def make_curves(*curves: Curve) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return settings and points of curves: changes to the default setting, and T by N."""
    settings, points = [], []
    for number, (changes, times) in enumerate(curves):
        own = {"platform": "h20", "backend_version": None, "kernel": None, "distribution": None}
        fields = {"dtype": "bfloat16"} | {k: v for k, v in changes.items() if k not in own}
        row = setting_row(make_setting(**fields)) | own | changes
        settings.append(row | {"curve": number, "event_id": f"e#{number}"})
        points += [
            {"curve": number, "n": n, "latency_us": us, "context": None} for n, us in times.items()
        ]
    return pl.DataFrame(settings, schema=CURVE_COLUMNS), pl.DataFrame(points, schema=POINTS)


def make_truth(*curves: Curve, epsilons: Sequence[float] = (0.2,)) -> Truth:
    """Return the truth of some curves."""
    return truth(*make_curves(*curves), epsilons)


def make_answers(*rows: dict[str, Any]) -> pl.DataFrame:
    """Return answers, each given by its differences from a refusal of the first question."""
    usual = {
        "asked": 0, "predictor": "principle", "epsilon": 0.2, "n_max": None, "low": None,
        "high": None, "constants": None, "in_sample": False,
    }  # fmt: skip
    schema = dict.fromkeys(("n_max", "low", "high"), pl.Float64) | {"constants": pl.String}
    return pl.DataFrame([usual | row for row in rows], schema_overrides=schema)


class IdleCompute:
    """The law rho s / (2 b) of dense modules for every predictor's name, its roofline as T(N).

    A platform without rho has 16 FLOP per byte.
    """

    def answers(
        self, question_rows: pl.DataFrame, epsilons: Sequence[float], predictors: Sequence[str]
    ) -> pl.DataFrame:
        """Return the law's answer where it has one, and a refusal elsewhere."""
        return (
            question_rows.select("asked", self._law(question_rows))
            .join(pl.DataFrame({"predictor": predictors}), how="cross")
            .join(pl.DataFrame({"epsilon": epsilons}), how="cross")
            .with_columns(
                (pl.col("n_max") / 2).alias("low"),
                (pl.col("n_max") * 2).alias("high"),
                pl.when(pl.col("predictor") == "work_model").then(pl.lit("none fitted"))
                .alias("constants"),
                pl.lit(value=False).alias("in_sample"),
            )
        )  # fmt: skip

    def ratios(self, question_rows: pl.DataFrame) -> pl.DataFrame:
        """Return max(1, N / N_idle) over each grid."""
        rising = pl.max_horizontal(pl.lit(1.0), pl.col("n") / pl.col("n_max"))
        return (
            question_rows.select("asked", self._law(question_rows), pl.col("grid").alias("n"))
            .drop_nulls("n_max")
            .explode("n")
            .select("asked", "n", rising.alias("ratio"))
        )

    def _law(self, question_rows: pl.DataFrame) -> pl.Series:
        balances = [
            (SHEETS[row["platform"]].balance(row["dtype"]) or 16.0)
            * ELEMENT_BYTES[row["dtype"]] / (2 * row["batch"])
            if row["module"] in ("gemm", "dense_ffn") else None
            for row in question_rows.to_dicts()
        ]  # fmt: skip
        return pl.Series("n_max", balances, dtype=pl.Float64)
