"""Dense FFN in torch: two matmuls without activation, bias or gate (paper, app. C.2)."""

from typing import Literal

import torch

from nearfree.errors import EvidenceError
from nearfree.settings import Setting

_SCALE = 0.02


class TorchDenseFfn:
    """An up and a down projection in the layout of a Linear layer, [out, in].

    A contiguous [in, out] weight is about twice slower on CPUs. Copies of the weights take turns,
    so that a forward reads them from memory as it would between a model's other layers.
    """

    def __init__(
        self, setting: Setting, positions: tuple[int, ...], *, copies: int, cache_bytes: int
    ) -> None:
        d_model, d_ff = setting.d_model or 0, setting.d_ff or 0
        dtype = getattr(torch, setting.dtype, None)
        if dtype is None:
            raise EvidenceError(
                f"torch.matmul has no dtype {setting.dtype}", remedy="Choose bfloat16 or float32"
            )
        try:
            self._weights = [
                (_weight(d_ff, d_model, dtype), _weight(d_model, d_ff, dtype))
                for _ in range(copies)
            ]
            self._inputs = {n: torch.randn(setting.batch * n, d_model).to(dtype) for n in positions}
        except (RuntimeError, MemoryError) as error:  # torch has no class for a lack of memory
            raise EvidenceError(
                f"{copies} copies of {d_model} x {d_ff} weights cannot be had: "
                f"{str(error).splitlines()[0]}",
                remedy="Choose smaller widths, or fewer copies or positions",
            ) from error
        self._turn = 0
        others = (copies - 1) * sum(weight.nbytes for weight in self._weights[0])
        self.cache: Literal["cold", "warm"] = "cold" if others >= cache_bytes else "warm"

    def forward(self, n: int) -> None:
        """Run one forward over N positions a request: [batch * N, d_model] in and out."""
        self._run(n)

    def _run(self, n: int) -> torch.Tensor:
        up, down = self._weights[self._turn]
        self._turn = (self._turn + 1) % len(self._weights)
        return (self._inputs[n] @ up.t()) @ down.t()

    def check(self) -> None:
        """Raise EvidenceError unless every N gives finite output."""
        for n in self._inputs:
            if not bool(torch.isfinite(self._run(n)).all()):
                raise EvidenceError(
                    f"the forward over N={n} gives output that is not finite",
                    remedy="Choose another dtype: this one overflows here",
                )


def _weight(rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
    return (torch.randn(rows, columns) * _SCALE).to(dtype)
