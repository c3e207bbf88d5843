"""MoE FFN in torch: experts in padded row blocks, and without padding as a control.

Fused MoE kernels pad each expert's tokens to a block. Here each block is one product per
projection, so that padding costs the same; `torch.nn.functional.grouped_mm` over the unpadded rows
is the control that shows the effect of padding on the boundary.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from nearfree.backends.adapters.experts import Aligned, Experts, expert_ids
from nearfree.backends.adapters.gates import Gate, silu
from nearfree.backends.adapters.kernel import ExecutionContext, Positions
from nearfree.backends.records import BY_NAME, load
from nearfree.core.modules.moe_ffn import moe_work
from nearfree.core.modules.routing import routed_pairs
from nearfree.core.setting import Setting
from nearfree.core.work import ExecutedWork

_SMALL_BLOCK, _LARGE_BLOCK = 16, 64


def default_block(tokens: int, experts: int) -> int:
    """Return the rows of a block: 16 up to E tokens, then 64, as vLLM 0.9.1 without tuning."""
    return _SMALL_BLOCK if tokens <= experts else _LARGE_BLOCK


class Activation(NamedTuple):
    """The activation between the experts' products, and the biases [E, out] of both products."""

    gate: Gate = silu
    gate_up_bias: Tensor | None = None
    down_bias: Tensor | None = None


PLAIN = Activation()


class Core(NamedTuple):
    """How the experts' rows are multiplied, and the block to which they are padded.

    `block_rows` maps tokens and E to the rows of a block, None without padding. `multiply` takes
    rows, their alignment, the weights of gate and up, those of down, and the inner activation.
    """

    block_rows: Callable[[int, int], int | None]
    multiply: Callable[[Tensor, Aligned, Tensor, Tensor, Activation], Tensor]


def padded(
    rows: Tensor, aligned: Aligned, gate_up: Tensor, down: Tensor, inner: Activation
) -> Tensor:
    """Return the experts' outputs, one product per block, padding included."""
    block_rows = len(rows) // len(aligned.blocks)
    out = torch.empty_like(rows)
    for expert, start in aligned.blocks:
        block = slice(start, start + block_rows)
        hidden = rows[block] @ gate_up[expert].t()
        if inner.gate_up_bias is not None:
            hidden += inner.gate_up_bias[expert]
        torch.mm(inner.gate(hidden), down[expert].t(), out=out[block])
        if inner.down_bias is not None:
            out[block] += inner.down_bias[expert]
    return out


def grouped(
    rows: Tensor, aligned: Aligned, gate_up: Tensor, down: Tensor, inner: Activation
) -> Tensor:
    """Return the experts' outputs, each expert multiplying its own rows without padding."""
    hidden = functional.grouped_mm(rows, gate_up.transpose(1, 2), offs=aligned.ends)
    if inner.gate_up_bias is not None:
        hidden += inner.gate_up_bias[_experts(aligned, len(rows))]
    out = functional.grouped_mm(inner.gate(hidden), down.transpose(1, 2), offs=aligned.ends)
    if inner.down_bias is not None:
        out += inner.down_bias[_experts(aligned, len(rows))]
    return out


def _experts(aligned: Aligned, rows: int) -> Tensor:
    """Return the expert of each row."""
    row_indices = torch.arange(rows, dtype=aligned.ends.dtype, device=aligned.ends.device)
    return torch.searchsorted(aligned.ends, row_indices, right=True)


PADDED = Core(default_block, padded)
GROUPED = Core(lambda tokens, experts: None, grouped)  # noqa: ARG005 (one signature)


def core_of(backend: str) -> Core | None:
    """Return the core of a backend that runs experts in torch, None for an engine."""
    path = BY_NAME[backend].in_model if backend in BY_NAME else None
    core = load(path) if path and path.startswith(f"{__name__}:") else None
    return core if isinstance(core, Core) else None


def moe_forward(
    core: Core,
    inputs: Tensor,
    aligned: Aligned,
    weights: tuple[Tensor, Tensor],
    shares: Tensor | None = None,
    *,
    inner: Activation = PLAIN,
    on_inputs: bool = False,
) -> Tensor:
    """Run a forward through gated experts, [tokens, d_model] in and out.

    Routing weights are `shares`, [tokens, k], or 1 / k each. They multiply the experts' outputs, or
    with `on_inputs` their inputs.
    """
    if on_inputs:
        rows = inputs[aligned.tokens]
        if shares is None:
            rows = rows / aligned.places.shape[1]
        else:
            rows[aligned.places] *= shares.to(rows.dtype).unsqueeze(-1)
        return core.multiply(rows, aligned, *weights, inner)[aligned.places].sum(1)
    # No variable holds the sorted outputs, so they are freed once gathered in token order.
    out = core.multiply(inputs[aligned.tokens], aligned, *weights, inner)[aligned.places]
    if shares is None:
        return out.mean(1)
    return (out * shares.to(out.dtype).unsqueeze(-1)).sum(1)


class _TorchMoe(Experts):
    """Gated experts with SiLU."""

    _core: Core

    def __init__(self, setting: Setting, positions: Positions, execution: ExecutionContext) -> None:
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
        """Run one forward, [batch * N, d_model] in and out; every routing weight is 1 / k."""
        return moe_forward(self._core, self._inputs[n], self._aligned[n], self._weights.next())


class TorchPaddedMoe(_TorchMoe):
    """Experts in blocks, each computed in full, padding included."""

    _core = PADDED

    def _rows(self, n: int) -> int | None:
        return self._setting.block_size_m or super()._rows(n)

    def work(self, n: int) -> ExecutedWork:
        """Return the work, padding of every block included."""
        pairs = routed_pairs(self._setting, n)
        basis = "block_size_m of the setting" if self._setting.block_size_m else "16 to E, then 64"
        return moe_work(self._setting, pairs, basis, block_rows=self._rows(n))


class TorchGroupedMoe(_TorchMoe):
    """The control: each expert multiplies its own rows without padding."""

    _core = GROUPED

    def work(self, n: int) -> ExecutedWork:
        """Return the work of the unpadded rows."""
        return moe_work(self._setting, routed_pairs(self._setting, n), "grouped_mm pads no row")
