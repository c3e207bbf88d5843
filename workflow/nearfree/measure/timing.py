"""What runs a take's points, by its protocol."""

from collections.abc import Sequence

from nearfree.core.protocols import Adaptive, Paper, Timing
from nearfree.measure import adaptive, interleaved, paper
from nearfree.measure.visits import Bench, Point


def run(bench: Bench, every: Sequence[Point], protocol: Timing) -> None:
    """Append what a take lacks, by its protocol."""
    if isinstance(protocol, Paper):
        paper.run(bench, every, protocol)
    elif isinstance(protocol, Adaptive):
        adaptive.run(bench, every, protocol)
    else:
        interleaved.run(bench, every, protocol)
