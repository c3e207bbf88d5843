"""Siblings: GPUs whose kernels' curves predict each other's.

A sibling has the same architecture and a similar balance. A chip may be cut down to a fraction of
its compute beside the same memory; its curves then rise where those of the full chip are flat.
Compute that takes 1 / r of the memory's time adds a share r^-p / p to a curve. With p of 2.3 and
more, as on Hopper, that is 2 % or less at r = 4, which is within the curves' own noise.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from nearfree.hardware.platforms import Platform

_MINOR_COMPATIBLE_SM = 100
"""From compute capability 10.0 on the minor versions share their features (`sm_100f`)."""
_BALANCE_RATIO = 4.0
"""Largest ratio of two siblings' balances: as far as a curve is kept beyond its boundary."""

_TESTED_RATIO = 1.5
"""Largest ratio of two balances within which public curves of siblings, H100 and H200 at 1.43, say
that T of few rows is carried by the form."""


class Chip(NamedTuple):
    """Compute capability, 90 for 9.0, and rho of 16 bits in FLOP/byte: they decide siblings."""

    sm: int | None
    balance: float | None


def chips(platforms: Mapping[str, Platform]) -> dict[str, Chip]:
    """Return the chips of platforms by platform name."""
    return {
        name: Chip(platform.sm, platform.balance("bfloat16"))
        for name, platform in platforms.items()
    }


def siblings(one: Chip, other: Chip) -> bool:
    """Return whether two chips are siblings."""
    low, high = sorted(chip.balance or np.nan for chip in (one, other))
    return high <= _BALANCE_RATIO * low and alike_built(one, other)


def carried_ratio(one: Chip, sibling: Chip) -> float:
    """Return a chip's balance over a sibling's where that is less than was tested, else 1."""
    ratio = (one.balance or np.nan) / (sibling.balance or np.nan)
    return ratio if ratio * _TESTED_RATIO < 1.0 else 1.0


def alike_built(one: Chip, other: Chip) -> bool:
    """Return whether two chips have the same architecture."""
    first, second = _architecture(one.sm), _architecture(other.sm)
    return first is not None and first == second


def _architecture(sm: int | None) -> int | None:
    """Return the compute capability, rounded to its major version from 10.0 on."""
    return sm // 10 * 10 if sm is not None and sm >= _MINOR_COMPATIBLE_SM else sm
