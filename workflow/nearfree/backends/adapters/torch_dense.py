"""Dense products in torch: a single GEMM, or the products of a Dense FFN.

The GEMM is a model's projection, router or LM head. The FFN has the paper's two products (app. C.2)
or, gated with SiLU, a model's three.
"""

from torch import Tensor
from torch.nn import functional

from nearfree.backends.adapters.kernel import ExecutionContext
from nearfree.backends.adapters.stored import PRODUCTS, stored
from nearfree.backends.adapters.tensors import filled, torch_dtype, turns
from nearfree.core.modules.dense_ffn import dense_work, gemm_work
from nearfree.core.setting import Setting
from nearfree.core.work import ExecutedWork


class TorchGemm:
    """Rows [rows, d_model] times a weight [d_ff, d_model], of which copies rotate."""

    def __init__(
        self, setting: Setting, positions: tuple[int, ...], execution: ExecutionContext
    ) -> None:
        self._setting = setting
        d_model, d_ff = setting.d_model or 0, setting.d_ff or 0
        self._product = PRODUCTS[setting.weights]
        self._weights = turns(
            execution, lambda copy: stored(setting, execution, d_ff, d_model, copy=copy)
        )
        self.cache = self._weights.cache
        rows = filled(execution, torch_dtype(setting), setting.batch * max(positions), d_model)
        self._inputs = {n: rows[: setting.batch * n] for n in positions}

    def forward(self, n: int) -> Tensor:
        """Run one forward over N positions per request: [batch * N, d_model] in, d_ff out."""
        return self._product(self._inputs[n], self._weights.next())

    def work(self, n: int) -> ExecutedWork:
        """Return the work of the product; torch reports no padding."""
        return gemm_work(self._setting, n, "one product as torch is asked for it")


class TorchDenseFfn:
    """An up and a down projection in the layout of a Linear layer, [out, in].

    Without a gate there is no activation either; gate and up projection are one product.
    A contiguous [in, out] weight is about twice as slow on CPUs. Copies of the weights rotate, so
    that a forward reads them from memory as it would between a model's other layers.
    """

    def __init__(
        self, setting: Setting, positions: tuple[int, ...], execution: ExecutionContext
    ) -> None:
        self._setting = setting
        d_model, d_ff = setting.d_model or 0, setting.d_ff or 0
        self._product = PRODUCTS[setting.weights]
        up = 2 * d_ff if setting.gated else d_ff
        self._weights = turns(
            execution,
            lambda copy: (
                stored(setting, execution, up, d_model, copy=copy, projection="up"),
                stored(setting, execution, d_model, d_ff, copy=copy, projection="down"),
            ),
        )
        self.cache = self._weights.cache
        rows = filled(execution, torch_dtype(setting), setting.batch * max(positions), d_model)
        self._inputs = {n: rows[: setting.batch * n] for n in positions}

    def forward(self, n: int) -> Tensor:
        """Run one forward over N positions per request: [batch * N, d_model] in and out."""
        up, down = self._weights.next()
        hidden = self._product(self._inputs[n], up)
        if self._setting.gated:
            gate, up_part = hidden.chunk(2, -1)
            hidden = functional.silu(gate) * up_part
        return self._product(hidden, down)

    def work(self, n: int) -> ExecutedWork:
        """Return the work of the projections; torch reports no padding."""
        return dense_work(self._setting, n, "products as torch is asked for them")
