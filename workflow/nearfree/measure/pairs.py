"""The paired protocol: time each N between two visits to its baseline, until its ratio is known.

Which N gets another pair depends on the log alone, so an interrupted take continues as if it had
not been interrupted.
"""

import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import groupby

from msgspec import Struct

from nearfree.core.boundary import interval_of, median
from nearfree.core.protocols import Paired
from nearfree.core.setting import Setting
from nearfree.hardware.clocks import Sample
from nearfree.log.curves import all_us, clean_us, enough_clean
from nearfree.log.events import LatencyMeasured
from nearfree.measure.visits import Bench, Point
from nearfree.units import US_PER_S

TimedPoints = list[tuple[Point, tuple[Sample, ...]]]
Place = tuple[Setting, int]
"""A setting and an N of it."""


class Pair(Struct, frozen=True):
    """The result of one pair: T(N) / T(baseline) by clean samples and by all, and its cost."""

    visit: LatencyMeasured
    """The visit to N."""
    clean_ratio: float | None
    """Ratio of the medians over clean samples; None if a side has none."""
    ratio: float
    """Ratio of the medians over all samples: of CPU time, with several threads of wall time."""
    seconds: float
    """Time inside timed forwards."""
    clean: int
    samples: int


def pair_of(visits: Sequence[LatencyMeasured]) -> Pair:
    """Return the pair of one round's visits: to the baseline and an N, or to the baseline alone."""
    reference, visit = visits[0], visits[-1]
    wall_us, baseline_us = clean_us(visit), clean_us(reference)
    return Pair(
        visit=visit,
        clean_ratio=wall_us / baseline_us if wall_us and baseline_us else None,
        ratio=all_us(visit) / (all_us(reference) or 1.0),
        seconds=sum(sum(v.wall_us) * v.forwards_a_sample for v in visits) / US_PER_S,
        clean=sum(v.dirty.count(False) for v in visits),
        samples=sum(len(v.dirty) for v in visits),
    )


def pairs_of(history: Iterable[LatencyMeasured]) -> dict[Place, list[Pair]]:
    """Return the pairs of each setting and N, in order."""
    pairs: dict[Place, list[Pair]] = defaultdict(list)
    for _, visits in groupby(history, key=lambda visit: visit.round):
        pair = pair_of(list(visits))
        pairs[pair.visit.setting, pair.visit.n].append(pair)
    return pairs


def unresolved_n(pairs: dict[int, list[Pair]], protocol: Paired) -> set[int]:
    """Return the N of a setting whose ratio has an interval wider than the protocol accepts.

    It is empty once the setting has used up the protocol's time.

    Parameters
    ----------
    pairs
        Pairs by N, each as many as at one of the protocol's looks.
    """
    all_pairs = [pair for pairs_at_n in pairs.values() for pair in pairs_at_n]
    if sum(pair.seconds for pair in all_pairs) >= protocol.seconds_max:
        return set()
    clean, samples = sum(pair.clean for pair in all_pairs), sum(pair.samples for pair in all_pairs)
    use_clean = enough_clean(all_pairs[0].visit, clean=clean, samples=samples)
    interval = interval_of(protocol)
    unresolved = set()
    for n, pairs_at_n in pairs.items():
        values = [pair.clean_ratio if use_clean else pair.ratio for pair in pairs_at_n]
        ratios = [value for value in values if value]
        if not ratios:
            unresolved.add(n)
            continue
        low, high = interval(ratios)
        if high - low > 2 * protocol.half_width * median(ratios):
            unresolved.add(n)
    return unresolved


def open_points(
    points: Sequence[Point], pairs: dict[Place, list[Pair]], pair_count: int, protocol: Paired
) -> list[Point]:
    """Return the points that get another pair after `pair_count` pairs.

    Intervals are computed only at the protocol's looks. A point closed at one look stays closed.
    """
    looks = [look for look in protocol.looks if look <= pair_count]
    still_open = list(points)
    for look in looks:
        by_setting: dict[Setting, dict[int, list[Pair]]] = defaultdict(dict)
        for point in points:
            by_setting[point.setting][point.n] = pairs[point.setting, point.n][:look]
        open_n = {setting: unresolved_n(by_n, protocol) for setting, by_n in by_setting.items()}
        still_open = [point for point in still_open if point.n in open_n[point.setting]]
    return still_open


def run_paired(bench: Bench, points: Sequence[Point], protocol: Paired) -> None:
    """Append the pairs that a take lacks; make each durable before the next."""
    baselines = {point.setting: point for point in points if point.n == point.baseline}
    number = max([-1, *(visit.round for visit in bench.history)])
    for pair_count in range(protocol.rounds):
        pairs = pairs_of(bench.history)
        order = open_points(points, pairs, pair_count, protocol)
        random.Random(f"{protocol.seed}/{pair_count}").shuffle(order)  # noqa: S311 (an order, no secret)
        pending = [point for point in order if len(pairs[point.setting, point.n]) <= pair_count]
        for index, point in enumerate(pending):
            number += 1
            bench.keep(
                number, _time_pair(bench, baselines[point.setting], point, protocol), paired=True
            )
            bench.progress((pair_count + index / len(pending)) / protocol.rounds)
    bench.progress(1.0)


def _time_pair(bench: Bench, baseline: Point, point: Point, protocol: Paired) -> TimedPoints:
    """Time N between two visits to the baseline, or the baseline alone if N is the baseline."""
    forwards, warmup = protocol.baseline_forwards, protocol.warmup
    before = bench.visit(baseline, warmup, forwards)
    if point == baseline:
        return [(point, before)]
    samples = bench.visit(point, warmup)
    return [(baseline, (*before, *bench.visit(baseline, warmup, forwards))), (point, samples)]
