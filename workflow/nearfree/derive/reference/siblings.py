"""Siblings: GPUs whose kernels' curves speak of each other's.

A sibling is of the same architecture, and its balance is alike. A chip may be cut down to a
fraction of its compute beside the same memory; its curves then turn where those of the whole chip
are flat: of a compute that is 1 / r of the memory's time a curve shows a share r^-p / p. With p of
2.3 and more, as on Hopper, that is 2 % or less at r = 4, which the curves' own noise hides.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from nearfree.hardware.platforms import Platform

_FAMILY_SPECIFIC = 100
"""From compute capability 10.0 on the minor versions share their features (`sm_100f`)."""
_ALIKE = 4.0
"""How many times the balance of a sibling may be that of a GPU, or that its own: as far as a curve
is kept beyond its boundary."""


class Chip(NamedTuple):
    """What tells siblings: compute capability, 90 for 9.0, and rho of 16 bits in FLOP/byte."""

    sm: int | None
    balance: float | None


def chips(platforms: Mapping[str, Platform]) -> dict[str, Chip]:
    """Return the chips of platforms by their names."""
    return {name: Chip(sheet.sm, sheet.balance("bfloat16")) for name, sheet in platforms.items()}


def siblings(one: Chip, other: Chip) -> bool:
    """Return whether what is known of one chip's kernels speaks of the other's."""
    low, high = sorted(each.balance or np.nan for each in (one, other))
    return high <= _ALIKE * low and alike_built(one, other)


def alike_built(one: Chip, other: Chip) -> bool:
    """Return whether two chips are of one architecture."""
    these, those = _kin(one.sm), _kin(other.sm)
    return these is not None and these == those


def _kin(sm: int | None) -> int | None:
    """Return what siblings share: the compute capability, of 10.0 and later its major version."""
    return sm // 10 * 10 if sm is not None and sm >= _FAMILY_SPECIFIC else sm
