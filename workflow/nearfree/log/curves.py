"""Measured curves: T(N) of a setting by round, from the raw samples of a take.

A visit's latency is the median of its clean samples. If fewer than half of a CPU curve's samples
are clean, all of them count: by their CPU time with one thread, by wall time with several.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from math import inf, isnan, nan

from msgspec import Struct

from nearfree.core.boundary import Ratio, interval_of, median, ratios, unpaired_ratios
from nearfree.core.label import setting_key
from nearfree.core.protocols import Timing
from nearfree.core.setting import Setting
from nearfree.log.events import Event, LatencyMeasured
from nearfree.log.evidence import Take

_MIN_CLEAN_SHARE = 0.5


def threads_of(setting: Setting, protocol: Timing) -> int:
    """Return the threads of a forward: an engine's are its setting's, our own the protocol's."""
    return setting.threads or protocol.threads


def several_threads(visit: LatencyMeasured) -> bool:
    """Return whether forwards ran in several threads: then CPU time is not their latency."""
    return threads_of(visit.setting, visit.protocol) > 1


def clean_us(visit: LatencyMeasured) -> float | None:
    """Return the median wall time of a visit's clean samples in microseconds, None without one.

    With several threads every sample counts as clean where CPUs were not watched: one of the
    threads is always descheduled briefly.
    """
    clean: Sequence[float] = visit.wall_us
    if True in visit.dirty and (visit.handover_ns or not several_threads(visit)):
        clean = [us for us, dirty in zip(visit.wall_us, visit.dirty, strict=True) if not dirty]
    return median(clean) if clean else None


def all_us(visit: LatencyMeasured) -> float:
    """Return the median of all samples of a visit in microseconds, clean or not.

    It is of CPU time, which leaves out what other processes took; of several threads it is of wall
    time, since their CPU time is not a forward's latency.
    """
    return median(visit.wall_us if several_threads(visit) else visit.process_us)


class Visits:
    """The visits of one N, in compact arrays, since a scope may hold millions of visits."""

    __slots__ = (
        "all_us", "clean", "extra_us", "load_1m", "numbers", "rounds", "samples", "wall_us",
    )  # fmt: skip

    def __init__(self) -> None:
        self.rounds = array("q")
        self.wall_us = array("d")
        """Per visit, the median over clean samples; NaN without one."""
        self.all_us = array("d")
        """Per visit, the median over all samples (`all_us`)."""
        self.extra_us = array("d")
        """Of the visits that timed a first forward after another N, its time beyond the median."""
        self.numbers: dict[str, array[int]] = {}
        """The visits' line numbers in the log, by segment."""
        self.samples = self.clean = 0
        self.load_1m: float | None = None
        """The highest 1-minute load average of the visits."""

    def add(self, event: Event) -> None:
        """Add one visit, a `LatencyMeasured` event."""
        data: LatencyMeasured = event.data
        wall_us = clean_us(data)
        self.rounds.append(data.round)
        self.wall_us.append(nan if wall_us is None else wall_us)
        self.all_us.append(all_us(data))
        if data.changed_us is not None and wall_us is not None:
            self.extra_us.append(data.changed_us - wall_us)
        self.numbers.setdefault(event.source, array("q")).append(int(event.id))
        self.samples += len(data.dirty)
        self.clean += data.dirty.count(False)
        if data.load_1m is not None:
            self.load_1m = max(data.load_1m, -inf if self.load_1m is None else self.load_1m)

    @property
    def ids(self) -> list[str]:
        """The ids of the visits' events, in order."""
        return [f"{name}#{number}" for name, numbers in self.numbers.items() for number in numbers]

    def by_round(self, *, clean: bool) -> dict[int, float]:
        """Return T(N) by round in microseconds, of clean samples or of all."""
        medians = self.wall_us if clean else self.all_us
        return {r: us for r, us in zip(self.rounds, medians, strict=True) if not isnan(us)}


class Curve:
    """The visits of one setting in one take, by N; `first` is the earliest visit."""

    def __init__(self, take: Take, first: Event, visits: dict[int, Visits]) -> None:
        self.take = take
        self.first: LatencyMeasured = first.data
        self.first_id = first.event_id
        self.setting: Setting = self.first.setting
        self.visits = visits

    @property
    def ids(self) -> dict[int, list[str]]:
        """The ids of the visits' events, by N."""
        return {n: visits.ids for n, visits in self.visits.items()}

    @property
    def key(self) -> tuple[str, Setting]:
        """The stream and setting: a newer curve replaces an older one with the same key."""
        return self.take.name.stream, self.setting

    @property
    def order(self) -> tuple[int, str, str]:
        """The sort key of curves of one setting, oldest first."""
        return self.take.order

    @property
    def origin(self) -> str:
        """`measured`, or `simulated` for a curve from a simulated platform."""
        return "simulated" if self.first.timer == "simulated" else "measured"


class Gathering:
    """Collects the curves of one take while its events are read."""

    def __init__(self) -> None:
        self._by_setting: dict[Setting, tuple[Event, dict[int, Visits]]] = {}

    def others(self, events: Iterable[Event]) -> Iterator[Event]:
        """Collect the visits among events, and yield the other events."""
        for event in events:
            if isinstance(event.data, LatencyMeasured):
                self._add(event)
            else:
                yield event

    def _add(self, event: Event) -> None:
        _, by_n = self._by_setting.setdefault(event.data.setting, (event, {}))
        n = event.data.n
        if n not in by_n:
            by_n[n] = Visits()
        by_n[n].add(event)

    def curves(self, take: Take) -> list[Curve]:
        """Return the collected curves of a take, in the order of tables."""
        gathered = [Curve(take, first, visits) for first, visits in self._by_setting.values()]
        return sorted(gathered, key=lambda curve: setting_key(curve.setting))


def curves(takes: Iterable[Take]) -> list[Curve]:
    """Return the measured curves of takes, one per setting and take."""
    collected = []
    for take in takes:
        gathering = Gathering()
        for _ in gathering.others(take.events_of(LatencyMeasured)):
            pass
        collected += gathering.curves(take)
    return collected


class CurveSamples(Struct, frozen=True):
    """A curve's latency by N and round, in microseconds, and the timer that measured it."""

    timer: str
    baseline: int
    rounds: dict[int, dict[int, float]]

    @property
    def whole(self) -> bool:
        """Whether the baseline was timed, without which there are no ratios."""
        return bool(self.rounds.get(self.baseline))


def curve_samples(curve: Curve) -> CurveSamples:
    """Return a curve's latency by N and round: of clean samples if they are enough, or of all."""
    samples = sum(visits.samples for visits in curve.visits.values())
    clean_samples = sum(visits.clean for visits in curve.visits.values())
    clean = enough_clean(curve.first, clean=clean_samples, samples=samples)
    timer, wall = curve.first.timer, clean or several_threads(curve.first)
    return CurveSamples(
        timer=timer if timer != "cpu" else "wall" if wall else "process",
        baseline=curve.first.baseline,
        rounds={n: visits.by_round(clean=clean) for n, visits in curve.visits.items()},
    )


def enough_clean(visit: LatencyMeasured, *, clean: int, samples: int) -> bool:
    """Return whether a curve uses clean samples alone, given one of its visits and the counts."""
    return visit.timer != "cpu" or clean >= _MIN_CLEAN_SHARE * samples


def samples_ratios(samples: CurveSamples, protocol: Timing) -> list[Ratio]:
    """Return T(N) / T(baseline) with the interval that fits the protocol.

    Rounds of the paper's protocol cannot be paired. A protocol that tests repeatedly gets wider
    intervals, corrected for its number of looks.
    """
    if not protocol.pairs_rounds:
        return unpaired_ratios(samples.rounds, samples.baseline)
    return ratios(samples.rounds, samples.baseline, interval_of(protocol))
