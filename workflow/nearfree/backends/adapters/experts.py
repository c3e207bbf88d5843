"""What every MoE adapter holds: the experts' weights and the tokens' rows.

Copies of the weights that take turns are windows over more experts than E. Where they are to fill a
cache they lie on a ring: each window begins E experts behind the one before it, so that what a
forward reads was not read by the last ones, however many of its experts it touches.
"""

import math
from typing import NamedTuple

from nearfree.backends.adapters.kernel import ExecutionContext
from nearfree.backends.adapters.routing import share_touched
from nearfree.backends.adapters.tensors import TURNING, Turns, filled, torch_dtype, weight
from nearfree.core.setting import Setting
from nearfree.units import BYTES_PER_ELEMENT


class Windows(NamedTuple):
    """Where the windows of E experts begin, in turn, and how many experts are held in all."""

    starts: tuple[int, ...]
    experts: int


def windows(setting: Setting, positions: tuple[int, ...], execution: ExecutionContext) -> Windows:
    """Return the windows over a setting's experts.

    The ring holds a cache's worth of experts, or TURNING, and as many more as the smallest N
    touches: so after each round the windows begin elsewhere, until every expert was first in one.
    """
    experts = setting.experts or 0
    if execution.copies:
        return Windows(
            tuple(range(0, execution.copies * experts, experts)), execution.copies * experts
        )
    touched = round(share_touched(setting, min(positions)) * experts)
    matrices = 3 * experts * (setting.d_model or 0) * (setting.d_ff or 0)
    size = matrices * BYTES_PER_ELEMENT[setting.dtype]
    ring = math.ceil(min(execution.cache_bytes, TURNING) / size) * experts + touched
    starts = tuple(turn * experts % ring for turn in range(ring // touched))
    return Windows(starts, ring + experts)


class Experts:
    """Gated experts: weights [E, 2 d_ff, d_model] and [E, d_model, d_ff], in copies; rows by N."""

    def __init__(
        self, setting: Setting, positions: tuple[int, ...], execution: ExecutionContext
    ) -> None:
        self._setting, self._execution = setting, execution
        experts, d_model, d_ff = setting.experts or 0, setting.d_model or 0, setting.d_ff or 0
        dtype, held = torch_dtype(setting), windows(setting, positions, execution)
        gate_up = weight(execution, dtype, held.experts, 2 * d_ff, d_model, copy=0)
        down = weight(execution, dtype, held.experts, d_model, d_ff, copy=0)
        self._weights = Turns(
            [(gate_up[at : at + experts], down[at : at + experts]) for at in held.starts],
            execution,
            share=share_touched(setting, min(positions)),
        )
        self.cache = self._weights.cache
        rows = filled(execution, dtype, setting.batch * max(positions), d_model)
        self._inputs = {n: rows[: setting.batch * n] for n in positions}
