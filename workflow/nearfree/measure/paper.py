"""The paper's protocol: one N after the other, smallest first (paper, app. C.1)."""

from collections import Counter
from collections.abc import Sequence

from nearfree.core.protocols import Paper
from nearfree.measure.visits import Bench, Point


def run(bench: Bench, points: Sequence[Point], protocol: Paper) -> None:
    """Append the rounds that a take lacks, point by point, each durable before the next."""
    done = Counter((visit.setting, visit.n) for visit in bench.history)
    for place, point in enumerate(points):
        first = done[point.setting, point.n]
        for number in range(first, protocol.rounds):
            warmup = protocol.warmup if number == first else 0
            bench.keep(number, [(point, bench.visit(point, warmup))])
            bench.progress((place + (number + 1) / protocol.rounds) / len(points))
