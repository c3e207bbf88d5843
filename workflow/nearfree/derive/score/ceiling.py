"""The noise ceiling: how well another version's measured curve predicts a curve.

No predictor can be expected to do better than a measurement of the same work by the same kernels.
"""

import polars as pl
from packaging.version import InvalidVersion, Version

from nearfree.derive.tables.schema import SETTING_COLUMNS
from nearfree.derive.truth.truth import Truth

TWIN = "twin_version"
"""The name of the prediction that another version's curve makes."""
_SHAPE = (
    "platform",
    "distribution",
    *(name for name in SETTING_COLUMNS if name not in ("setting_key", "backend")),
)


def twins(known: Truth) -> pl.DataFrame:
    """Return a curve's twin, a row for each curve that has one: curve, twin.

    A twin is of the same platform, module, dtype and shape, and was measured with another version:
    the one before, else the one after. Its backend and kernel are the same, except for `gemm`,
    where any engine's product is as good. A curve without a version has no twin.
    """
    regime = pl.when(pl.col("module") != "gemm").then(
        pl.concat_str("backend", "kernel", separator=" ", ignore_nulls=True)
    )
    alike = [*_SHAPE, "regime"]
    release = [*alike, "backend", "backend_version"]
    versioned = known.settings.filter(pl.col("backend_version").is_not_null()).with_columns(
        regime.alias("regime"),
        pl.col("backend_version").replace_strict(_order(known), return_dtype=pl.Int64)
        .alias("order"),
    )  # fmt: skip
    first = versioned.unique(release, keep="first", maintain_order=True).sort(
        "backend", "order", maintain_order=True
    )
    other = pl.coalesce(
        pl.col("curve").shift(1).over(alike), pl.col("curve").shift(-1).over(alike)
    ).alias("twin")
    return (
        versioned.select("curve", *release)
        .join(
            first.select(*release, other),
            on=release,
            how="inner",
            nulls_equal=True,
            maintain_order="left",
        )
        .filter(pl.col("twin").is_not_null())
        .select("curve", "twin")
    )


def _order(known: Truth) -> dict[str, int]:
    """Return the place of each version among all; what is no version comes first, as text."""
    names = known.settings["backend_version"].drop_nulls().unique().to_list()
    return {name: place for place, name in enumerate(sorted(names, key=_version))}


def _version(name: str) -> tuple[bool, Version, str]:
    try:
        return True, Version(name), name
    except InvalidVersion:
        return False, Version("0"), name


def twin_answers(known: Truth, pairs: pl.DataFrame) -> pl.DataFrame:
    """Return the twins' N_max as predictions; they claim no interval and rest on no constants."""
    said = known.boundaries.select(
        pl.col("curve").alias("twin"), "epsilon", pl.col("n_max").cast(pl.Float64)
    )
    none = [pl.lit(None, pl.Float64).alias(name) for name in ("low", "high")]
    return pairs.join(said, on="twin", how="inner", maintain_order="left").select(
        pl.col("curve").alias("asked"),
        pl.lit(TWIN).alias("predictor"),
        "epsilon",
        "n_max",
        *none,
        pl.lit(None, pl.String).alias("constants"),
        pl.lit(value=False).alias("in_sample"),
    )


def twin_ratios(known: Truth, pairs: pl.DataFrame) -> pl.DataFrame:
    """Return the twins' T(N) / T(baseline), of twins with the same baseline alone."""
    based = known.settings.select("curve", "baseline")
    same = pairs.join(based, on="curve", maintain_order="left").join(
        based.rename({"curve": "twin"}), on=["twin", "baseline"], how="inner", maintain_order="left"
    )
    return same.join(
        known.ratios.rename({"curve": "twin"}), on="twin", how="inner", maintain_order="left"
    ).select(pl.lit(TWIN).alias("predictor"), pl.col("curve").alias("asked"), "n", "ratio")
