"""MoE FFN in torch: experts in padded row blocks, and the same without padding as a control.

Fused MoE kernels pad each expert's tokens to a block. Here each block is one product per
projection, so padding costs what it costs there; `torch.nn.functional.grouped_mm` over the bare
rows is the control that shows what padding does to the boundary.
"""

import torch
from torch import Tensor
from torch.nn import functional

from nearfree.events.types import ExecutedWork
from nearfree.kernels import Place
from nearfree.kernels.experts import Experts
from nearfree.kernels.routing import Aligned
from nearfree.settings import Setting
from nearfree.work import moe_work, routed_pairs

_SMALL_BLOCK, _LARGE_BLOCK = 16, 64


def default_block(tokens: int, experts: int) -> int:
    """Return the rows of a block: 16 up to E tokens, then 64, as vLLM 0.9.1 without tuning."""
    return _SMALL_BLOCK if tokens <= experts else _LARGE_BLOCK


class _TorchMoe(Experts):
    """Gated experts with SiLU."""

    def __init__(self, setting: Setting, positions: tuple[int, ...], place: Place) -> None:
        super().__init__(setting, positions, place)
        self._aligned = {n: Aligned(setting, n, self._rows(n), place.device) for n in positions}

    def _rows(self, n: int) -> int:
        raise NotImplementedError

    def _experts(self, rows: Tensor, aligned: Aligned, gate_up: Tensor, down: Tensor) -> Tensor:
        raise NotImplementedError

    def forward(self, n: int) -> Tensor:
        """Run one forward, [batch * N, d_model] in and out; each token's experts weigh 1 / k."""
        gate_up, down = self._weights.next()
        aligned = self._aligned[n]
        out = self._experts(self._inputs[n][aligned.tokens], aligned, gate_up, down)
        return out[aligned.places].mean(1)


class TorchPaddedMoe(_TorchMoe):
    """Every block of every expert is computed whole, padding included."""

    def _rows(self, n: int) -> int:
        setting = self._setting
        return setting.block_size_m or default_block(setting.batch * n, setting.experts or 0)

    def _experts(self, rows: Tensor, aligned: Aligned, gate_up: Tensor, down: Tensor) -> Tensor:
        size = len(rows) // len(aligned.blocks)
        out = torch.empty_like(rows)
        for expert, first in aligned.blocks:
            block = slice(first, first + size)
            gate, up = (rows[block] @ gate_up[expert].t()).chunk(2, -1)
            torch.mm(functional.silu(gate) * up, down[expert].t(), out=out[block])
        return out

    def work(self, n: int) -> ExecutedWork:
        """Return the work with every block's padding."""
        pairs = routed_pairs(self._setting, n)
        basis = "block_size_m of the setting" if self._setting.block_size_m else "16 to E, then 64"
        return moe_work(self._setting, pairs, basis, block_rows=self._rows(n))


class TorchGroupedMoe(_TorchMoe):
    """The control: each expert multiplies its own rows and no others."""

    def _rows(self, n: int) -> int:  # noqa: ARG002 (the same at every N)
        return 1

    def _experts(self, rows: Tensor, aligned: Aligned, gate_up: Tensor, down: Tensor) -> Tensor:
        hidden = functional.grouped_mm(rows, gate_up.transpose(1, 2), offs=aligned.ends)
        gate, up = hidden.chunk(2, -1)
        return functional.grouped_mm(
            functional.silu(gate) * up, down.transpose(1, 2), offs=aligned.ends
        )

    def work(self, n: int) -> ExecutedWork:
        """Return the work of the rows that there are."""
        return moe_work(self._setting, routed_pairs(self._setting, n), "grouped_mm pads no row")
