"""The interleaved protocol: every point once a round, in a new order each round.

A load spike or a drift then touches all N alike, where a sweep of one N after the other would
blame it on whichever N was running.
"""

import random
from collections.abc import Iterator, Sequence

from nearfree.core.protocols import Adaptive, Interleaved
from nearfree.measure.visits import Bench, Point


def rounds(
    points: Sequence[Point], protocol: Interleaved | Adaptive, done: int
) -> Iterator[tuple[int, list[Point]]]:
    """Yield the rounds that are still to do, each with its own order of points."""
    for number in range(done, protocol.rounds):
        order = list(points)
        random.Random(f"{protocol.seed}/{number}").shuffle(order)  # noqa: S311 (an order, no secret)
        yield number, order


def run(
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
