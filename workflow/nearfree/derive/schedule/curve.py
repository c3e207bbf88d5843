"""T(N) / T(1) at one batch size, as it is given: checked before anything is made of it."""

import math
from collections.abc import Mapping

from nearfree.derive.schedule.draft_lengths import is_number, is_whole, shown
from nearfree.errors import ConfigError

LARGEST_N = 2**31 - 1
LARGEST_RATIO = 1e9


def checked_curve(ratio: Mapping[int, float], of: str) -> dict[int, float]:
    """Return T(N) / T(1) by N, smallest N first.

    Parameters
    ----------
    ratio
        Latency relative to that of one position, by number of positions N.
    of
        What the curve is of, for messages.

    Raises
    ------
    ConfigError
        N = 1 is missing or not 1, an N is no whole number, or a ratio no positive number.
    """
    for n, value in ratio.items():
        if not is_whole(n, 1, LARGEST_N):
            raise ConfigError(
                f"the latency curve of {of} has {shown(n)} for N",
                remedy="Give N as whole numbers from 1",
            )
        if not is_number(value) or not 0 < value <= LARGEST_RATIO:
            raise ConfigError(
                f"the latency curve of {of} has {shown(value)} for T({n}) / T(1)",
                remedy=f"Give numbers above 0, up to {LARGEST_RATIO:g}",
            )
    if not math.isclose(ratio.get(1, math.nan), 1, rel_tol=1e-12):
        raise ConfigError(
            f"the latency curve of {of} does not begin with T(1) / T(1) = 1",
            remedy="Give every latency relative to that of one position, and N = 1 too",
        )
    return dict(sorted(ratio.items()))
