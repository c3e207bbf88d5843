"""What every MoE adapter holds: the experts' weights and the tokens' rows."""

from nearfree.kernels import Place
from nearfree.kernels.routing import share_touched
from nearfree.kernels.tensors import filled, torch_dtype, turns, weight
from nearfree.settings import Setting


class Experts:
    """Gated experts: weights [E, 2 d_ff, d_model] and [E, d_model, d_ff], in copies; rows by N."""

    def __init__(self, setting: Setting, positions: tuple[int, ...], place: Place) -> None:
        self._setting, self._place = setting, place
        experts, d_model, d_ff = setting.experts or 0, setting.d_model or 0, setting.d_ff or 0
        dtype = torch_dtype(setting)
        self._weights = turns(
            place,
            lambda copy: (
                weight(place, dtype, experts, 2 * d_ff, d_model, copy=copy),
                weight(place, dtype, experts, d_model, d_ff, copy=copy),
            ),
            share=share_touched(setting, min(positions)),
        )
        self.cache = self._weights.cache
        rows = filled(place, dtype, setting.batch * max(positions), d_model)
        self._inputs = {n: rows[: setting.batch * n] for n in positions}
