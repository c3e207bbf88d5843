"""N_max over tolerances as a heat map (paper, tables of app. F)."""

import altair as alt
import polars as pl

from nearfree.core.modules.kind import ModuleKind
from nearfree.show.figures.boundaries import panel_of_platform
from nearfree.show.figures.panels import in_rows, readings, with_variants
from nearfree.show.figures.theme import dressed


def sensitivity_map(boundaries: pl.DataFrame, module: ModuleKind) -> alt.FacetChart:
    """Return N_max by own variable and tolerance, a panel a platform, origin and variant.

    Parameters
    ----------
    boundaries
        Rows of that table, of one module, over one or more platforms.
    """
    own = module.own
    cells = with_variants(readings(boundaries.filter("newest")), module)
    cells = (
        cells.with_columns(panel_of_platform())
        .select(
            pl.when("from_one")
            .then(pl.format("{}: from N = 1", "panel"))
            .otherwise("panel")
            .alias("panel"),
            pl.col(own).alias("own"),
            *("origin", "epsilon", "n_max", "n_low", "n_high", "verdict", "row_id"),
        )
        .sort("origin", "panel", "own", "epsilon")
    )
    top = float(cells["n_max"].max() or 1)  # type: ignore[arg-type]
    base = alt.Chart().encode(
        x=alt.X(
            "epsilon:O", title="tolerance", axis=alt.Axis(format=".0%", labelAngle=0, grid=False)
        ),
        y=alt.Y("own:O", title=f"{module.variable} {module.letter}", axis=alt.Axis(grid=False)),
    )
    layers = alt.layer(
        base.mark_rect().encode(
            color=alt.Color(
                "n_max:Q",
                title="N_max, positions",
                scale=alt.Scale(type="log", base=2, scheme="viridis", domain=[1, max(top, 2.0)]),
                legend=alt.Legend(values=[4**k for k in range(8) if 4**k <= top]),
            ),
            tooltip=[
                alt.Tooltip("own:O", title=module.letter),
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
    )
    return dressed(
        in_rows(layers, cells).resolve_scale(x="independent", y="independent"),
        f"N_max by {module.variable} and tolerance, {module.title}",
        "The same curve read at several tolerances.",
    )
