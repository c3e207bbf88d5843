"""How each protocol times the points of a take.

Paper: one N after the other, smallest first (paper, app. C.1).
Interleaved: every point once per round, in a new random order each round. A load spike or a drift
then affects all N alike; in a sweep of one N after the other it would affect one N alone.
Thinned: interleaved, with large N in fewer rounds.
Adaptive: a cheap sweep, then paired rounds of the N that can still move the boundary.
Paired: pairs of every N with its baseline, until its ratio is known (`measure/pairs.py`).

Which N the next paired round tests depends on the log alone, so an interrupted take continues as if
it had not been interrupted. A paired round is a palindrome, baseline first and last, so that a
linear drift within it cancels.
"""

import math
import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from msgspec import Struct

from nearfree.core.boundary import Ratio, interval_of, last_pass, ratios
from nearfree.core.protocols import Adaptive, Interleaved, Paired, Paper, Timing
from nearfree.core.setting import Setting
from nearfree.hardware.clocks import Sample
from nearfree.log.curves import clean_us
from nearfree.log.events import LatencyMeasured
from nearfree.measure.pairs import run_paired
from nearfree.measure.visits import Bench, Point
from nearfree.units import US_PER_S


def run_paper(bench: Bench, points: Sequence[Point], protocol: Paper) -> None:
    """Append the rounds that a take lacks, point by point; make each durable before the next."""
    visit_counts = Counter((visit.setting, visit.n) for visit in bench.history)
    for index, point in enumerate(points):
        first_round = visit_counts[point.setting, point.n]
        for number in range(first_round, protocol.rounds):
            warmup = protocol.warmup if number == first_round else 0
            bench.keep(number, [(point, bench.visit(point, warmup))])
            bench.progress((index + (number + 1) / protocol.rounds) / len(points))


def rounds(
    points: Sequence[Point], protocol: Interleaved | Adaptive, first_round: int
) -> Iterator[tuple[int, list[Point]]]:
    """Yield the number of each remaining round and its random order of points."""
    for number in range(first_round, protocol.rounds):
        order = [point for point in points if protocol.takes_part(point.n, point.baseline, number)]
        random.Random(f"{protocol.seed}/{number}").shuffle(order)  # noqa: S311 (an order, no secret)
        yield number, order


def run_interleaved(
    bench: Bench,
    points: Sequence[Point],
    protocol: Interleaved | Adaptive,
    share: float = 1.0,
) -> None:
    """Append the rounds of a sweep that a take lacks; make each durable before the next.

    `share` is the largest part of the take that the sweep can be, for the progress.
    """
    done_rounds = len({visit.round for visit in bench.history if not visit.paired})
    for number, order in rounds(points, protocol, done_rounds):
        bench.keep(number, [(point, bench.visit(point, protocol.warmup)) for point in order])
        bench.progress(share * (number + 1) / protocol.rounds)


def open_positions(curve: Sequence[Ratio], baseline: int, protocol: Adaptive) -> list[int]:
    """Return the N that the next paired rounds test; none if the boundary is known.

    The apparent N_max is the largest N whose ratio passes. An interval of the factor `width` around
    it is narrow enough, so N within sqrt(width) of it need no test. Tested are the N above
    apparent N_max * sqrt(width) that do not certainly fail, largest first. If no N just below
    certainly passes, two N that appear to pass are tested as well: the smallest that would close
    the interval from below, and the largest.
    """
    limit = 1.0 + protocol.epsilon
    apparent_n_max = last_pass(curve, limit, baseline)
    lowest_open_n = max(p.n for p in curve if p.n <= apparent_n_max * math.sqrt(protocol.width))
    above = [p.n for p in curve if p.n > lowest_open_n and p.low <= limit]
    near = [p for p in curve if lowest_open_n <= p.n * protocol.width and p.n <= apparent_n_max]
    below: list[int] = []
    if not any(p.high <= limit for p in near):
        passing = [p.n for p in near if p.value <= limit]
        below = sorted({*passing[:1], *passing[-1:]})
    return sorted([*below, *sorted(above, reverse=True)][: protocol.probes])


class Search(Struct):
    """The adaptive protocol's state for one setting: latency by N and round, and cost so far."""

    baseline: int
    curve: dict[int, dict[int, float]]
    paired: list[int]
    """The paired rounds, in order."""
    spent_s: float = 0.0
    forwards: float = 0.0
    decided: tuple[int, list[int]] | None = None
    """Number of paired rounds at the last look, and the N to test that it chose."""

    def add(self, visit: LatencyMeasured) -> None:
        """Add a visit; without a clean sample it adds to the cost alone, as in the tables."""
        wall_us = clean_us(visit)
        if wall_us is not None:
            self.curve.setdefault(visit.n, {})[visit.round] = wall_us
        if visit.paired and visit.round not in self.paired[-1:]:
            self.paired.append(visit.round)
        untimed = visit.protocol.warmup / visit.protocol.forwards
        self.forwards += len(visit.wall_us) * (1 + untimed)
        self.spent_s += sum(visit.wall_us) * (1 + untimed) * visit.forwards_a_sample / US_PER_S

    def probes(self, protocol: Adaptive) -> list[int]:
        """Return the N of the next paired round, as chosen at the last look."""
        paired_count = len(self.paired)
        forwards_max = protocol.forwards_a_point * len(self.curve)
        exhausted = self.forwards >= forwards_max or self.spent_s >= protocol.seconds_max
        if paired_count >= protocol.looks[-1] or exhausted:
            return []
        if self.baseline not in self.curve:
            return []  # the baseline has no clean sample, so there are no ratios
        last_look = max([0, *(look for look in protocol.looks if look <= paired_count)])
        if self.decided is None or self.decided[0] != last_look:
            later_rounds = set(self.paired[last_look:])
            seen = {
                n: {number: us for number, us in rounds.items() if number not in later_rounds}
                for n, rounds in self.curve.items()
            }
            curve = ratios(seen, self.baseline, interval_of(protocol))
            self.decided = last_look, open_positions(curve, self.baseline, protocol)
        return self.decided[1]


def run_adaptive(bench: Bench, points: Sequence[Point], protocol: Adaptive) -> None:
    """Append the sweep, then paired rounds for each setting until its boundary is known."""
    rounds_max = protocol.rounds + protocol.looks[-1]
    run_interleaved(bench, points, protocol, share=protocol.rounds / rounds_max)
    by_setting: dict[Setting, dict[int, Point]] = defaultdict(dict)
    for point in points:
        by_setting[point.setting][point.n] = point
    searches = {
        setting: Search(next(iter(points_by_n.values())).baseline, {}, [])
        for setting, points_by_n in by_setting.items()
    }
    seen_visits = 0
    while True:
        for visit in bench.history[seen_visits:]:
            searches[visit.setting].add(visit)
        seen_visits = len(bench.history)
        number = max(visit.round for visit in bench.history) + 1
        pending = {s: n for s, search in searches.items() if (n := search.probes(protocol))}
        if not pending:
            return
        for offset, (setting, probes) in enumerate(pending.items()):
            points_by_n = by_setting[setting]
            chosen = [points_by_n[n] for n in (searches[setting].baseline, *probes)]
            bench.keep(number + offset, _palindrome(bench, chosen, protocol.warmup), paired=True)
        paired_count = min(len(searches[setting].paired) for setting in pending)
        bench.progress((protocol.rounds + paired_count + 1) / rounds_max)


def _palindrome(
    bench: Bench, chosen: Sequence[Point], warmup: int
) -> list[tuple[Point, tuple[Sample, ...]]]:
    forth = [bench.visit(point, warmup) for point in chosen]
    back = [bench.visit(point, warmup) for point in reversed(chosen)]
    return [
        (point, (*first, *second))
        for point, first, second in zip(chosen, forth, reversed(back), strict=True)
    ]


def run(bench: Bench, points: Sequence[Point], protocol: Timing) -> None:
    """Append the visits that a take lacks, as its protocol requires."""
    if isinstance(protocol, Paper):
        run_paper(bench, points, protocol)
    elif isinstance(protocol, Adaptive):
        run_adaptive(bench, points, protocol)
    elif isinstance(protocol, Paired):
        run_paired(bench, points, protocol)
    else:
        run_interleaved(bench, points, protocol)
