"""How each protocol times the points of a take.

Paper: one N after the other, smallest first (paper, app. C.1). Interleaved: every point once a
round, in a new order each round; a load spike or a drift then touches all N alike, where a sweep of
one N after the other would blame it on whichever N was running. Thinned: so, with large N in fewer
rounds. Adaptive: a cheap sweep, then pairs
of N and baseline where they can still matter. Paired: such pairs of every N, until its ratio is
known (`measure/pairs.py`). Which N the next paired round tests is a function of
what the log holds, so an interrupted take goes on as it would have. A paired round is a palindrome,
baseline first and last, so that a linear drift within it cancels.
"""

import math
import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from msgspec import Struct

from nearfree.core.boundary import Ratio, last_pass, ratios, repeated_looks
from nearfree.core.protocols import Adaptive, Interleaved, Paired, Paper, Thinned, Timing
from nearfree.core.setting import Setting
from nearfree.hardware.clocks import Sample
from nearfree.log.curves import clean_us
from nearfree.log.events import LatencyMeasured
from nearfree.measure.pairs import run_paired
from nearfree.measure.visits import Bench, Point
from nearfree.units import US_PER_S


def run_paper(bench: Bench, points: Sequence[Point], protocol: Paper) -> None:
    """Append the rounds that a take lacks, point by point, each durable before the next."""
    done = Counter((visit.setting, visit.n) for visit in bench.history)
    for place, point in enumerate(points):
        first = done[point.setting, point.n]
        for number in range(first, protocol.rounds):
            warmup = protocol.warmup if number == first else 0
            bench.keep(number, [(point, bench.visit(point, warmup))])
            bench.progress((place + (number + 1) / protocol.rounds) / len(points))


def rounds(
    points: Sequence[Point], protocol: Interleaved | Adaptive, done: int
) -> Iterator[tuple[int, list[Point]]]:
    """Yield the rounds that are still to do, each with its own order of points."""
    for number in range(done, protocol.rounds):
        order = list(points)
        if isinstance(protocol, Thinned):
            order = [each for each in points if protocol.takes_part(each.n, each.baseline, number)]
        random.Random(f"{protocol.seed}/{number}").shuffle(order)  # noqa: S311 (an order, no secret)
        yield number, order


def run_interleaved(
    bench: Bench,
    points: Sequence[Point],
    protocol: Interleaved | Adaptive,
    share: float = 1.0,
) -> None:
    """Append the rounds of a sweep that a take lacks, each durable before the next.

    `share` is the part of the take that the sweep is at most.
    """
    done = len({visit.round for visit in bench.history if not visit.paired})
    for number, order in rounds(points, protocol, done):
        bench.keep(number, [(point, bench.visit(point, protocol.warmup)) for point in order])
        bench.progress(share * (number + 1) / protocol.rounds)


def still_open(curve: Sequence[Ratio], baseline: int, protocol: Adaptive) -> list[int]:
    """Return the N that the next paired rounds should test, none if the boundary is known.

    N_max seems to lie at the largest N that passes. What is closer to it than the square root of
    `width` may stay open, which leaves an interval of `width` at most. So what is tested are the
    N above that which do not surely fail, farthest first, and two that seem to pass: the smallest
    one that would close the interval from below, and the largest.
    """
    limit = 1.0 + protocol.epsilon
    seems = last_pass(curve, limit, baseline)
    top = max(p.n for p in curve if p.n <= seems * math.sqrt(protocol.width))
    above = [p.n for p in curve if p.n > top and p.low <= limit]
    near = [p for p in curve if top <= p.n * protocol.width and p.n <= seems]
    below: list[int] = []
    if not any(p.high <= limit for p in near):
        passing = [p.n for p in near if p.value <= limit]
        below = sorted({*passing[:1], *passing[-1:]})
    return sorted([*below, *sorted(above, reverse=True)][: protocol.probes])


class Search(Struct):
    """What the log holds of one setting: latency by N and round, and what it cost."""

    baseline: int
    curve: dict[int, dict[int, float]]
    paired: list[int]
    """The paired rounds, in order."""
    spent_s: float = 0.0
    forwards: float = 0.0
    decided: tuple[int, list[int]] | None = None
    """The last look, by its paired rounds, and the N that it left open."""

    def add(self, visit: LatencyMeasured) -> None:
        """Take in a visit; one without a clean sample counts as spent alone, as in the tables."""
        wall_us = clean_us(visit)
        if wall_us is not None:
            self.curve.setdefault(visit.n, {})[visit.round] = wall_us
        if visit.paired and visit.round not in self.paired[-1:]:
            self.paired.append(visit.round)
        untimed = visit.protocol.warmup / visit.protocol.forwards
        self.forwards += len(visit.wall_us) * (1 + untimed)
        self.spent_s += sum(visit.wall_us) * (1 + untimed) * visit.forwards_a_sample / US_PER_S

    def probes(self, protocol: Adaptive) -> list[int]:
        """Return the N of the next paired round, as decided at the last look."""
        made = len(self.paired)
        if made >= protocol.looks[-1] or self._spent(protocol):
            return []
        if self.baseline not in self.curve:
            return []  # it never had a clean sample: there is nothing to compare with
        looked = max([0, *(look for look in protocol.looks if look <= made)])
        if self.decided is None or self.decided[0] != looked:
            later = set(self.paired[looked:])
            then = {
                n: {number: us for number, us in rounds.items() if number not in later}
                for n, rounds in self.curve.items()
            }
            curve = ratios(then, self.baseline, repeated_looks(protocol))
            self.decided = looked, still_open(curve, self.baseline, protocol)
        return self.decided[1]

    def _spent(self, protocol: Adaptive) -> bool:
        most = protocol.forwards_a_point * len(self.curve)
        return self.forwards >= most or self.spent_s >= protocol.seconds_max


def run_adaptive(bench: Bench, points: Sequence[Point], protocol: Adaptive) -> None:
    """Append the sweep, then paired rounds of every setting until all boundaries are known."""
    whole = protocol.rounds + protocol.looks[-1]
    run_interleaved(bench, points, protocol, share=protocol.rounds / whole)
    by_setting: dict[Setting, dict[int, Point]] = defaultdict(dict)
    for point in points:
        by_setting[point.setting][point.n] = point
    searches = {
        setting: Search(next(iter(at.values())).baseline, {}, [])
        for setting, at in by_setting.items()
    }
    added = 0
    while True:
        for visit in bench.history[added:]:
            searches[visit.setting].add(visit)
        added = len(bench.history)
        number = max(visit.round for visit in bench.history) + 1
        todo = {s: n for s, search in searches.items() if (n := search.probes(protocol))}
        if not todo:
            return
        for place, (setting, probes) in enumerate(todo.items()):
            at = by_setting[setting]
            chosen = [at[n] for n in (searches[setting].baseline, *probes)]
            bench.keep(number + place, _palindrome(bench, chosen, protocol.warmup), paired=True)
        made = min(len(searches[setting].paired) for setting in todo)
        bench.progress((protocol.rounds + made + 1) / whole)


def _palindrome(
    bench: Bench, chosen: Sequence[Point], warmup: int
) -> list[tuple[Point, tuple[Sample, ...]]]:
    there = [bench.visit(point, warmup) for point in chosen]
    back = [bench.visit(point, warmup) for point in reversed(chosen)]
    return [
        (point, (*first, *second))
        for point, first, second in zip(chosen, there, reversed(back), strict=True)
    ]


def run(bench: Bench, points: Sequence[Point], protocol: Timing) -> None:
    """Append the visits that a take lacks, by its protocol."""
    if isinstance(protocol, Paper):
        run_paper(bench, points, protocol)
    elif isinstance(protocol, Adaptive):
        run_adaptive(bench, points, protocol)
    elif isinstance(protocol, Paired):
        run_paired(bench, points, protocol)
    else:
        run_interleaved(bench, points, protocol)
