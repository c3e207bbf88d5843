"""Table `published_lookup`: the paper's deployment table, recomputed and compared with its print.

Source: paper, tab:practical_lookup (app. on implications). The models' numbers are formulas of
rho, s, b, E, k, d_ff; M_attn is given, M_moe is that of the fallback rules, and tau = E.
"""

from typing import Any, NamedTuple

import polars as pl

from nearfree.core.modules.moe_ffn import printed_granularity
from nearfree.core.setting import Setting
from nearfree.derive.granularity.facts import sheet_facts, with_facts
from nearfree.derive.granularity.resolve import Resolver
from nearfree.derive.laws.laws import ask_distinct, facts_refusal
from nearfree.derive.laws.model_law import idle_compute, principle
from nearfree.derive.outlook.lookup_sources import lookup_sources
from nearfree.derive.tables.columns import amount, count, flag, text
from nearfree.derive.tables.schema import Table
from nearfree.errors import EvidenceError
from nearfree.hardware.platforms import Platform
from nearfree.log.events import BoundaryPublished
from nearfree.log.evidence import Take
from nearfree.log.names import Layout
from nearfree.public.published import newest_take

PRACTICAL = "tab:practical_lookup"
PUBLISHED_LOOKUP = Table(
    name="published_lookup",
    row="one row of the paper's deployment table",
    key=("row",),
    formula="min(rho s / (2 b), M_attn), min(M_moe E / (b k), tau / b, M_attn) or min(M_moe / b, "
    "M_attn), with M_attn and d_ff as given",
    paper="sec. 4 and 6",
    code="nearfree.derive.outlook.lookup",
    body={
        "row": count("place in the paper's table"),
        "model_type": text("dense or moe", one_of=("dense", "moe")),
        "platform": text("the platform of rho"),
        "batch": count("b"),
        "experts": count("E", nullable=True),
        "top_k": count("k; none where the row speaks of any k", nullable=True),
        "routing": text("balanced or skewed", nullable=True),
        "d_ff": count("width of an expert, elements", nullable=True),
        "m_attn": count("M_attn, as given"),
        "m_moe": count("M_moe of the fallback rules, tokens", nullable=True),
        "balance_flop_per_byte": amount("rho", nullable=True),
        "idle_compute": amount("N_idle of the FFN; of any k the smallest; none: unbounded",
                               nullable=True),
        "idle_compute_high": amount("of any k the largest N_idle", nullable=True),
        "steady_from_k": count("of any k: the k from which N_idle rounds to the same number",
                               nullable=True),
        "principle": amount("the smallest term", nullable=True),
        "limiting_term": text("that term", nullable=True),
        "tie": text("all terms that are the smallest, where there are several", nullable=True),
        "over_prediction": amount("N_idle / principle to two digits, where it is not 1",
                                  nullable=True),
        "printed_idle_compute": amount("as the paper prints it"),
        "printed_principle": amount("as the paper prints it"),
        "equal": flag("whether both round to the printed values"),
        "resolved": amount("the same law with releases' granularities at real shapes",
                           nullable=True),
        "resolved_term": text("its smallest term", nullable=True),
        "resolved_m_moe": count("M_moe of the release, tokens", nullable=True),
        "resolved_tau": count("the last number of tokens with that block", nullable=True),
        "resolved_m_attn": count("the last N with the tiles of N = 1", nullable=True),
        "resolved_one_tile": amount("the same with the last N of one tile a head as M_attn",
                                    nullable=True),
        "one_tile_until": count("the last N of one tile a head", nullable=True),
        "rule": text("where the rule of the smallest term stands", nullable=True),
        "difference": text("differences of releases' granularities from the paper's inputs, and "
                           "their rules", nullable=True),
        "refusal": text("the missing fact or rule", nullable=True),
    },
)  # fmt: skip
_PRINTED_COLUMNS = ("row", "model_type", "platform", "batch", "experts", "top_k", "routing", "d_ff",
          "m_attn", "printed_idle_compute", "printed_principle")  # fmt: skip
_OVER_PREDICTION_DIGITS = 2
"""Significant digits with which the paper prints the over-prediction."""
_idle = pl.col("idle")


def printed_rows(take: Take) -> pl.DataFrame:
    """Return the settings and values of the paper's table, one row each.

    Raises
    ------
    EvidenceError
        The take holds no such values.
    """
    rows_by_number: dict[int, dict[str, object]] = {}
    for event in take.events_of(BoundaryPublished):
        if event.data.table == PRACTICAL:
            row = rows_by_number.setdefault(int(event.data.row), _row(event.data))
            row[f"printed_{event.data.quantity}"] = event.data.n_max
            row["event_ids"] = [*row.get("event_ids", ()), event.event_id]  # type: ignore[misc]
    if not rows_by_number:
        raise EvidenceError(
            f"{take.name} holds no values of {PRACTICAL}",
            remedy="Run `nearfree import published`",
        )
    types = {name: PUBLISHED_LOOKUP.body[name].dtype for name in _PRINTED_COLUMNS}
    schema = {**types, "dtype": pl.String, "event_ids": pl.List(pl.String)}
    return pl.DataFrame([rows_by_number[row] for row in sorted(rows_by_number)], schema=schema)


def _row(data: BoundaryPublished) -> dict[str, object]:
    setting = data.setting
    return {
        "row": int(data.row),
        "model_type": "dense" if setting.experts is None else "moe",
        "platform": data.platform,
        "m_attn": data.m_attn,
        **{name: getattr(setting, name)
           for name in ("batch", "experts", "top_k", "routing", "d_ff", "dtype")},
    }  # fmt: skip


class PublishedAnswers(NamedTuple):
    """The rows of `published_lookup`, and the ids of the events of the printed values."""

    rows: pl.DataFrame
    known: list[str]


def published_answers(
    layout: Layout, sheets: dict[str, Platform], platforms: pl.DataFrame
) -> PublishedAnswers:
    """Return the paper's deployment table, recomputed from its newest import.

    Parameters
    ----------
    platforms
        Rows of the table `platforms`; empty where rows need no `from_ids` of them.
    """
    take = newest_take(layout)
    rows = published_lookup(printed_rows(take), sheet_facts(sheets, platforms), Resolver(layout))
    return PublishedAnswers(rows, [event.event_id for event in take.events])


def published_lookup(
    printed: pl.DataFrame, facts: pl.DataFrame, resolver: Resolver
) -> pl.DataFrame:
    """Return the rows of `published_lookup`, with `from_ids`.

    Parameters
    ----------
    printed
        Rows of `printed_rows`: setting, d_ff, M_attn, and the printed values, which are compared
        but not used.
    facts
        Facts of datasheets with the ids of their rows, from `sheet_facts`.
    """
    paper = with_facts(printed, facts).with_columns(
        ask_distinct(
            printed.select("dtype", "experts"), _fallback_m_moe, {"m_moe": pl.Int64}
        ).to_series(),
        (pl.col("experts").is_not_null() & pl.col("top_k").is_null()).alias("any_k"),
    )
    return (
        paper.join(
            _terms_by_row(_one_row_per_k(paper)), on="row", how="left", maintain_order="left"
        )
        .join(lookup_sources(paper, resolver), on="row", how="left", maintain_order="left")
        .with_columns(
            _equal().alias("equal"),
            pl.coalesce(facts_refusal(), "unresolved").alias("refusal"),
            pl.concat_list("event_ids", "fact_id").list.drop_nulls().alias("from_ids"),
        )
        .select(*PUBLISHED_LOOKUP.body, "from_ids")
    )


def _fallback_m_moe(row: dict[str, Any]) -> dict[str, float]:
    """Return M_moe of the fallback rules, as the paper prints it for the rows' engine."""
    if row["experts"] is None:
        return {}
    layer = Setting(module="moe_ffn", backend="sglang", dtype=row["dtype"])
    return {"m_moe": printed_granularity(layer).rows}


def _one_row_per_k(paper: pl.DataFrame) -> pl.DataFrame:
    """Return each row with its k; a row of any k is repeated for each k from 1 to E."""
    all_k = pl.int_ranges(1, pl.col("experts") + 1)
    own_k = pl.concat_list("top_k")
    return paper.with_columns(pl.when("any_k").then(all_k).otherwise(own_k).alias("top_k")).explode(
        "top_k"
    )


def _terms_by_row(rows: pl.DataFrame) -> pl.DataFrame:
    """Return idle compute and the principle of each row, over all its k."""
    tau = pl.when(pl.col("routing") == "balanced").then("experts")
    with_idle = rows.with_columns(idle_compute(rows))
    computed = principle(with_idle.with_columns(tau.alias("tau")))
    last_unsteady_k = pl.col("top_k").filter(_idle.round() != _idle.last().round()).max()
    terms = (pl.col(name).sort_by("n_max").first() for name in ("limiting_term", "tie"))
    return (
        computed.group_by("row", maintain_order=True)
        .agg(
            _idle.min().alias("idle_compute"),
            _idle.max().alias("idle_compute_high"),
            (last_unsteady_k.fill_null(0) + 1).alias("steady"),
            pl.col("n_max").min().alias("principle"),
            pl.col("any_k").first(),
            *terms,
        )
        .with_columns(
            pl.when("any_k").then("steady").alias("steady_from_k"),
            *(
                pl.when(pl.col(name).is_finite()).then(name).alias(name)
                for name in ("idle_compute", "idle_compute_high")
            ),
            _over_prediction().alias("over_prediction"),
        )
        .drop("steady", "any_k")
    )


def _over_prediction() -> pl.Expr:
    ratio = pl.col("idle_compute") / pl.col("principle")
    return pl.when(ratio.is_finite() & (ratio > 1)).then(
        ratio.round_sig_figs(_OVER_PREDICTION_DIGITS)
    )


def _equal() -> pl.Expr:
    """Return whether the computed values round to the printed ones."""
    matches = (
        (pl.col(name).round() == pl.col(f"printed_{name}")).fill_null(value=False)
        for name in ("idle_compute", "principle")
    )
    return pl.all_horizontal(matches)
