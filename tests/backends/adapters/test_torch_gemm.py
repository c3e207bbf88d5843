"""One matrix product in torch: what it computes, on which weights, and what it counts."""

from typing import Any

import pytest
import torch
from conftest import make_setting
from nearfree.backends.adapters.kernel import ExecutionContext, make_kernel
from nearfree.backends.adapters.torch_dense import TorchGemm
from nearfree.core.modules.dense_ffn import gemm_work

from backends.adapters.shapes import counted_flop, is_nearly

POSITIONS = (1, 2, 4)
BYTES = 64 * 128 * 4


def make(*, copies: int = 1, cache_bytes: int = 0, **changes: Any) -> TorchGemm:
    """Return the adapter of a small product."""
    setting = make_setting(module="gemm", backend="torch", **changes)
    return TorchGemm(setting, POSITIONS, ExecutionContext(copies=copies, cache_bytes=cache_bytes))


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("n", POSITIONS)
def test_a_forward_is_one_product(batch: int, n: int) -> None:
    """A forward over N takes batch * N rows of d_model through a weight [d_ff, d_model]."""
    kernel = make(batch=batch)
    ((weight,),) = kernel._weights.copies
    rows = kernel._inputs[n]
    assert (rows.shape, weight.shape) == ((batch * n, 64), (128, 64))
    assert is_nearly(kernel.forward(n), rows.double() @ weight.double().t())


def test_copies_of_the_weight_take_turns() -> None:
    """Each forward reads the next copy, and each copy is its own memory."""
    kernel = make(copies=3)
    outputs = [kernel.forward(1) for _ in range(4)]
    assert torch.equal(outputs[0], outputs[3])
    assert not any(torch.equal(outputs[0], output) for output in outputs[1:3])
    assert len({weight.data_ptr() for (weight,) in kernel._weights.copies}) == 3


@pytest.mark.parametrize(
    ("copies", "cache_bytes", "cache"),
    [(2, BYTES, "cold"), (2, BYTES + 1, "warm"), (1, 1, "warm"), (0, 3 * BYTES, "cold")],
)
def test_the_weight_counts_for_the_cache(copies: int, cache_bytes: int, cache: str) -> None:
    """The weight is cold when its other copies fill the last-level cache."""
    assert make(copies=copies, cache_bytes=cache_bytes).cache == cache


def test_batch_sizes_read_the_same_weight() -> None:
    """Settings of a shape differ in their rows alone: the weight is allocated once."""
    execution = ExecutionContext(copies=2)
    kernels = [
        make_kernel(make_setting(module="gemm", backend="torch", batch=batch), POSITIONS, execution)
        for batch in (1, 2)
    ]
    assert [type(kernel) for kernel in kernels] == [TorchGemm, TorchGemm]
    assert len(execution.shared) == 2


@pytest.mark.parametrize("n", POSITIONS)
def test_the_work_is_what_torch_counts(n: int) -> None:
    """The FLOPs are those that torch's counter sees, 2 b N d_model d_ff; nothing is padded."""
    kernel = make(batch=3)
    work = kernel.work(n)
    assert work.flop_executed == work.flop_logical == counted_flop(kernel, n) == 6 * n * 64 * 128
    assert work.bytes_compulsory == 4 * (64 * 128 + 3 * n * (64 + 128))
    assert work == gemm_work(kernel._setting, n, work.basis)
