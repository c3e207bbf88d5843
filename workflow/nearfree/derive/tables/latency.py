"""Table `latency`: T(N), from raw samples to one point with its interval.

A point's latency is the median over rounds of the latencies of its visits.
"""

from collections.abc import Iterator

import polars as pl

from nearfree.core.boundary import median, median_interval
from nearfree.core.setting import Setting
from nearfree.derive.tables.columns import CURVE, ORIGINS, amount, count, number, text
from nearfree.derive.tables.schema import Table
from nearfree.derive.tables.settings import setting_row
from nearfree.log.curves import Curve, CurveSamples, curve_samples, samples_ratios

LATENCY = Table(
    name="latency",
    row="one point T(N) of one setting in one take",
    key=("platform", "stream", "take", "plan8", "setting_key", "n"),
    formula="T(N) = median over rounds of the median of a visit's clean samples; its ratio is "
    "paired with the baseline within each round",
    paper="app. on measurement",
    code="nearfree.derive.tables.latency",
    body={
        **CURVE,
        "n": count("N, positions a request"),
        "baseline": count("the N that ratios refer to"),
        "latency_us": amount("T(N), median over rounds of a visit's median"),
        "latency_low_us": amount("lower end of the median's 95 % interval"),
        "latency_high_us": amount("upper end of it"),
        "ratio": amount("T(N) / T(baseline), median over rounds, paired within each"),
        "ratio_low": amount("lower end of its 95 % interval"),
        "ratio_high": amount("upper end of it"),
        "spread": number("range of the middle half of the rounds, as a share of T(N)"),
        "rounds": count("rounds with a clean sample of this point"),
        "samples": count("timed forwards"),
        "clean_samples": count("of them, those that nothing disturbed", at_least=0),
        "timer": text("wall or process CPU time, CUDA events, or none: simulated",
                      one_of=("wall", "process", "cuda_events", "simulated")),
        "launch": text("one by one, or as a CUDA graph", one_of=("eager", "graph")),
        "protocol": text("how it was timed"),
        "resolution": number("factor within which the protocol was to know N_max", nullable=True),
        "tested_epsilon": number("the tolerance at which it was to know it", nullable=True),
        "cache": text("whether weights came from memory", one_of=("cold", "warm")),
        "load_1m": number("highest run-queue average while it ran", nullable=True),
        "origin": text("where the number comes from", one_of=ORIGINS),
    },
)  # fmt: skip


def latency_rows(curves: list[Curve]) -> Iterator[dict[str, object]]:
    """Yield the points of all curves that have their baseline."""
    complete = [curve for curve in curves if curve_samples(curve).whole]
    newest: dict[tuple[str, Setting], tuple[int, str, str]] = {}
    for curve in complete:
        newest[curve.key] = max(newest.get(curve.key, curve.order), curve.order)
    for curve in complete:
        yield from _points(curve, curve_samples(curve), newest=newest[curve.key] == curve.order)


def _points(curve: Curve, samples: CurveSamples, *, newest: bool) -> Iterator[dict[str, object]]:
    first = curve.first
    shared = {
        "platform": curve.take.name.scope,
        "stream": curve.take.name.stream,
        "take": curve.take.name.take,
        "plan8": curve.take.name.plan8,
        "newest": newest,
        **setting_row(curve.setting),
        "baseline": samples.baseline,
        "timer": samples.timer,
        "launch": first.launch,
        "protocol": first.protocol.name,
        "resolution": getattr(first.protocol, "width", None),
        "tested_epsilon": getattr(first.protocol, "epsilon", None),
        "cache": first.cache,
        "origin": curve.origin,
    }
    for ratio in samples_ratios(samples, first.protocol):
        values = sorted(samples.rounds[ratio.n].values())
        low, high = median_interval(values)
        latency_us, visits = median(values), curve.visits[ratio.n]
        yield {
            **shared,
            "n": ratio.n,
            "latency_us": latency_us,
            "latency_low_us": low,
            "latency_high_us": high,
            "ratio": ratio.value,
            "ratio_low": ratio.low,
            "ratio_high": ratio.high,
            "spread": (values[(3 * len(values)) // 4 - 1] - values[len(values) // 4]) / latency_us,
            "rounds": len(values),
            "samples": visits.samples,
            "clean_samples": visits.clean,
            "load_1m": visits.load_1m,
            "from_ids": visits.ids,
        }


def launched_on_gpu() -> pl.Expr:
    """Return how a GPU launched its kernels, `eager` or `graph`; null for CPUs and simulations."""
    return pl.when(pl.col("timer") == "cuda_events").then("launch").alias("launch")
