"""Tables `boundaries` and `sensitivity`: N_max of each setting at each tolerance."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import polars as pl

from nearfree.core.boundary import Ratio, boundary
from nearfree.core.modules.kind import Equation
from nearfree.derive.tables.columns import CURVE, ORIGINS, amount, count, flag, text
from nearfree.derive.tables.latency import LATENCY
from nearfree.derive.tables.robust import leaps, robustness
from nearfree.derive.tables.schema import Table
from nearfree.derive.tables.settings import setting_row
from nearfree.derive.tables.store import (
    digests,
    epsilon_digest,
    read_table,
    seals_digest,
    tolerances_digest,
    write_table,
)
from nearfree.log.events import BoundaryPublished
from nearfree.log.evidence import Take, newest_takes, read_scope
from nearfree.log.names import Layout

_DEFINITION = "sec. 2.2, definition of N_max(epsilon)"
N_MAX_FORMULA = "max { N : T(N) <= (1 + epsilon) T(baseline) }"
"""The formula of a curve's boundary."""
_CURVE = CURVE | {
    "stream": text("the study, or the table that printed it"),
    "take": count("which take, 0 for a printed value", at_least=0),
}
_PRINTED = Equation(f"as printed; N_max = {N_MAX_FORMULA}", _DEFINITION)
BOUNDARIES = Table(
    name="boundaries",
    row="N_max of a setting at a tolerance, from one take or one printed table",
    key=("platform", "stream", "take", "plan8", "setting_key", "epsilon"),
    formula="N_max = max { N : ratio(N) <= 1 + epsilon }, ratio the median over rounds of "
    "T(N) / T(baseline) in each round; under the paper's protocol that of the medians",
    paper=_DEFINITION,
    code="nearfree.core.boundary",
    equation=lambda row: _PRINTED if row.get("origin") == "published" else None,
    body={
        **_CURVE,
        "epsilon": amount("tolerance"),
        "baseline": count("the N that ratios refer to"),
        "n_max": count("last pass: the largest sampled N within the tolerance"),
        "first_exit": count("the last N before the first violation", nullable=True),
        "next_n": count("the grid point after n_max, none at the grid's end", nullable=True),
        "n_low": count("lower end of n_max by the ratios' intervals, N by N", nullable=True),
        "n_high": count("upper end of it", nullable=True),
        "verdict": text(
            "sharp: the interval is one N; bracketed: it is wider; undecided: wider than the "
            "protocol was to leave it; censored: it reaches the grid's end; printed: no interval "
            "is known",
            one_of=("sharp", "bracketed", "undecided", "censored", "printed"),
        ),
        "baseline_over_min": amount("T(baseline) / min T: above 1 the baseline itself is slow",
                                    nullable=True),
        "n_max_from_1": count("n_max with T(1) as the baseline, where the baseline is another N",
                              nullable=True),
        "n_low_from_1": count("lower end of it", nullable=True),
        "n_high_from_1": count("upper end of it", nullable=True),
        "grid_inferred": flag("whether the grid of N was inferred, not printed or sampled"),
        "noisy": flag("whether the source marks the value as noise"),
        "origin": text("where the number comes from", one_of=ORIGINS),
    },
)  # fmt: skip

SENSITIVITY = Table(
    name="sensitivity",
    row="the boundary of a setting over all tolerances",
    key=("platform", "stream", "take", "plan8", "setting_key"),
    formula="robust, unless a neighbouring tolerance moves N_max by more than a step of the grid, "
    "or noise at the headline tolerance could move it",
    paper="app. on tolerances",
    code="nearfree.derive.tables.robust",
    body={
        **_CURVE,
        "epsilon_low": amount("smallest tolerance"),
        "epsilon_high": amount("largest tolerance"),
        "tolerances": count("how many tolerances"),
        "n_max_low": count("n_max at the smallest tolerance"),
        "n_max_high": count("n_max at the largest"),
        "verdict": text(
            "stable: the same N throughout; gradual: at most one grid step from a tolerance to "
            "the next; jumping: more",
            one_of=("stable", "gradual", "jumping"),
        ),
        "robust": flag("whether it does not jump, and no noise at the headline tolerance moves it"),
        "why": text("what makes it robust or fragile, with numbers"),
        "origin": text("where the number comes from", one_of=ORIGINS),
    },
)

_IDENTITY = (*CURVE, "origin")
_NOT_PRINTED = (
    *("first_exit", "n_low", "n_high", "baseline_over_min"),
    *("n_max_from_1", "n_low_from_1", "n_high_from_1"),
)
Row = dict[str, Any]


def write_boundaries(
    layout: Layout, scope: str, *, tolerances: Sequence[float], epsilon: float
) -> None:
    """Write a scope's boundaries and their sensitivity, from latencies and printed values.

    Noise is assessed at `epsilon`, the headline tolerance.
    """
    latency = read_table(layout, scope, LATENCY, without=["from_ids"])
    takes = read_scope(layout, scope, only=(BoundaryPublished,))
    known_ids = {event.event_id for take in takes for event in take.events} | set(latency["row_id"])
    rows = [*measured_rows(latency, tolerances), *published_rows(takes, tolerances)]
    frame = BOUNDARIES.build(BOUNDARIES.frame(rows), known_ids)
    made_from = (
        digests(layout, scope, LATENCY)
        | tolerances_digest(tolerances)
        | seals_digest(layout, scope)
    )
    write_table(layout, scope, BOUNDARIES, frame, made_from)
    sensitivity = SENSITIVITY.frame(sensitivity_rows(frame, latency, epsilon))
    known_ids = {*frame["row_id"], *latency["row_id"]}
    made_from = digests(layout, scope, BOUNDARIES, LATENCY) | epsilon_digest(epsilon)
    write_table(layout, scope, SENSITIVITY, SENSITIVITY.build(sensitivity, known_ids), made_from)


def measured_rows(latency: pl.DataFrame, tolerances: Sequence[float]) -> Iterator[Row]:
    """Yield the boundaries of measured curves."""
    for group in latency.partition_by(["stream", "take", "plan8", "setting_key"]):
        points = group.sort("n").to_dicts()
        first = points[0]
        curve = [
            Ratio(point["n"], point["ratio"], point["ratio_low"], point["ratio_high"])
            for point in points
        ]
        baseline_over_min = 1 / min(ratio.value for ratio in curve if ratio.n >= first["baseline"])
        from_1 = _from_1(curve) if first["baseline"] > 1 else []
        for epsilon in tolerances:
            resolution = first["resolution"] if epsilon == first["tested_epsilon"] else None
            bound = boundary(curve, epsilon, first["baseline"], resolution)
            single = boundary(from_1, epsilon, 1) if from_1 else None
            yield {
                **{name: first[name] for name in _IDENTITY},
                "epsilon": epsilon,
                "baseline": first["baseline"],
                "n_max": bound.last_pass,
                "first_exit": bound.first_exit,
                "next_n": bound.next_n,
                "n_low": bound.low,
                "n_high": bound.high,
                "verdict": bound.verdict,
                "baseline_over_min": baseline_over_min,
                "n_max_from_1": single.last_pass if single else None,
                "n_low_from_1": single.low if single else None,
                "n_high_from_1": single.high if single else None,
                "grid_inferred": False,
                "noisy": False,
                "from_ids": [point["row_id"] for point in points],
            }


def _from_1(curve: Sequence[Ratio]) -> list[Ratio]:
    """Return the same curve relative to T(1), empty if N = 1 was not measured.

    Both ratios refer to the same baseline; an interval's ends are divided by the opposite ends.
    """
    if curve[0].n != 1:
        return []
    first = curve[0]
    return [
        Ratio(ratio.n, ratio.value / first.value, ratio.low / first.high, ratio.high / first.low)
        if ratio is not first
        else Ratio(1, 1.0, 1.0, 1.0)
        for ratio in curve
    ]


def published_rows(takes: list[Take], tolerances: Sequence[float]) -> Iterator[Row]:
    """Yield the newest printed boundaries at the given tolerances."""
    for take in newest_takes(takes, BoundaryPublished):
        for event in take.events_of(BoundaryPublished):
            data = event.data
            if data.epsilon not in tolerances:
                continue
            n_max = int(data.n_max)
            yield {
                "platform": data.platform,
                "stream": data.table,
                "take": 0,
                "plan8": "",
                "newest": True,
                **setting_row(data.setting),
                "origin": "published",
                "epsilon": data.epsilon,
                "baseline": data.baseline,
                "n_max": n_max,
                "next_n": min((n for n in data.grid if n > n_max), default=None),
                **dict.fromkeys(_NOT_PRINTED),
                "verdict": "printed",
                "grid_inferred": data.grid_inferred,
                "noisy": data.noisy,
                "from_ids": [event.event_id],
            }


def sensitivity_rows(
    boundaries: pl.DataFrame, latency: pl.DataFrame, epsilon: float
) -> Iterator[Row]:
    """Yield one row per setting: how its boundary moves with the tolerance and with noise."""
    keys = ["platform", "stream", "take", "plan8", "setting_key"]
    curves = latency.partition_by(keys, as_dict=True)
    for key, group in boundaries.partition_by(keys, as_dict=True).items():
        rows = group.sort("epsilon").to_dicts()
        pairs = list(pairwise(rows))
        if all(lower["n_max"] == higher["n_max"] for lower, higher in pairs):
            verdict = "stable"
        else:
            verdict = (
                "jumping" if any(leaps(lower, higher) for lower, higher in pairs) else "gradual"
            )
        points = curves[key].to_dicts() if key in curves else []
        findings = robustness(rows, {point["n"]: point for point in points}, epsilon)
        yield {
            **{name: rows[0][name] for name in _IDENTITY},
            "epsilon_low": rows[0]["epsilon"],
            "epsilon_high": rows[-1]["epsilon"],
            "tolerances": len(rows),
            "n_max_low": rows[0]["n_max"],
            "n_max_high": rows[-1]["n_max"],
            "verdict": verdict,
            "robust": findings.robust,
            "why": findings.why,
            "from_ids": [*(row["row_id"] for row in rows), *findings.ids],
        }
