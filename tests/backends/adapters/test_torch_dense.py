"""The dense FFN in torch: what it computes, on which weights, and what it counts."""

from typing import Any

import pytest
import torch
from conftest import make_setting
from nearfree.backends.adapters.kernel import ExecutionContext
from nearfree.backends.adapters.torch_dense import TorchDenseFfn
from nearfree.core.modules.dense_ffn import dense_work
from nearfree.core.precision import Dtype

from backends.adapters.shapes import counted_flop, is_nearly

POSITIONS = (1, 2, 4)
BYTES = 2 * 64 * 128 * 4
"""The weights of one copy of the small setting in float32."""


def make(*, copies: int = 1, cache_bytes: int = 0, **changes: Any) -> TorchDenseFfn:
    """Return the adapter of a small setting."""
    setting = make_setting(**{"backend": "torch", **changes})
    return TorchDenseFfn(
        setting, POSITIONS, ExecutionContext(copies=copies, cache_bytes=cache_bytes)
    )


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("n", POSITIONS)
def test_a_forward_is_two_products(batch: int, n: int) -> None:
    """A forward over N takes batch * N rows through an up and a down projection."""
    kernel = make(batch=batch)
    ((up, down),) = kernel._weights.copies
    rows = kernel._inputs[n]
    assert (up.shape, down.shape, rows.shape) == ((128, 64), (64, 128), (n * batch, 64))
    expected = rows.double() @ up.double().t() @ down.double().t()
    assert is_nearly(kernel.forward(n), expected)


def test_copies_of_the_weights_take_turns() -> None:
    """Each forward reads the next copy of the weights, and each copy is its own memory."""
    kernel = make(copies=3)
    outputs = [kernel.forward(1) for _ in range(4)]
    assert torch.equal(outputs[0], outputs[3])
    assert not any(torch.equal(outputs[0], output) for output in outputs[1:3])
    assert len({part.data_ptr() for copy in kernel._weights.copies for part in copy}) == 6


def test_both_projections_are_read_from_memory() -> None:
    """Where d_model = d_ff both projections have one shape, and are two weights nevertheless."""
    ((up, down),) = make(d_model=64, d_ff=64)._weights.copies
    assert up.data_ptr() != down.data_ptr()
    assert not torch.equal(up, down)


@pytest.mark.parametrize(
    ("copies", "cache_bytes", "cache"),
    [(2, BYTES, "cold"), (2, BYTES + 1, "warm"), (3, 2 * BYTES, "cold"), (1, 1, "warm")],
)
def test_both_weights_count_for_the_cache(copies: int, cache_bytes: int, cache: str) -> None:
    """Weights are cold when both matrices of the other copies fill the last-level cache."""
    assert make(copies=copies, cache_bytes=cache_bytes).cache == cache


def test_settings_of_a_shape_read_the_same_weights() -> None:
    """Batch sizes differ in their inputs alone: the weights are allocated once."""
    execution = ExecutionContext(copies=2)
    one_batch, other_batch = (
        TorchDenseFfn(make_setting(backend="torch", batch=batch), POSITIONS, execution)
        for batch in (1, 2)
    )
    pairs = zip(one_batch._weights.copies, other_batch._weights.copies, strict=True)
    assert all(
        one_weights[0] is other_weights[0] and one_weights[1] is other_weights[1]
        for one_weights, other_weights in pairs
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_the_dtype_is_the_settings(dtype: Dtype) -> None:
    """Weights, inputs and output have the dtype that was asked for."""
    kernel = make(dtype=dtype)
    tensors = (*kernel._weights.copies[0], kernel._inputs[1], kernel.forward(1))
    assert {tensor.dtype for tensor in tensors} == {getattr(torch, dtype)}


@pytest.mark.parametrize("n", POSITIONS)
def test_the_work_is_what_torch_counts(n: int) -> None:
    """The FLOPs are those that torch's counter sees; nothing is padded."""
    kernel = make(batch=3)
    work = kernel.work(n)
    assert work.flop_executed == work.flop_logical == counted_flop(kernel, n)
    assert work == dense_work(make_setting(backend="torch", batch=3), n, work.basis)
