"""The figure of the table `version_drift`: N_max over the versions of a backend."""

from collections.abc import Iterator
from typing import Any

import altair as alt
import polars as pl

from nearfree.core.label import label
from nearfree.show.figures.listing import OUTLOOK, Drawing, drawing
from nearfree.show.figures.panels import in_rows, panel
from nearfree.show.figures.theme import PALETTE, SPACED, keyed, styled, tooltip

LAWS = {"n_max_resolved": "principle_resolved", "n_max_work": "work_model"}
"""What is drawn, by column."""
_APART = 0.07
"""How far, in octaves, platforms are moved apart upwards."""
_KEY = ("model", "package", "setting_key")


def drift_drawings(drift: pl.DataFrame) -> Iterator[Drawing]:
    """Yield the figure of `version_drift`; nothing where no package has two versions.

    Parameters
    ----------
    drift
        Rows of that table.
    """
    answers = _answers(drift)
    if not answers.is_empty():
        caption = "N_max of layers and calls over the recorded versions of each backend."
        once = answers.unique("row_id", maintain_order=True)
        yield drawing(nmax_over_versions, (drift,), "version_drift", caption, once, about=OUTLOOK)


def nmax_over_versions(drift: pl.DataFrame) -> alt.FacetChart:
    """Return N_max over versions, a panel a setting and package, a line a platform and predictor.

    Parameters
    ----------
    drift
        Rows of `version_drift`; a package with one version is not drawn.
    """
    answers = _answers(drift)
    platforms = sorted(answers["platform"].unique())
    moved = pl.col("platform").replace_strict(
        {name: 2.0 ** (_APART * place) for place, name in enumerate(platforms)},
        return_dtype=pl.Float64,
    )
    data = answers.with_columns((pl.col("n_max") * moved).alias("y"), pl.lit("line").alias("kind"))
    order = data.select("package", "place", "version").unique().sort("package", "place")
    versions = order["version"].unique(maintain_order=True).to_list()
    lines = alt.Chart().encode(
        x=alt.X("version:N", title=None, sort=versions, axis=alt.Axis(labelAngle=-40)),
        y=alt.Y(
            "y:Q",
            title="N_max, positions",
            scale=alt.Scale(type="log", base=2),
            axis=alt.Axis(values=[2**k for k in range(13)], format="~g"),
        ),
        color=keyed(
            alt.Color, "platform:N", dict(zip(platforms, PALETTE, strict=False)), title=None
        ),
        tooltip=tooltip(
            "platform:N",
            "predictor:N",
            "n_max:Q",
            ("change:N", "change from the version before"),
            "rule:N",
        ),
    )
    layers = alt.layer(
        lines.mark_line(opacity=0.8).encode(
            strokeDash=keyed(
                alt.StrokeDash,
                "predictor:N",
                dict(zip(LAWS.values(), ([1, 0], [5, 3]), strict=True)),
                title=None,
                symbolType="stroke",
                labelExpr=SPACED,
            )
        ),
        lines.mark_point(size=32, filled=True, opacity=0.9),
        data=data.drop("setting_key", "model", "package", "place"),
    )
    return styled(
        in_rows(layers, data).resolve_scale(x="independent"),
        "N_max over the versions of a backend",
        f"Solid: principle resolved. Dashed: work model, tolerance {drift['epsilon'][0]:.0%}, up "
        f"to N = {drift['grid_end'][0]}. Platforms are moved apart upwards; what is refused or "
        "unbounded has no mark, a package with one version no panel.",
    )


def _answers(drift: pl.DataFrame) -> pl.DataFrame:
    """Return a row a predictor that has a value, of packages with two versions at least."""
    several = drift.filter(pl.col("version").n_unique().over(*_KEY) > 1)
    return (
        several.with_columns(_settings(several))
        .with_columns(panel("setting", "package"))
        .rename(LAWS)
        .unpivot(
            list(LAWS.values()),
            index=[*_KEY, "panel", "platform", "version", "place", "rule", "change", "row_id"],
            variable_name="predictor",
            value_name="n_max",
        )
        .drop_nulls("n_max")
        .sort("panel", "platform", "predictor", "place")
    )


def _settings(rows: pl.DataFrame) -> pl.Series:
    """Return the setting of each row, in short."""
    texts = [_setting(row) for row in rows.to_dicts()]
    return pl.Series("setting", texts, dtype=pl.String)


def _setting(row: dict[str, Any]) -> str:
    if row["experts"] is None:
        return f"{row['model']}, {row['heads']} / {row['kv_heads']} heads"
    return label(row, ("model", "experts", "top_k", "routing"))
