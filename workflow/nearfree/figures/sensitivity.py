"""N_max over tolerances as a heat map (paper, tables of app. F)."""

import altair as alt
import polars as pl

from nearfree.figures.theme import dressed
from nearfree.tables.settings import labels


def sensitivity_map(boundaries: pl.DataFrame) -> alt.FacetChart:
    """Return N_max by batch and tolerance, a panel a platform and origin.

    Parameters
    ----------
    boundaries
        Rows of that table, of one module, over one or more platforms.
    """
    cells = boundaries.filter("newest").with_columns(
        pl.format("{} ({})", "platform", "origin").alias("panel")
    )
    cells = (
        pl.concat(
            group.with_columns(labels(group, "batch").alias("setting"))
            for group in cells.partition_by("panel")
        )
        .select(
            "panel", "setting", "batch", "epsilon", "n_max", "n_low", "n_high", "verdict", "row_id"
        )
        .sort("panel", "batch", "setting", "epsilon")
    )
    top = float(cells["n_max"].max() or 1)  # type: ignore[arg-type]
    base = alt.Chart().encode(
        x=alt.X(
            "epsilon:O", title="tolerance", axis=alt.Axis(format=".0%", labelAngle=0, grid=False)
        ),
        y=alt.Y(
            "setting:O",
            title="batch b",
            sort=cells["setting"].unique(maintain_order=True).to_list(),
            axis=alt.Axis(grid=False),
        ),
    )
    layers = alt.layer(
        base.mark_rect().encode(
            color=alt.Color(
                "n_max:Q",
                title="N_max",
                scale=alt.Scale(type="log", base=2, scheme="viridis", domain=[1, max(top, 2.0)]),
            ),
            tooltip=[
                alt.Tooltip("batch:O", title="b"),
                alt.Tooltip("epsilon:O", title="tolerance"),
                alt.Tooltip("n_max:Q", title="N_max"),
                alt.Tooltip("n_low:Q", title="at least"),
                alt.Tooltip("n_high:Q", title="at most"),
                alt.Tooltip("verdict:N"),
                alt.Tooltip("row_id:N", title="row"),
            ],
        ),
        base.mark_text(fontSize=13).encode(
            text="n_max:Q",
            color=alt.condition(alt.datum.n_max > top**0.6, alt.value("black"), alt.value("white")),
        ),
        data=cells,
    ).properties(width=260, height=210)
    drawn = layers.facet(facet=alt.Facet("panel:N", title=None), columns=2).resolve_scale(
        x="independent", y="independent"
    )
    return dressed(
        drawn,
        "N_max by batch and tolerance, dense FFN",
        "The same curve read at several tolerances.",
    )
