"""Dense FFN in torch: two matmuls without activation, bias or gate (paper, app. C.2)."""

from torch import Tensor

from nearfree.events.types import ExecutedWork
from nearfree.kernels import Place
from nearfree.kernels.tensors import Turns, filled, torch_dtype, weight
from nearfree.settings import Setting
from nearfree.work import dense_work


class TorchDenseFfn:
    """An up and a down projection in the layout of a Linear layer, [out, in].

    A contiguous [in, out] weight is about twice slower on CPUs. Copies of the weights take turns,
    so that a forward reads them from memory as it would between a model's other layers.
    """

    def __init__(self, setting: Setting, positions: tuple[int, ...], place: Place) -> None:
        self._setting = setting
        d_model, d_ff = setting.d_model or 0, setting.d_ff or 0
        dtype = torch_dtype(setting)
        self._weights = Turns(
            [
                (
                    weight(place, dtype, d_ff, d_model, copy=copy, projection="up"),
                    weight(place, dtype, d_model, d_ff, copy=copy, projection="down"),
                )
                for copy in range(place.copies)
            ],
            place,
        )
        self.cache = self._weights.cache
        rows = filled(place, dtype, setting.batch * max(positions), d_model)
        self._inputs = {n: rows[: setting.batch * n] for n in positions}

    def forward(self, n: int) -> Tensor:
        """Run one forward over N positions a request: [batch * N, d_model] in and out."""
        up, down = self._weights.next()
        return (self._inputs[n] @ up.t()) @ down.t()

    def work(self, n: int) -> ExecutedWork:
        """Return the work of both projections; torch tells of no padding."""
        return dense_work(self._setting, n, "two products as torch is asked for them")
