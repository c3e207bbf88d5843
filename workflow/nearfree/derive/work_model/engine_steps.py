"""Where a measured curve of an engine rises by more than the work model says, and no rule says why.

Named is an N at which some matrix takes another path or another number of passes than before.
"""

from collections.abc import Collection, Mapping
from itertools import pairwise
from math import hypot

from msgspec import Struct

TOLERATED = 0.15
"""Of T(1): by what T may rise more than the work model's before the rise is listed."""


class UnnamedStep(Struct, frozen=True, kw_only=True):
    """A rise of T to N that is above the model's by a share of T(1), and that no rule names.

    `since` is the N of the grid that it rises from; `sure` says whether it is above that share
    even at the lower end of its interval.
    """

    n: int
    excess: float
    since: int
    sure: bool = True


def unnamed_steps(
    curve: Mapping[int, float],
    model: Mapping[int, float],
    steps: Collection[int],
    half_widths: Mapping[int, float] | None = None,
) -> list[UnnamedStep]:
    """Return every N to which T rises by more than the model's, by over 15 % of T at the least N.

    Parameters
    ----------
    curve, model
        T(N) by N, measured and as the work model says it, in one unit; N that one of them lacks are
        left out.
    steps
        The N at which a rule names a step: a rise has that of any N past the one before.
    half_widths
        Of the intervals of T(N), by N, in the same unit; those of two N are taken for independent.
        Without them every rise is sure.
    """
    grid, halves = sorted({*curve} & {*model}), half_widths or {}
    found = []
    for before, n in pairwise(grid):
        excess = _excess(curve, model, before, n) / curve[grid[0]]
        if excess <= TOLERATED or any(before < step <= n for step in steps):
            continue
        half = hypot(halves.get(before, 0.0), halves.get(n, 0.0)) / curve[grid[0]]
        sure = excess - half > TOLERATED
        found.append(UnnamedStep(n=n, excess=excess, since=before, sure=sure))
    return found


def _excess(curve: Mapping[int, float], model: Mapping[int, float], before: int, n: int) -> float:
    return curve[n] - curve[before] - (model[n] - model[before])
