"""One matrix product in torch: a projection, a router or an LM head of a model."""

from torch import Tensor
from torch.nn import functional

from nearfree.backends.adapters.kernel import ExecutionContext
from nearfree.backends.adapters.tensors import filled, torch_dtype, turns, weight
from nearfree.core.modules.gemm import gemm_work
from nearfree.core.setting import Setting
from nearfree.core.work import ExecutedWork


class TorchGemm:
    """[rows, d_model] by the weight [d_ff, d_model], copies of which take turns."""

    def __init__(
        self, setting: Setting, positions: tuple[int, ...], execution: ExecutionContext
    ) -> None:
        self._setting = setting
        d_model, d_ff = setting.d_model or 0, setting.d_ff or 0
        dtype = torch_dtype(setting)
        self._weights = turns(
            execution, lambda copy: weight(execution, dtype, d_ff, d_model, copy=copy)
        )
        self.cache = self._weights.cache
        rows = filled(execution, dtype, setting.batch * max(positions), d_model)
        self._inputs = {n: rows[: setting.batch * n] for n in positions}

    def forward(self, n: int) -> Tensor:
        """Run one forward over N positions a request: [batch * N, d_model] in, d_ff out."""
        return functional.linear(self._inputs[n], self._weights.next())

    def work(self, n: int) -> ExecutedWork:
        """Return the work of the product; torch tells of no padding."""
        return gemm_work(self._setting, n, "one product as torch is asked for it")
