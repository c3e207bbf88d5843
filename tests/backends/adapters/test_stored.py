"""Weights stored as int8 and int4: what their products compute, what they take, what is refused."""

import pytest
import torch
from conftest import make_setting
from nearfree.backends.adapters.kernel import ExecutionContext
from nearfree.backends.adapters.stored import GROUP, PRODUCTS, stored, stored_bytes
from nearfree.backends.adapters.tensors import weight
from nearfree.backends.adapters.torch_dense import TorchDenseFfn, TorchGemm
from nearfree.core.precision import Dtype
from nearfree.core.work import weight_bytes
from nearfree.errors import EvidenceError
from torch import Tensor
from torch.nn.functional import silu

OUT, WIDTH = 256, 384
EXECUTION = ExecutionContext()
formats = pytest.mark.parametrize("weights", ["int8", "int4"])
dtypes = pytest.mark.parametrize(
    ("dtype", "rounding"), [("bfloat16", 2**-8), ("float16", 2**-11), ("float32", 2**-17)]
)
"""Twice the rounding of a number; in float32 that of a sum of 384 terms."""


def widened(weights: str, packed: Tensor | tuple[Tensor, Tensor], dtype: torch.dtype) -> Tensor:
    """Return the weight [out, in] that a packed one stands for: what it makes of unit rows."""
    width = packed[0].shape[1] * (2 if weights == "int4" else 1)
    return PRODUCTS[weights](torch.eye(width, dtype=dtype), packed).t().double()


@formats
@pytest.mark.parametrize("rows", [1, 2, 5, 33])
@dtypes
def test_a_product_is_that_of_the_widened_weights(
    weights: str, rows: int, dtype: Dtype, rounding: float
) -> None:
    """The error against float64 is, in root mean square, that of rounding weights and outputs.

    The largest of 8,448 errors has no bound that near: a sum's roundings add up now and then.
    """
    setting = make_setting(dtype=dtype, weights=weights)
    packed = stored(setting, EXECUTION, OUT, WIDTH, copy=0)
    entering = torch.randn(rows, WIDTH, dtype=getattr(torch, dtype))
    expected = entering.double() @ widened(weights, packed, entering.dtype).t()
    error = PRODUCTS[weights](entering, packed).double() - expected
    assert error.norm() < rounding * expected.norm()


@pytest.mark.parametrize(("weights", "steps"), [("int8", 254), ("int4", 15)])
@dtypes
def test_packed_weights_are_the_plain_ones(
    weights: str, steps: int, dtype: Dtype, rounding: float
) -> None:
    """No weight is off by more than half a step of its row or group, and by rounding."""
    torch.manual_seed(0)
    packed = stored(
        make_setting(dtype=dtype, weights=weights), ExecutionContext(), OUT, WIDTH, copy=0
    )
    torch.manual_seed(0)
    plain_weight = weight(ExecutionContext(), getattr(torch, dtype), OUT, WIDTH, copy=0)
    error_ = (widened(weights, packed, plain_weight.dtype) - plain_weight.double()).abs()
    parts = plain_weight.double().view(OUT, -1, GROUP if weights == "int4" else WIDTH)
    lowest, highest = parts.aminmax(dim=2)
    span = highest - lowest if weights == "int4" else 2 * parts.abs().amax(2)
    half_a_step = span / steps / 2 + 2 * rounding * parts.abs().amax(2)
    assert (error_.view(parts.shape) <= half_a_step[..., None]).all()
    assert error_.max() > span.min() / steps / 4


@formats
@pytest.mark.parametrize("matrices", [2, 3])
def test_a_forward_is_that_of_the_widened_weights(weights: str, matrices: int) -> None:
    """Both projections of a Dense FFN, and a product alone, run on the packed weights."""
    setting = make_setting(
        backend="torch", d_model=256, weights=weights, gated=matrices == 3 or None, batch=2
    )
    ffn = TorchDenseFfn(setting, (1, 4), EXECUTION)
    up, down = (widened(weights, packed, torch.float32) for packed in ffn._weights.copies[0])
    hidden = ffn._inputs[4].double() @ up.t()
    if matrices == 3:
        gate, up_part = hidden.chunk(2, -1)
        hidden = silu(gate) * up_part
    assert torch.allclose(ffn.forward(4).double(), hidden @ down.t(), rtol=1e-4, atol=1e-5)
    product = TorchGemm(
        make_setting(module="gemm", backend="torch", d_model=256, weights=weights),
        (1, 4),
        EXECUTION,
    )
    expected = (
        product._inputs[4].double()
        @ widened(weights, product._weights.copies[0][0], torch.float32).t()
    )
    assert torch.allclose(product.forward(4).double(), expected, rtol=1e-4, atol=1e-5)


@formats
def test_shapes_that_share_a_side_share_no_scales(weights: str) -> None:
    """Weights of as many rows but other widths are weights of their own, and keep their scales."""
    setting, execution = make_setting(weights=weights), ExecutionContext()
    _, before = stored(setting, execution, OUT, WIDTH, copy=0)
    values_before = before.clone()
    stored(setting, execution, OUT, 2 * WIDTH, copy=0)
    numbers, after = stored(setting, execution, OUT, WIDTH, copy=0)
    assert torch.equal(values_before, after)
    assert len(execution.shared) == 4
    assert stored_bytes(setting, OUT, WIDTH) == numbers.nbytes + after.nbytes


@pytest.mark.parametrize("weights", [None, "int8", "int4"])
def test_bytes_are_those_of_the_law(weights: Dtype | None) -> None:
    """A wide weight takes the law's bytes an element, but for int8's scales and int4's zeros."""
    setting = make_setting(dtype="bfloat16", weights=weights)
    assert 1 <= stored_bytes(setting, 2048, 2048) / (2048**2 * weight_bytes(setting)) < 1.04


@pytest.mark.parametrize(("out", "width"), [(24, 128), (128, 64), (128, 192)])
def test_widths_that_int4_cannot_have(out: int, width: int) -> None:
    """Rows that are not packed together, and part of a group, are refused with what to choose."""
    with pytest.raises(EvidenceError, match=f"{out} x {width} in int4") as error:
        stored_bytes(make_setting(weights="int4"), out, width)
    assert str(GROUP) in error.value.remedy
