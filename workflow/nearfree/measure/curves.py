"""What the log holds of a setting: T(N) by round, from the raw samples of a take.

A visit's latency is the median of its clean samples. Where fewer than half of a CPU curve's samples
are clean, process CPU time stands in for wall time in the whole curve.
"""

from collections import defaultdict

from msgspec import Struct

from nearfree.boundary import Ratio, median, ratios, repeated_looks, unpaired_ratios
from nearfree.events.evidence import Take
from nearfree.events.types import Event, LatencyMeasured
from nearfree.protocols import Adaptive, Paper, Timing
from nearfree.settings import Setting

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


class Timed(Struct, frozen=True):
    """A curve's latency by N and round, in microseconds, and which timer gave it."""

    timer: str
    baseline: int
    rounds: dict[int, dict[int, float]]

    @property
    def whole(self) -> bool:
        """Whether the baseline was timed, without which there are no ratios."""
        return bool(self.rounds.get(self.baseline))


def timed(curve: Curve) -> Timed:
    """Return a curve's latency by N and round, in wall time unless that was not clean."""
    samples, clean = counts([visit for visits in curve.visits.values() for visit in visits])
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


def counts(visits: list[Event]) -> tuple[int, int]:
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
