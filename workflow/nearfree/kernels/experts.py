"""What every MoE adapter holds: the experts' weights and the tokens' rows.

Copies of the weights that take turns are windows over more experts than E. Where as many take turns
as fill a cache, each window begins behind the experts that the one before it reads, so that skewed
routing, which reads k of E experts, needs k more experts a copy and not E.
"""

from typing import NamedTuple

from nearfree.kernels import Place
from nearfree.kernels.routing import share_touched
from nearfree.kernels.tensors import Turns, copies_for, filled, torch_dtype, weight
from nearfree.settings import Setting
from nearfree.units import BYTES_PER_ELEMENT


class Windows(NamedTuple):
    """How many windows of E experts take turns, and by how many experts each is behind the last."""

    copies: int
    step: int
    experts: int
    """Experts that are held in all."""


def windows(setting: Setting, positions: tuple[int, ...], place: Place) -> Windows:
    """Return the windows over a setting's experts."""
    experts, share = setting.experts or 0, share_touched(setting, min(positions))
    count, step = place.copies, experts
    if not count:
        step = round(share * experts)
        matrices = 3 * experts * (setting.d_model or 0) * (setting.d_ff or 0)
        count = copies_for(matrices * BYTES_PER_ELEMENT[setting.dtype] * share, place.cache_bytes)
    return Windows(count, step, experts + (count - 1) * step)


class Experts:
    """Gated experts: weights [E, 2 d_ff, d_model] and [E, d_model, d_ff], in copies; rows by N."""

    def __init__(self, setting: Setting, positions: tuple[int, ...], place: Place) -> None:
        self._setting, self._place = setting, place
        experts, d_model, d_ff = setting.experts or 0, setting.d_model or 0, setting.d_ff or 0
        dtype, held = torch_dtype(setting), windows(setting, positions, place)
        gate_up = weight(place, dtype, held.experts, 2 * d_ff, d_model, copy=0)
        down = weight(place, dtype, held.experts, d_model, d_ff, copy=0)
        starts = range(0, held.copies * held.step, held.step)
        self._weights = Turns(
            [(gate_up[at : at + experts], down[at : at + experts]) for at in starts],
            place,
            share=share_touched(setting, min(positions)),
        )
        self.cache = self._weights.cache
        rows = filled(place, dtype, setting.batch * max(positions), d_model)
        self._inputs = {n: rows[: setting.batch * n] for n in positions}
