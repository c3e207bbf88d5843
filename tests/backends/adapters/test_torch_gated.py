"""The gated dense FFN of models: three matrices with SiLU, in torch."""

from typing import Any

import pytest
import torch
from conftest import make_setting
from nearfree.backends.adapters.kernel import ExecutionContext
from nearfree.backends.adapters.torch_dense import TorchDenseFfn
from nearfree.core.modules.dense_ffn import dense_work

from backends.adapters.shapes import counted_flop, is_nearly

POSITIONS = (1, 2, 4)


def make(execution: ExecutionContext, **changes: Any) -> TorchDenseFfn:
    """Return the adapter of a small gated setting."""
    return TorchDenseFfn(make_setting(backend="torch", gated=True, **changes), POSITIONS, execution)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("n", POSITIONS)
def test_a_forward_is_gated(batch: int, n: int) -> None:
    """A forward is down(SiLU(gate(x)) * up(x)), gate and up being halves of one product."""
    kernel = make(ExecutionContext(), batch=batch)
    ((gate_up, down),) = kernel._weights.copies
    assert (gate_up.shape, down.shape) == ((256, 64), (64, 128))
    rows = kernel._inputs[n].double()
    gate, up = rows @ gate_up[:128].double().t(), rows @ gate_up[128:].double().t()
    expected = (gate * torch.sigmoid(gate) * up) @ down.double().t()
    assert is_nearly(kernel.forward(n), expected)


@pytest.mark.parametrize("n", POSITIONS)
def test_the_work_is_what_torch_counts(n: int) -> None:
    """The FLOPs are those of three projections, as torch's counter sees them."""
    kernel = make(ExecutionContext(), batch=3)
    work = kernel.work(n)
    assert work.flop_executed == work.flop_logical == counted_flop(kernel, n)
    assert work.flop_logical == 3 * 2 * 3 * n * 64 * 128
    assert work == dense_work(kernel._setting, n, work.basis)


def test_a_gated_ffn_shares_no_up_projection_with_the_papers() -> None:
    """Both forms may be measured in one plan: their first weights have different shapes."""
    execution = ExecutionContext()
    gated = make(execution)
    ungated = TorchDenseFfn(make_setting(backend="torch"), POSITIONS, execution)
    (up, down), (gate_up, gated_down) = ungated._weights.copies[0], gated._weights.copies[0]
    assert (up.shape[0], gate_up.shape[0]) == (128, 256)
    assert down is gated_down
