"""Adapters: which there are, and what the dense FFN in torch really runs."""

import pytest
import torch
from conftest import make_setting
from nearfree.errors import EvidenceError, NearfreeError
from nearfree.kernels import make_kernel, torch_dense
from nearfree.kernels.torch_dense import TorchDenseFfn
from nearfree.settings import Dtype

BYTES = 2 * 64 * 128 * 4
"""The weights of one copy of the small setting in float32."""


def make(*, copies: int = 2, cache_bytes: int = 0, **changes: object) -> TorchDenseFfn:
    """Return the adapter of a small setting."""
    setting = make_setting(**{"backend": "torch", **changes})
    return TorchDenseFfn(setting, (1, 2, 4), copies=copies, cache_bytes=cache_bytes)


def test_the_adapter_of_a_setting_is_found() -> None:
    """A dense FFN on torch is run by its adapter, at every N that was asked for."""
    kernel = make_kernel(make_setting(backend="torch"), (1, 4), copies=1, cache_bytes=0)
    assert isinstance(kernel, TorchDenseFfn)
    kernel.check()
    with pytest.raises(KeyError):
        kernel.forward(2)


@pytest.mark.parametrize(
    "setting",
    [
        make_setting(backend="vllm"),
        make_setting(module="model", backend="torch"),
        make_setting(backend=""),
    ],
)
def test_an_unknown_adapter_is_refused(setting: object) -> None:
    """A module that nothing runs on a backend is refused by both names, with what there is."""
    with pytest.raises(EvidenceError, match="no adapter runs") as caught:
        make_kernel(setting, (1,), copies=1, cache_bytes=0)  # type: ignore[arg-type]
    assert "dense_ffn/torch" in caught.value.remedy


@pytest.mark.parametrize("batch", [1, 3])
def test_a_forward_is_two_matmuls(batch: int) -> None:
    """A forward over N takes batch * N rows through an up and a down projection."""
    kernel = make(copies=1, batch=batch)
    (up, down) = kernel._weights[0]
    x = kernel._inputs[4]
    assert (up.shape, down.shape, x.shape) == ((128, 64), (64, 128), (4 * batch, 64))
    assert torch.allclose(kernel._run(4), (x @ up.t()) @ down.t())


def test_copies_of_the_weights_take_turns() -> None:
    """Each forward reads the next copy of the weights, and each copy is its own memory."""
    kernel = make(copies=3)
    before = [kernel._turn]
    for _ in range(4):
        kernel.forward(1)
        before.append(kernel._turn)
    assert before == [0, 1, 2, 0, 1]
    assert len({up.data_ptr() for up, _ in kernel._weights}) == 3


@pytest.mark.parametrize(
    ("copies", "cache_bytes", "cache"),
    [
        (2, BYTES, "cold"),
        (2, BYTES + 1, "warm"),
        (3, 2 * BYTES, "cold"),
        (1, 1, "warm"),
        (1, 0, "cold"),
    ],
)
def test_weights_are_cold_if_the_other_copies_fill_the_cache(
    copies: int, cache_bytes: int, cache: str
) -> None:
    """Weights count as cold when the copies in between are as large as the last-level cache."""
    assert make(copies=copies, cache_bytes=cache_bytes).cache == cache


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_the_dtype_is_the_settings(dtype: Dtype) -> None:
    """Weights and inputs have the dtype that was asked for."""
    kernel = make(dtype=dtype)
    assert kernel._weights[0][0].dtype == getattr(torch, dtype)
    assert kernel._run(1).dtype == getattr(torch, dtype)


def test_a_dtype_that_the_adapter_cannot_run_is_refused() -> None:
    """A dtype that torch's matmul lacks is refused by name, in one message."""
    with pytest.raises(EvidenceError, match="float8"):
        make_kernel(make_setting(backend="torch", dtype="float8"), (1,), copies=1, cache_bytes=0)


def test_a_shape_that_does_not_fit_is_refused() -> None:
    """Weights for which there is no memory are refused with the shape, in one message."""
    setting = make_setting(backend="torch", d_model=10**8, d_ff=10**8)
    with pytest.raises(NearfreeError, match="100000000") as caught:
        make_kernel(setting, (1,), copies=1, cache_bytes=0)
    assert "\n" not in str(caught.value)


def test_output_that_is_not_finite_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights that overflow are noticed before anything is timed, and the N is named."""
    monkeypatch.setattr(torch_dense, "_SCALE", 1e30)
    with pytest.raises(EvidenceError, match="forward over N=1 gives output that is not finite"):
        make().check()
