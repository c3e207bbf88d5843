"""Whole models on a made-up machine: their modules' times, their tables, and predictions."""

from collections.abc import Iterator
from typing import Any

import polars as pl
from derive.tables.logs import TOLERANCES, make_take, make_visits
from nearfree.core.boundary import Ratio, boundary
from nearfree.core.label import setting_key
from nearfree.core.setting import Setting
from nearfree.decoders.ranks.modules import (
    ATTENTION,
    BETWEEN,
    DENSE,
    HEAD,
    MOE,
    OUTPUT,
    QKV,
    ROUTER,
    SHARED,
)
from nearfree.derive.score.composition import COMPOSITION
from nearfree.derive.tables.boundaries import (
    BOUNDARIES,
    SENSITIVITY,
    measured_rows,
    sensitivity_rows,
)
from nearfree.derive.tables.latency import LATENCY, latency_rows
from nearfree.derive.tables.schema import Table
from nearfree.derive.tables.settings import setting_row
from nearfree.derive.tables.store import read_table, write_table
from nearfree.derive.tables.time_shares import TIME_SHARES, time_share_rows
from nearfree.log.curves import curves
from nearfree.log.events import Payload, SharesMeasured
from nearfree.log.evidence import Take
from nearfree.log.names import Layout, TakeName
from nearfree.show.figures.listing import Frames

GRID = (1, 2, 4, 8, 12, 16, 17, 24, 32, 33, 48, 64)
DENSE_MODEL: dict[str, Any] = {
    "module": "model", "backend": "torch_sdpa", "dtype": "float32", "d_model": 1024, "d_ff": 3072,
    "heads": 8, "kv_heads": 2, "head_dim": 128, "mask": "causal", "model_digest": "0123456789ab",
}  # fmt: skip
MOE_MODEL: dict[str, Any] = DENSE_MODEL | {
    "d_model": 512, "d_ff": 1280, "experts": 64, "heads": 4, "kv_heads": 1, "moe": "torch_padded",
}  # fmt: skip
WEDLM = [Setting(**DENSE_MODEL, model="wedlm_8b_cpu", batch=b, context=256) for b in (1, 2, 4)]
QWEN = [Setting(**DENSE_MODEL, model="qwen3_8b_cpu", context=c) for c in (512, 2048, 4096)]
LLADA = [
    Setting(**MOE_MODEL | {"mask": "block"}, model="llada_2_1_mini_cpu", context=256, routing=r,
            top_k=k)
    for r in ("balanced", "skewed") for k in (2, 8)
]  # fmt: skip
LING = [
    Setting(**MOE_MODEL, model="ling_2_0_mini_cpu", context=c, routing=r, top_k=4)
    for r in ("balanced", "skewed", "router") for c in (256, 4096)
]  # fmt: skip
SETTINGS = [*WEDLM, *QWEN, *LLADA, *LING]


def baseline(setting: Setting) -> int:
    """Return the first N that activates every expert under balanced routing, else 1."""
    if setting.routing != "balanced":
        return 1
    return -(-(setting.experts or 1) // (setting.batch * (setting.top_k or 1)))


def parts_us(setting: Setting, n: int) -> dict[str, float]:
    """Return the time of each module: reading weights and cache, then computing beyond a knee."""
    tokens, context = setting.batch * n, setting.context or 0
    work = max(1.0, tokens / 14)
    attention = (40 + 0.05 * context) * max(1.0, -(-n // 32) * 0.9) * setting.batch**0.5
    common = {QKV: 90 * work, ATTENTION: attention, OUTPUT: 60 * work}
    head, between = {HEAD: 320 * work}, {BETWEEN: 25 + 2.5 * tokens}
    if setting.experts is None:
        return {**common, DENSE: 800 * work, **head, **between}
    awake = min(1.0, tokens * (setting.top_k or 1) / setting.experts)
    if setting.routing == "skewed":
        awake = (setting.top_k or 1) / setting.experts
    rows = tokens * (setting.top_k or 1) / setting.experts / awake
    experts = 900 * awake * max(1.0, -(-rows // 16) * 0.8) + 30
    return {
        **common, DENSE: 160 * work, ROUTER: 20 + tokens * 0.2, MOE: experts,
        SHARED: 60 * work, **head, **between,
    }  # fmt: skip


def _payloads(setting: Setting) -> Iterator[Payload]:
    first = baseline(setting)
    times = {n: sum(parts_us(setting, n).values()) for n in sorted({1, first, *GRID})}
    yield from make_visits(setting, times, baseline=first)
    for n in times:
        for number in range(3):
            yield SharesMeasured(
                setting=setting, n=n, round=number, part_us=parts_us(setting, n), dirty=False,
                timer="cpu",
            )  # fmt: skip


def _take(model: str, settings: list[Setting]) -> Take:
    take = make_take(*(payload for setting in settings for payload in _payloads(setting)))
    return Take(TakeName("cpu", model, 1, "0" * 8), take.seal, take.events)


def built(table: Table, rows: Iterator[dict[str, Any]] | list[dict[str, Any]]) -> pl.DataFrame:
    """Return rows as a table, without a check of their ids."""
    frame = table.frame(rows)
    return table.build(frame, frame["from_ids"].explode().drop_nulls().unique().to_list())


def model_rows(settings: list[Setting] = SETTINGS) -> Frames:
    """Return the tables of some models measured on one machine."""
    models = {str(setting.model): None for setting in settings}
    takes = [
        _take(name, [setting for setting in settings if setting.model == name]) for name in models
    ]
    latency = built(LATENCY, latency_rows(curves(takes)))
    boundaries = built(BOUNDARIES, list(measured_rows(latency, TOLERANCES)))
    shares = built(TIME_SHARES, time_share_rows(takes, latency))
    boundary_rows = [
        row
        for setting in settings
        for truth in boundaries.filter(setting_key=setting_key(setting)).to_dicts()
        for row in _said(setting, truth)
    ]
    return {
        "latency": latency,
        "boundaries": boundaries,
        "time_shares": shares,
        "composition": built(COMPOSITION, boundary_rows),
    }


def write_models(layout: Layout, scope: str = "cpu") -> Frames:
    """Add the models' tables to those of a scope, and return them."""
    rows = model_rows()
    judged = built(SENSITIVITY, list(sensitivity_rows(rows["boundaries"], rows["latency"], 0.2)))
    for table, more in (
        (LATENCY, rows["latency"]),
        (BOUNDARIES, rows["boundaries"]),
        (SENSITIVITY, judged),
        (TIME_SHARES, rows["time_shares"]),
        (COMPOSITION, rows["composition"]),
    ):
        every = pl.concat([read_table(layout, scope, table), more])
        write_table(layout, scope, table, every, {})
    return rows


def _said(setting: Setting, truth: dict[str, Any]) -> Iterator[dict[str, Any]]:
    first, epsilon = truth["baseline"], truth["epsilon"]
    end = truth["next_n"] or GRID[-1]
    began, ended = parts_us(setting, first), parts_us(setting, end)
    grown = {role: ended[role] - began[role] for role in began}
    most = max(grown, key=lambda role: grown[role])
    main = (ATTENTION, MOE if setting.experts else DENSE)
    alone = {role: _alone(setting, role, first, epsilon) for role in main}
    least = min(main, key=lambda role: alone[role])
    law = 16 * 64 / (setting.top_k or 1) if setting.routing == "balanced" else 16.0
    answers: list[tuple[str, str | None, float | None, str | None]] = [
        ("modules_sum", None, truth["n_max"], most),
        ("modules_minimum", None, alone[least], least),
        ("principle_counted", "probed_stream", min(law, 32.0), main[1]),
        ("principle_counted", "probed_gemm", min(law * 0.7, 32.0), main[1]),
        ("idle_compute", "probed_stream", 90.0, main[1]),
        ("work_model", "probed_stream", None, None),
    ]
    for predictor, basis, value, limiter in answers:
        asked = value is not None and setting.routing != "router"
        n_max, after = truth["n_max"], truth["next_n"]
        yield {
            **{name: truth[name] for name in ("platform", "stream", "epsilon", "baseline",
               "origin", "n_max", "n_low", "n_high", "next_n")},
            **setting_row(setting),
            "measured_width": truth["n_high"] / truth["n_low"],
            "undecided": truth["verdict"] == "undecided",
            "measured_limiter": most,
            "measured_growth": grown[most] / sum(grown.values()),
            "predictor": predictor,
            "basis": basis,
            "predicted": value if asked else None,
            "unbounded": False,
            "low": value if asked else None,
            "high": value if asked else None,
            "limiter": limiter if asked else None,
            "limiter_share": began[limiter] / sum(began.values()) if asked and limiter else None,
            "same_limiter": limiter == most if asked else None,
            "hit": asked and n_max <= value < (after or value + 1),
            "within": asked and truth["n_low"] <= value <= truth["n_high"],
            "foretold": predictor != "idle_compute",
            "refusal": None if asked else "the model's own router decides which experts run",
            "from_ids": [truth["row_id"]],
        }  # fmt: skip


def _alone(setting: Setting, role: str, first: int, epsilon: float) -> float:
    """Return the boundary of one module by itself."""
    base = parts_us(setting, first)[role]
    values = {n: parts_us(setting, n)[role] / base for n in sorted({first, *GRID}) if n >= first}
    curve = [Ratio(n, value, value, value) for n, value in values.items()]
    return float(boundary(curve, epsilon, first).last_pass)
