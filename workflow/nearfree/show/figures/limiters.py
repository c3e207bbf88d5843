"""The limiting module of a model: the one whose time grew most, and each predictor's."""

import altair as alt
import polars as pl

from nearfree.core.label import NESTED, label
from nearfree.show.figures.panels import in_rows, panel
from nearfree.show.figures.theme import ROLES, SPACED, rank, roles, styled, tooltip

_MEASURED = "measured"


def limiter_map(named: pl.DataFrame, epsilon: float) -> alt.FacetChart:
    """Return the limiting module of each setting by who names it, a panel a model.

    Parameters
    ----------
    named
        What `limiters` returns; at least a row.
    epsilon
        The tolerance that it is of.
    """
    names = named.sort("place")["who"].unique(maintain_order=True).to_list()
    modules = [name for name in ROLES if name in named["limiter"].to_list()]
    settings = named.sort(*NESTED)["setting"].unique(maintain_order=True).to_list()
    layers = alt.layer(
        alt.Chart()
        .mark_rect(stroke="white", strokeWidth=3)
        .encode(
            x=alt.X(
                "who:N",
                title=None,
                sort=names,
                axis=alt.Axis(labelAngle=-35, labelLimit=200, grid=False, labelExpr=SPACED),
            ),
            y=alt.Y(
                "setting:N", title=None, sort=settings, axis=alt.Axis(labelLimit=260, grid=False)
            ),
            color=roles("limiter:N", modules),
            tooltip=tooltip("setting:N", ("who:N", "by"), ("limiter:N", "module")),
        ),
        data=named,
    )
    return styled(
        in_rows(layers, named, columns=2).resolve_scale(y="independent"),
        f"What stops whole models on {named['platform'][0]}, tolerance {epsilon:.0%}",
        "Measured: the module whose time grows most, inside the forward, from the baseline to the "
        "N after N_max. Beside it what each predictor names; nothing where it refuses.",
    )


def limiters(composition: pl.DataFrame) -> pl.DataFrame:
    """Return a row a setting and who names a limiter: panel, setting, who, place, limiter, row_id.

    A panel is a model's, or a study's where several are of one model. Settings are sorted by
    context; a predictor that has several bases of facts is named with each.

    Parameters
    ----------
    composition
        Rows of that table of one platform at one tolerance.
    """
    several = pl.col("basis").n_unique().over("predictor") > 1
    facts = pl.col("basis").fill_null("no facts").str.replace_all("_", " ")
    predicted = composition.select(
        *_SETTING,
        pl.when(several)
        .then(pl.format("{}, {}", "predictor", facts))
        .otherwise("predictor")
        .alias("who"),
        (rank() + 1).alias("place"),
        *("limiter", "row_id"),
    )
    measured = composition.unique(["stream", "setting_key"], keep="first", maintain_order=True)
    grew = measured.select(
        *_SETTING,
        pl.lit(_MEASURED).alias("who"),
        pl.lit(0, dtype=pl.Int64).alias("place"),
        pl.col("measured_limiter").alias("limiter"),
        "row_id",
    )
    several = pl.col("stream").n_unique().over("model") > 1
    named = pl.concat([grew, predicted]).drop_nulls("limiter")
    texts = [label(row, NESTED) for row in named.select(NESTED).to_dicts()]
    return named.with_columns(
        pl.Series("setting", texts, dtype=pl.String),
        panel("model", pl.when(several).then("stream")),
    ).sort("model", "stream", *NESTED, "setting_key", "place", "who")


_SETTING = ("platform", "model", "stream", "setting_key", *NESTED)
