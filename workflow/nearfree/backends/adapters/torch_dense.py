"""Dense products in torch: a single GEMM, or the products of a Dense FFN.

The GEMM is a model's projection, router or LM head. The FFN has the paper's two products (app. C.2)
or, gated with SiLU, a model's three.
"""

from torch import Tensor

from nearfree.backends.adapters.gates import silu
from nearfree.backends.adapters.kernel import ExecutionContext, Positions
from nearfree.backends.adapters.stored import PRODUCTS, matrices, stored
from nearfree.backends.adapters.tensors import filled, torch_dtype, turns
from nearfree.core.modules.dense_ffn import dense_work, gemm_work
from nearfree.core.setting import Setting
from nearfree.core.work import ExecutedWork


class _TorchDense:
    """Rows [rows, d_model] and weights in the layout of a Linear layer, [out, in].

    A contiguous [in, out] weight is about twice as slow on CPUs. Copies of the weights rotate, so
    that a forward reads them from memory as it would between a model's other layers.
    """

    def __init__(self, setting: Setting, positions: Positions, execution: ExecutionContext) -> None:
        self._setting, self._product = setting, PRODUCTS[setting.weights]
        self._weights = turns(
            execution,
            lambda copy: tuple(
                stored(setting, execution, out, width, copy=copy, projection=projection)
                for projection, out, width in matrices(setting)
            ),
        )
        self.cache = self._weights.cache
        size = setting.batch * max(positions), setting.d_model or 0
        rows = filled(execution, torch_dtype(setting), *size)
        self._inputs = {n: rows[: setting.batch * n] for n in positions}


class TorchGemm(_TorchDense):
    """Rows times one weight [d_ff, d_model]."""

    def forward(self, n: int) -> Tensor:
        """Run one forward over N positions per request: [batch * N, d_model] in, d_ff out."""
        (weight,) = self._weights.next()
        return self._product(self._inputs[n], weight)

    def work(self, n: int) -> ExecutedWork:
        """Return the work of the product; torch reports no padding."""
        return gemm_work(self._setting, n, "one product as torch is asked for it")


class TorchDenseFfn(_TorchDense):
    """An up and a down projection; gate and up projection are one product.

    Without a gate there is no activation either.
    """

    def forward(self, n: int) -> Tensor:
        """Run one forward over N positions per request: [batch * N, d_model] in and out."""
        up, down = self._weights.next()
        hidden = self._product(self._inputs[n], up)
        return self._product(silu(hidden) if self._setting.gated else hidden, down)

    def work(self, n: int) -> ExecutedWork:
        """Return the work of the projections; torch reports no padding."""
        return dense_work(self._setting, n, "products as torch is asked for them")
