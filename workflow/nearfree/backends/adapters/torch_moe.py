"""MoE FFN in torch: experts in padded row blocks, and the same without padding as a control.

Fused MoE kernels pad each expert's tokens to a block. Here each block is one product per
projection, so padding costs what it costs there; `torch.nn.functional.grouped_mm` over the bare
rows is the control that shows what padding does to the boundary.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from nearfree.backends.adapters.experts import Aligned, Experts, expert_ids
from nearfree.backends.adapters.gates import Gate, silu
from nearfree.backends.adapters.kernel import ExecutionContext
from nearfree.backends.records import BY_NAME, load
from nearfree.core.modules.moe_ffn import moe_work
from nearfree.core.modules.routing import routed_pairs
from nearfree.core.setting import Setting
from nearfree.core.work import ExecutedWork

_SMALL_BLOCK, _LARGE_BLOCK = 16, 64


def default_block(tokens: int, experts: int) -> int:
    """Return the rows of a block: 16 up to E tokens, then 64, as vLLM 0.9.1 without tuning."""
    return _SMALL_BLOCK if tokens <= experts else _LARGE_BLOCK


class Inner(NamedTuple):
    """What experts do between their products, and what they add to both: biases [E, out]."""

    gate: Gate = silu
    gate_up_bias: Tensor | None = None
    down_bias: Tensor | None = None


PLAIN = Inner()


class Core(NamedTuple):
    """How the rows of experts are multiplied, and to what they are padded for it.

    `block_rows` gives the rows of a block by tokens and E, None where none is padded; `multiply`
    takes rows, how they are aligned, the weights of gate and up, and of down, and what is between.
    """

    block_rows: Callable[[int, int], int | None]
    multiply: Callable[[Tensor, Aligned, Tensor, Tensor, Inner], Tensor]


def padded(rows: Tensor, aligned: Aligned, gate_up: Tensor, down: Tensor, inner: Inner) -> Tensor:
    """Return the rows of all experts, each block computed whole, padding included."""
    size = len(rows) // len(aligned.blocks)
    out = torch.empty_like(rows)
    for expert, first in aligned.blocks:
        block = slice(first, first + size)
        hidden = rows[block] @ gate_up[expert].t()
        if inner.gate_up_bias is not None:
            hidden += inner.gate_up_bias[expert]
        torch.mm(inner.gate(hidden), down[expert].t(), out=out[block])
        if inner.down_bias is not None:
            out[block] += inner.down_bias[expert]
    return out


def grouped(rows: Tensor, aligned: Aligned, gate_up: Tensor, down: Tensor, inner: Inner) -> Tensor:
    """Return the rows of all experts, each multiplying its own and no others."""
    hidden = functional.grouped_mm(rows, gate_up.transpose(1, 2), offs=aligned.ends)
    if inner.gate_up_bias is not None:
        hidden += inner.gate_up_bias[_experts(aligned, len(rows))]
    out = functional.grouped_mm(inner.gate(hidden), down.transpose(1, 2), offs=aligned.ends)
    if inner.down_bias is not None:
        out += inner.down_bias[_experts(aligned, len(rows))]
    return out


def _experts(aligned: Aligned, rows: int) -> Tensor:
    """Return the expert of each row."""
    numbers = torch.arange(rows, dtype=aligned.ends.dtype, device=aligned.ends.device)
    return torch.searchsorted(aligned.ends, numbers, right=True)


PADDED = Core(default_block, padded)
GROUPED = Core(lambda tokens, experts: None, grouped)  # noqa: ARG005 (one signature)


def core_of(backend: str) -> Core | None:
    """Return the core of a backend that runs experts in torch, None for an engine."""
    path = BY_NAME[backend].in_model if backend in BY_NAME else None
    found = load(path) if path and path.startswith(f"{__name__}:") else None
    return found if isinstance(found, Core) else None


def mixed(
    core: Core,
    inputs: Tensor,
    aligned: Aligned,
    weights: tuple[Tensor, Tensor],
    shares: Tensor | None = None,
    *,
    inner: Inner = PLAIN,
    on_inputs: bool = False,
) -> Tensor:
    """Return a forward through gated experts, [tokens, d_model] in and out.

    Each token's experts weigh 1 / k, or what `shares`, [tokens, k], says; with `on_inputs` what
    goes into them is multiplied by that, and what comes out is added as it is.
    """
    if on_inputs:
        rows = inputs[aligned.tokens]
        if shares is None:
            rows = rows / aligned.places.shape[1]
        else:
            rows[aligned.places] *= shares.to(rows.dtype).unsqueeze(-1)
        return core.multiply(rows, aligned, *weights, inner)[aligned.places].sum(1)
    # Nothing keeps the rows of experts that were multiplied while their outputs are laid out anew.
    out = core.multiply(inputs[aligned.tokens], aligned, *weights, inner)[aligned.places]
    if shares is None:
        return out.mean(1)
    return (out * shares.to(out.dtype).unsqueeze(-1)).sum(1)


class _TorchMoe(Experts):
    """Gated experts with SiLU."""

    _core: Core

    def __init__(
        self, setting: Setting, positions: tuple[int, ...], execution: ExecutionContext
    ) -> None:
        super().__init__(setting, positions, execution)
        experts = setting.experts or 0
        self._aligned = {
            n: Aligned(expert_ids(setting, n, execution.device), experts, self._rows(n))
            for n in positions
        }

    def _rows(self, n: int) -> int | None:
        setting = self._setting
        return self._core.block_rows(setting.batch * n, setting.experts or 0)

    def forward(self, n: int) -> Tensor:
        """Run one forward, [batch * N, d_model] in and out; each token's experts weigh 1 / k."""
        return mixed(self._core, self._inputs[n], self._aligned[n], self._weights.next())


class TorchPaddedMoe(_TorchMoe):
    """Every block of every expert is computed whole, padding included."""

    _core = PADDED

    def _rows(self, n: int) -> int | None:
        return self._setting.block_size_m or super()._rows(n)

    def work(self, n: int) -> ExecutedWork:
        """Return the work with every block's padding."""
        pairs = routed_pairs(self._setting, n)
        basis = "block_size_m of the setting" if self._setting.block_size_m else "16 to E, then 64"
        return moe_work(self._setting, pairs, basis, block_rows=self._rows(n))


class TorchGroupedMoe(_TorchMoe):
    """The control: each expert multiplies its own rows and no others."""

    _core = GROUPED

    def work(self, n: int) -> ExecutedWork:
        """Return the work of the rows that there are."""
        return moe_work(self._setting, routed_pairs(self._setting, n), "grouped_mm pads no row")
