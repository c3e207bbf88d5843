"""Where a measured curve of an engine rises by more than the work model says, and no rule says why.

Named is an N at which some matrix takes another path or another number of passes than before.
"""

from collections.abc import Collection, Mapping
from itertools import pairwise

from msgspec import Struct

TOLERATED = 0.15
"""Of T(1): by what T may rise more than the work model's before the rise is listed."""


class UnnamedStep(Struct, frozen=True, kw_only=True):
    """A rise of T to N that is above the model's by a share of T(1), and that no rule names.

    `since` is the N of the grid that it rises from.
    """

    n: int
    excess: float
    since: int


def unnamed_steps(
    curve: Mapping[int, float], model: Mapping[int, float], steps: Collection[int]
) -> list[UnnamedStep]:
    """Return every N to which T rises by more than the model's, by over 15 % of T at the least N.

    Parameters
    ----------
    curve, model
        T(N) by N, measured and as the work model says it, in one unit; N that one of them lacks are
        left out.
    steps
        The N at which a rule names a step: a rise has that of any N past the one before.
    """
    grid = sorted({*curve} & {*model})
    rises = [
        UnnamedStep(n=n, excess=_excess(curve, model, before, n) / curve[grid[0]], since=before)
        for before, n in pairwise(grid)
        if not any(before < step <= n for step in steps)
    ]
    return [rise for rise in rises if rise.excess > TOLERATED]


def _excess(curve: Mapping[int, float], model: Mapping[int, float], before: int, n: int) -> float:
    return curve[n] - curve[before] - (model[n] - model[before])
