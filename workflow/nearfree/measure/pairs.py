"""The paired protocol: each N between visits to its baseline, until its ratio is known.

Which N gets another pair is a function of what the log holds, so an interrupted take goes on as it
would have.
"""

import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import groupby

from msgspec import Struct

from nearfree.core.boundary import median, repeated_looks
from nearfree.core.protocols import Paired
from nearfree.core.setting import Setting
from nearfree.hardware.clocks import Sample
from nearfree.log.curves import clean_us, in_wall_time
from nearfree.log.events import LatencyMeasured
from nearfree.measure.visits import Bench, Point
from nearfree.units import US_PER_S

Kept = list[tuple[Point, tuple[Sample, ...]]]
Place = tuple[Setting, int]
"""A setting and an N of it."""


class Pair(Struct, frozen=True):
    """What one pair said of N: its ratio by either clock, and what it cost."""

    visit: LatencyMeasured
    """That to N; to the baseline, where N is it."""
    wall: float | None
    """Of clean samples; None without one."""
    process: float
    seconds: float
    """Inside timed forwards."""
    clean: int
    samples: int


def pair_of(visits: Sequence[LatencyMeasured]) -> Pair:
    """Return what the visits of one round said: to the baseline and an N, or to that alone."""
    reference, visit = visits[0], visits[-1]
    wall, against = clean_us(visit), clean_us(reference)
    return Pair(
        visit=visit,
        wall=wall / against if wall and against else None,
        process=median(visit.process_us) / (median(reference.process_us) or 1.0),
        seconds=sum(sum(each.wall_us) * each.forwards_a_sample for each in visits) / US_PER_S,
        clean=sum(each.dirty.count(False) for each in visits),
        samples=sum(len(each.dirty) for each in visits),
    )


def pairs_of(history: Iterable[LatencyMeasured]) -> dict[Place, list[Pair]]:
    """Return the pairs of each setting and N, in order."""
    found: dict[Place, list[Pair]] = defaultdict(list)
    for _, visits in groupby(history, key=lambda visit: visit.round):
        pair = pair_of(list(visits))
        found[pair.visit.setting, pair.visit.n].append(pair)
    return found


def unknown(pairs: dict[int, list[Pair]], protocol: Paired) -> set[int]:
    """Return the N of a setting whose ratio its pairs do not tell well enough yet.

    Parameters
    ----------
    pairs
        By N; as many of each as had been made at one of the protocol's looks.
    """
    every = [pair for many in pairs.values() for pair in many]
    if sum(pair.seconds for pair in every) >= protocol.seconds_max:
        return set()
    clean, samples = sum(pair.clean for pair in every), sum(pair.samples for pair in every)
    wall = in_wall_time(every[0].visit, clean=clean, samples=samples)
    interval = repeated_looks(protocol)
    left = set()
    for n, many in pairs.items():
        values = [pair.wall if wall else pair.process for pair in many]
        told = [value for value in values if value]
        if not told:
            left.add(n)
            continue
        low, high = interval(told)
        if high - low > 2 * protocol.half_width * median(told):
            left.add(n)
    return left


def left_open(
    points: Sequence[Point], found: dict[Place, list[Pair]], made: int, protocol: Paired
) -> list[Point]:
    """Return the points that get another pair after `made` of those that got any.

    What an interval says stands from one look to the next.
    """
    looks = [look for look in protocol.looks if look <= made]
    still = list(points)
    for look in looks:
        by_setting: dict[Setting, dict[int, list[Pair]]] = defaultdict(dict)
        for point in points:
            by_setting[point.setting][point.n] = found[point.setting, point.n][:look]
        open_n = {setting: unknown(pairs, protocol) for setting, pairs in by_setting.items()}
        still = [point for point in still if point.n in open_n[point.setting]]
    return still


def run_paired(bench: Bench, points: Sequence[Point], protocol: Paired) -> None:
    """Append the pairs that a take lacks, each durable before the next."""
    baselines = {point.setting: point for point in points if point.n == point.baseline}
    number = max([-1, *(visit.round for visit in bench.history)])
    for made in range(protocol.rounds):
        found = pairs_of(bench.history)
        order = left_open(points, found, made, protocol)
        random.Random(f"{protocol.seed}/{made}").shuffle(order)  # noqa: S311 (an order, no secret)
        todo = [point for point in order if len(found[point.setting, point.n]) <= made]
        for place, point in enumerate(todo):
            number += 1
            bench.keep(number, _pair(bench, baselines[point.setting], point, protocol), paired=True)
            bench.progress((made + place / len(todo)) / protocol.rounds)
    bench.progress(1.0)


def _pair(bench: Bench, baseline: Point, point: Point, protocol: Paired) -> Kept:
    """Time N between two visits to the baseline, or the baseline alone where N is it."""
    many, warmup = protocol.baseline_forwards, protocol.warmup
    first = bench.visit(baseline, warmup, many)
    if point == baseline:
        return [(point, first)]
    visit = bench.visit(point, warmup)
    return [(baseline, (*first, *bench.visit(baseline, warmup, many))), (point, visit)]
