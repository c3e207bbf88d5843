"""Table `latency`: T(N), from raw samples to one point with its interval.

A visit's latency is the median of its clean samples; a point's is the median over rounds. Where
fewer than half of a CPU curve's samples are clean, process CPU time stands in for wall time in the
whole curve, and the row says so.
"""

from collections import defaultdict
from collections.abc import Iterator

from msgspec import Struct

from nearfree.boundary import (
    Ratio,
    median,
    median_interval,
    ratios,
    repeated_looks,
    unpaired_ratios,
)
from nearfree.events.evidence import Take
from nearfree.events.types import Event, LatencyMeasured
from nearfree.protocols import Adaptive, Paper, Timing
from nearfree.settings import Setting
from nearfree.tables.schema import (
    ORIGINS,
    SETTING_COLUMNS,
    Table,
    amount,
    count,
    flag,
    number,
    text,
)
from nearfree.tables.settings import setting_row

LATENCY = Table(
    name="latency",
    row="one point T(N) of one setting in one take",
    key=("platform", "stream", "take", "plan8", "setting_key", "n"),
    body={
        "platform": text("the kind of machine"),
        "stream": text("the study"),
        "take": count("which take"),
        "plan8": text("first digits of the plan's digest"),
        "newest": flag("whether no newer sealed take of the study holds this setting"),
        **SETTING_COLUMNS,
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
        "timer": text("wall or process CPU time, or CUDA events",
                      one_of=("wall", "process", "cuda_events")),
        "launch": text("one by one, or as a CUDA graph", one_of=("eager", "graph")),
        "protocol": text("how it was timed"),
        "resolution": number("factor within which the protocol was to know N_max", nullable=True),
        "tested_epsilon": number("the tolerance at which it was to know it", nullable=True),
        "cache": text("whether weights came from memory", one_of=("cold", "warm")),
        "load_1m": number("highest run-queue average while it ran", nullable=True),
        "origin": text("where the number comes from", one_of=ORIGINS),
    },
)  # fmt: skip

_FEWEST_CLEAN = 0.5


class Curve:
    """The visits of one setting in one take, by N."""

    def __init__(self, take: Take, setting: Setting, visits: dict[int, list[Event]]) -> None:
        self.take = take
        self.setting = setting
        self.visits = visits
        self.ids = {n: [visit.event_id for visit in at_n] for n, at_n in visits.items()}

    @property
    def key(self) -> tuple[str, Setting]:
        """What a newer curve replaces: the same setting in the same study."""
        return self.take.name.stream, self.setting

    @property
    def order(self) -> tuple[int, str, str]:
        """What decides which of two curves of one setting is newer."""
        return self.take.order


def curves(takes: list[Take]) -> list[Curve]:
    """Return the measured curves of takes, one a setting and take."""
    out = []
    for take in takes:
        by_setting: dict[Setting, dict[int, list[Event]]] = defaultdict(lambda: defaultdict(list))
        for event in take.of(LatencyMeasured):
            by_setting[event.data.setting][event.data.n].append(event)
        out += [Curve(take, setting, visits) for setting, visits in by_setting.items()]
    return out


def latency_rows(every: list[Curve]) -> Iterator[dict[str, object]]:
    """Yield the points of every curve; curves without their baseline are left out."""
    whole = [(curve, timed) for curve in every if (timed := _timed(curve)).whole]
    newest: dict[tuple[str, Setting], tuple[int, str, str]] = {}
    for curve, _ in whole:
        newest[curve.key] = max(newest.get(curve.key, curve.order), curve.order)
    for curve, timed in whole:
        yield from _points(curve, timed, newest=newest[curve.key] == curve.order)


class Timed(Struct, frozen=True):
    """A curve's latency by N and round, in microseconds, and which timer gave it."""

    timer: str
    baseline: int
    rounds: dict[int, dict[int, float]]

    @property
    def whole(self) -> bool:
        """Whether the baseline was timed, without which there are no ratios."""
        return bool(self.rounds.get(self.baseline))


def _timed(curve: Curve) -> Timed:
    samples, clean = _counts([visit for visits in curve.visits.values() for visit in visits])
    first = next(iter(curve.visits.values()))[0].data
    wall = first.timer != "cpu" or clean >= _FEWEST_CLEAN * samples
    return Timed(
        timer=_timer(first, wall=wall),
        baseline=first.baseline,
        rounds={n: _by_round(visits, wall=wall) for n, visits in curve.visits.items()},
    )


def _timer(visit: LatencyMeasured, *, wall: bool) -> str:
    return visit.timer if visit.timer != "cpu" else "wall" if wall else "process"


def timed_ratios(timed: Timed, protocol: Timing) -> list[Ratio]:
    """Return T(N) / T(baseline) as the protocol allows it to be said.

    Rounds of the paper's protocol cannot be paired; an adaptive test pays for its looks.
    """
    if isinstance(protocol, Paper):
        return unpaired_ratios(timed.rounds, timed.baseline)
    if isinstance(protocol, Adaptive):
        interval = repeated_looks(protocol.confidence, len(protocol.looks) + 1)
        return ratios(timed.rounds, timed.baseline, interval)
    return ratios(timed.rounds, timed.baseline)


def _points(curve: Curve, timed: Timed, *, newest: bool) -> Iterator[dict[str, object]]:
    first = next(iter(curve.visits.values()))[0].data
    shared = {
        "platform": curve.take.name.scope,
        "stream": curve.take.name.stream,
        "take": curve.take.name.take,
        "plan8": curve.take.name.plan8,
        "newest": newest,
        **setting_row(curve.setting),
        "baseline": timed.baseline,
        "timer": timed.timer,
        "launch": first.launch,
        "protocol": first.protocol.name,
        "resolution": getattr(first.protocol, "width", None),
        "tested_epsilon": getattr(first.protocol, "epsilon", None),
        "cache": first.cache,
        "origin": "measured",
    }
    for ratio in timed_ratios(timed, first.protocol):
        values = sorted(timed.rounds[ratio.n].values())
        low, high = median_interval(values)
        middle, visits = median(values), curve.visits[ratio.n]
        samples, clean = _counts(visits)
        loads = [v.data.load_1m for v in visits if v.data.load_1m is not None]
        yield {
            **shared,
            "n": ratio.n,
            "latency_us": middle,
            "latency_low_us": low,
            "latency_high_us": high,
            "ratio": ratio.value,
            "ratio_low": ratio.low,
            "ratio_high": ratio.high,
            "spread": (values[(3 * len(values)) // 4 - 1] - values[len(values) // 4]) / middle,
            "rounds": len(values),
            "samples": samples,
            "clean_samples": clean,
            "load_1m": max(loads, default=None),
            "from_ids": curve.ids[ratio.n],
        }


def _counts(visits: list[Event]) -> tuple[int, int]:
    """Return how many samples visits hold, and how many of them are clean."""
    flags = [visit.data.dirty for visit in visits]
    return sum(map(len, flags)), sum(dirty.count(False) for dirty in flags)


def _by_round(visits: list[Event], *, wall: bool) -> dict[int, float]:
    medians = {}
    for visit in visits:
        data = visit.data
        values = data.wall_us if wall else data.process_us
        if wall and True in data.dirty:
            values = [us for us, bad in zip(values, data.dirty, strict=True) if not bad]
        if values:
            medians[data.round] = median(values)
    return medians
