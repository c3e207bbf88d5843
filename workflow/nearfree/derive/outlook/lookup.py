"""Table `published_lookup`: the paper's deployment table, recomputed and compared with its print.

Source: paper, tab:practical_lookup (app. on implications). The models' numbers are formulas of
rho, s, b, E, k, d_ff; M_attn is given, M_moe is that of the fallback rules, and tau = E.
"""

from typing import Any

import numpy as np
import polars as pl
from msgspec.structs import replace

from nearfree.backends.moe_kernels import ALIGNED
from nearfree.backends.records import page_size
from nearfree.core.modules import model
from nearfree.core.modules.attention import M_ATTN, AttentionQuestion
from nearfree.core.modules.dense_ffn import IDLE
from nearfree.core.modules.kind import smallest_term
from nearfree.core.modules.moe_ffn import MoeQuestion, printed_granularity
from nearfree.core.modules.routing import routing_baseline
from nearfree.core.setting import Setting
from nearfree.derive.granularity.facts import sheet_facts, with_facts
from nearfree.derive.granularity.resolve import Resolver
from nearfree.derive.granularity.steps import MOST_TOKENS, Steps
from nearfree.derive.laws.laws import facts_refusal
from nearfree.derive.tables.columns import amount, count, finite, flag, text
from nearfree.derive.tables.schema import Table
from nearfree.errors import EvidenceError, NearfreeError
from nearfree.hardware.platforms import Platform
from nearfree.log.events import BoundaryPublished
from nearfree.log.evidence import Take
from nearfree.log.names import Layout
from nearfree.public.published import newest_take
from nearfree.sources.attention import Tile

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
_BALANCE = "balance_flop_per_byte"
Row = dict[str, Any]
QWEN3_8B = AttentionQuestion(
    backend="flash_attn", backend_version="2.8.3", dtype="bfloat16", batch=1, context=4096,
    heads=32, kv_heads=8, head_dim=128, api=None, page_size=page_size("flash_attn"),
    cuda_graph=False, most=1, sm=None, sm_count=None,
)  # fmt: skip
"""Attention of the dense rows (paper, sec. 5: Qwen3-8B with FlashAttention, in an engine with a
paged cache); a row gives element type, batch and device."""
LING_MINI = replace(
    QWEN3_8B, backend="flashinfer_fa2", backend_version="0.6.13", heads=16, kv_heads=4,
    page_size=page_size("flashinfer_fa2"),
)  # fmt: skip
"""Attention of the MoE rows (paper, sec. 5: Ling-2.0-mini with FlashInfer, as SGLang calls it)."""
LING_MINI_EXPERTS = MoeQuestion(
    backend="sglang", backend_version="0.5.9", kernel=None, dtype="bfloat16", d_model=2048,
    d_ff=512, experts=256, top_k=8, block_size_m=None, sm=None, device_name=None,
)  # fmt: skip
"""Experts of the MoE rows (paper, sec. 5: Ling-2.0-mini with SGLang); `top_k` is the model's own,
for rows of any k, and a row gives the other sizes."""


def printed_rows(take: Take) -> pl.DataFrame:
    """Return the settings and values of the paper's table, one row each.

    Raises EvidenceError if the take holds no such values.
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


def published_answers(
    layout: Layout, sheets: dict[str, Platform], platforms: pl.DataFrame
) -> tuple[pl.DataFrame, list[str]]:
    """Return the paper's deployment table, recomputed from its newest import, and its event ids.

    `platforms` are rows of the table of that name; none where rows need no `from_ids` of them.
    """
    take = newest_take(layout)
    rows = published_lookup(printed_rows(take), sheet_facts(sheets, platforms), Resolver(layout))
    return rows, [event.event_id for event in take.events]


def published_lookup(
    printed: pl.DataFrame, facts: pl.DataFrame, resolver: Resolver
) -> pl.DataFrame:
    """Return the rows of `published_lookup`, with `from_ids`.

    `printed` are rows of `printed_rows`, whose printed values are compared but not used; `facts`
    are those of `sheet_facts`.
    """
    paper = with_facts(printed, facts).with_columns(facts_refusal().alias("refusal"))
    rows = (row | _computed(row) for row in paper.iter_rows(named=True))
    return PUBLISHED_LOOKUP.frame(row | _sourced(row, resolver) for row in rows)


def _computed(row: Row) -> Row:
    """Return idle compute and the principle by the paper's inputs; of any k, over k from 1 to E."""
    experts, balance, m_moe = row["experts"], row[_BALANCE], None
    if experts is not None:  # M_moe of the fallback rules, as printed for the rows' engine
        engine = Setting(module="moe_ffn", backend="sglang", dtype=row["dtype"])
        m_moe = int(printed_granularity(engine).rows)
    any_k = experts is not None and row["top_k"] is None
    every_k = range(1, experts + 1) if any_k else (row["top_k"],)
    settings = [_ffn(row, k) for k in every_k]
    idle = [] if balance is None else [model.idle_compute(ffn, balance) for ffn in settings]
    tau = experts if row["routing"] == "balanced" else None
    principle = min(
        (
            smallest_term(model.principle_terms(ffn, balance, m_moe, tau, row["m_attn"]))
            for ffn in settings
        ),
        key=lambda term: term.value,
    )
    unsteady = (k for k, n in zip(every_k, idle, strict=False) if np.rint(n) != np.rint(idle[-1]))
    lowest, highest = (finite(pick(idle, default=None)) for pick in (min, max))
    ratio = 0.0 if lowest is None else lowest / principle.value
    return {
        "m_moe": m_moe,
        "idle_compute": lowest,
        "idle_compute_high": highest,
        "steady_from_k": max(unsteady, default=0) + 1 if any_k else None,
        "principle": principle.value,
        "limiting_term": principle.names[0],
        "tie": " = ".join(principle.names) if len(principle.names) > 1 else None,
        "over_prediction": float(f"{ratio:.{_OVER_PREDICTION_DIGITS}g}") if ratio > 1 else None,
        "equal": lowest is not None
        and round(lowest) == row["printed_idle_compute"]
        and round(principle.value) == row["printed_principle"],
        "from_ids": [*row["event_ids"], *filter(None, [row["fact_id"]])],
    }


def _ffn(row: Row, top_k: int | None) -> Setting:
    names = ("dtype", "batch", "experts", "routing", "d_ff")
    return model.ffn_setting(**{name: row[name] for name in names}, top_k=top_k)


_SOURCED = (
    *("resolved", "resolved_term", "resolved_m_moe", "resolved_tau", "resolved_m_attn"),
    *("resolved_one_tile", "one_tile_until", "rule", "difference"),
)


def _sourced(row: Row, resolver: Resolver) -> Row:
    """Return the law with releases' granularities at the shapes of a computed row's model."""
    moe = row["model_type"] == "moe"
    try:
        attention = _attention(row, LING_MINI if moe else QWEN3_8B, resolver)
        experts = _experts(row, resolver) if moe else {}
    except NearfreeError as error:
        return dict.fromkeys(_SOURCED) | {"refusal": row["refusal"] or error.what}
    differences = [*experts.pop("differences", []), *attention.pop("differences")]
    found = {"resolved_m_moe": None, "resolved_tau": None, **attention, **experts}
    ffn = _ffn(row, row["top_k"] or (LING_MINI_EXPERTS.top_k if moe else None))
    blocks = row[_BALANCE], found["resolved_m_moe"], found["resolved_tau"]
    terms, one_tile = (
        model.principle_terms(ffn, *blocks, found[m_attn])
        for m_attn in ("resolved_m_attn", "one_tile_until")
    )
    least = smallest_term(terms) if terms else None
    term = least.names[0] if least else None
    rules = {M_ATTN: found["attention_rule"], IDLE: "paper sec. 4.1"}
    return found | {
        "resolved": least.value if least else None,
        "resolved_one_tile": smallest_term(one_tile).value,
        "resolved_term": term,
        "rule": rules.get(term or "", found.get("moe_rule")),
        "difference": "; ".join(differences) or None,
    }


def _attention(row: Row, call: AttentionQuestion, resolver: Resolver) -> Row:
    device = {name: row[name] for name in ("dtype", "batch", "sm", "sm_count")}
    steps = resolver.attention(replace(call, **device))
    differences = _m_attn_differences(steps, row["m_attn"])
    if call.page_size:
        unpaged = resolver.attention(replace(call, **device, page_size=None))
        differences += [
            f"without pages in the cache: {difference}"
            for difference in _m_attn_differences(unpaged, row["m_attn"])
        ]
    return {
        "resolved_m_attn": steps.last_alike(),
        "one_tile_until": _one_tile_until(steps),
        "attention_rule": f"{steps.evidence(1)}, path {steps.at(1).path}",
        "differences": differences,
    }


def _m_attn_differences(steps: Steps[Tile], paper_m_attn: int) -> list[str]:
    """Return how a call's M_attn differs from the paper's, as a list of at most one sentence."""
    m_attn = steps.last_alike()
    if m_attn is None or m_attn == paper_m_attn:
        return []
    evidence = f"{_tile_text(steps, m_attn)}, {_tile_text(steps, m_attn + 1)}"
    until = _one_tile_until(steps)
    return [f"M_attn {m_attn}, not {paper_m_attn}: {evidence}; one tile a head up to N = {until}"]


def _tile_text(steps: Steps[Tile], n: int) -> str:
    tile = steps.at(n)
    return (
        f"N = {n} has tiles of {tile.tile} rows, {tile.rows_per_position} a position, on the path "
        f"{tile.path}"
    )


def _one_tile_until(steps: Steps[Tile]) -> int:
    """Return the last N up to which a request has one tile per head; MOST_TOKENS at most."""
    several = (n for n in range(1, MOST_TOKENS) if steps.at(n + 1).tiles != 1)
    return next(several, MOST_TOKENS)


def _experts(row: Row, resolver: Resolver) -> Row:
    names = ("dtype", "d_ff", "experts", "sm", "device_name")
    top_k = row["top_k"] or LING_MINI_EXPERTS.top_k
    layer = replace(LING_MINI_EXPERTS, **{name: row[name] for name in names}, top_k=top_k)
    steps = resolver.moe(layer)
    tokens = row["batch"] * routing_baseline(row["routing"], row["experts"], top_k, row["batch"])
    block, tau, evidence = steps.at(tokens), steps.tau(tokens), steps.evidence(tokens)
    m_moe, source = block.value, block.source
    differences = []
    if m_moe != row["m_moe"]:
        differences.append(f"M_moe {m_moe}, not {row['m_moe']}, from a {source} rule")
    paper_tau = row["experts"] if row["routing"] == "balanced" else None
    if paper_tau is not None and tau != paper_tau:
        differences.append(f"tau {tau} tokens, not E = {paper_tau}: {source}, {evidence}")
    if paper_tau is None and tau is not None and tau < m_moe:
        differences.append(f"tau {tau} tokens, where the paper has none: {source}")
    if block.path != ALIGNED:
        differences.append(f"the path {block.path} shares no blocks")
    return {
        "resolved_m_moe": m_moe,
        "resolved_tau": tau,
        "moe_rule": f"{evidence}, {source}, path {block.path}",
        "differences": differences,
    }
