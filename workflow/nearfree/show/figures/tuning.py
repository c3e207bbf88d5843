"""Figures of tuning: T(N) of an engine's forwards, and tokens per second by K."""

from collections.abc import Iterator
from typing import Any

import altair as alt
import polars as pl

from nearfree.config.prompts import ALL
from nearfree.show.figures.listing import TUNED_ENGINES, Drawing, drawing
from nearfree.show.figures.panels import in_rows
from nearfree.show.figures.theme import (
    MEASURED,
    THEORY,
    lines_by,
    lines_of,
    of_kind,
    styled,
    tooltip,
)

PROOF = ("platform", "stream", "take", "plan8")
"""The columns that identify the proof of a row of `tuning`."""
_CURVE, _SPEED = "T(N), ms", "tokens/s"


def tuning_drawings(tuning: pl.DataFrame, latency: pl.DataFrame) -> Iterator[Drawing]:
    """Yield the figure of each newest proof over all its prompts, none without proofs.

    Parameters
    ----------
    tuning, latency
        These tables of one platform.
    """
    newest = tuning.filter("newest", kind=ALL)
    for proof in newest.select(PROOF).unique().sort(pl.all()).to_dicts():
        proof_rows = newest.filter(**proof)
        curve = curve_rows(proof_rows, latency)
        row = proof_rows.row(0, named=True)
        subject = f"{row['model']} in {row['engine']}{decoded(row)}"
        yield drawing(
            tokens_by_k,
            (proof_rows, curve),
            f"tuning_{proof['stream']}_{proof['take']}_{proof['plan8']}",
            f"{subject}: T(N), and tokens per second by K, predicted from it and measured.",
            proof_rows,
            curve,
            about=TUNED_ENGINES,
        )


def decoded(row: dict[str, Any]) -> str:
    """Return the batch size and the temperature of a row as text, each where it is set."""
    temperature, batch = row["temperature"], row["batch"]
    text = "" if batch is None else f", {batch} prompts at once"
    return text + ("" if temperature is None else f", sampled at temperature {temperature:g}")


def curve_rows(tuning: pl.DataFrame, latency: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of T(N) that predict the steps of a proof's chosen setting.

    If no drafts are chosen, they are those of the cache with which the engine drafts.
    """
    chosen = tuning.filter(role="choice").row(0, named=True)
    stream, _, rest = chosen["forwards"].partition("/")[2].partition("/")
    take, _, plan8 = rest.partition("-")
    rows = latency.filter(
        stream=stream,
        take=int(take),
        plan8=plan8,
        batch=chosen["batch"] or 1,
        threads=chosen["threads"],
        repack=chosen["repack"],
        model_digest=chosen["weights_sha256"][:12],
    )
    drafted = rows.drop_nulls("kv_dtype")
    return (rows if drafted.is_empty() else drafted).sort("n")


def tokens_by_k(tuning: pl.DataFrame, curve: pl.DataFrame) -> alt.FacetChart:
    """Return two panels over the rows 1 + K of a forward: T(N), and tokens per second.

    Parameters
    ----------
    tuning
        Rows of this table of one proof and kind of prompts.
    curve
        Rows of `latency`, as by `curve_rows`.
    """
    drafters = tuning.filter(pl.col("k") > 0)["drafter"]
    none_rows = tuning.filter(pl.col("role").is_in(("none", "choice")), k=0)  # it may be the choice
    none_tokens_s = none_rows.row(0, named=True)["predicted_tokens_s"]
    x = alt.X("n:Q", title="rows of a forward, N = 1 + K", scale=alt.Scale(type="log", base=2))
    y = alt.Y("value:Q", title=None, scale=alt.Scale(zero=True))
    channels = lines_by("drafter:N", "predicted", lines_of(drafters), drafters, columns=2)
    hover = tooltip(("drafter:N", "drafter"), ("k:Q", "K"), ("value:Q", "", ".2f"))
    curve_chart = of_kind("curve")
    predicted_chart, measured_chart = of_kind("predicted"), of_kind("measured")
    layers = alt.layer(
        curve_chart.mark_line(color=MEASURED, point=True).encode(x=x, y=y, tooltip=tooltip("n:Q")),
        of_kind("none").mark_rule(color=THEORY, strokeDash=[4, 3]).encode(y=y),
        predicted_chart.mark_line(strokeWidth=1.5, point=alt.OverlayMarkDef(size=12)).encode(
            x=x, y=y, tooltip=hover, **channels
        ),
        measured_chart.mark_rule(color="black", strokeWidth=1.5).encode(
            x=x, y=alt.Y("low:Q", title=None), y2="high:Q"
        ),
        measured_chart.mark_point(color="black", filled=True, size=40, opacity=1).encode(
            x=x, y=y, tooltip=hover
        ),
        data=pl.concat(
            [
                curve.select(
                    *("n", "row_id"),
                    (pl.col("latency_us") / 1000).alias("value"),
                    pl.lit(_CURVE).alias("panel"),
                    pl.lit("curve").alias("kind"),
                ),
                _speeds(tuning.filter(pl.col("k") > 0), "predicted_tokens_s", "predicted"),
                _speeds(tuning.drop_nulls("tokens_s"), "tokens_s", "measured"),
                pl.DataFrame({"panel": [_SPEED], "value": [none_tokens_s], "kind": ["none"]}),
            ],
            how="diagonal_relaxed",
        ),
    )
    first = tuning.row(0, named=True)
    panels = pl.DataFrame({"panel": [_CURVE, _SPEED]})
    chart = in_rows(layers, panels, columns=1)
    chart.resolve = alt.Resolve(
        scale=alt.ScaleResolveMap(y="independent"), axis=alt.AxisResolveMap(x="independent")
    )
    return styled(
        chart,
        f"Tokens/s by K, {first['engine']} on {first['platform']}, {first['origin']}",
        [
            f"{first['model']}.",
            "Lines: predicted from T(N) and one trace,",
            f"on held-out prompts{decoded(first)}; grey, dashed: without drafts.",
            f"Black: measured, in {first['seconds']} time, with 95 % intervals.",
        ],
    )


def _speeds(rows: pl.DataFrame, value: str, kind: str) -> pl.DataFrame:
    return rows.sort("drafter", "k").select(
        *("drafter", "k", "row_id"),
        (pl.col("k") + 1).alias("n"),
        pl.col(value).alias("value"),
        pl.col("tokens_s_low").alias("low"),
        pl.col("tokens_s_high").alias("high"),
        pl.lit(_SPEED).alias("panel"),
        pl.lit(kind).alias("kind"),
    )
