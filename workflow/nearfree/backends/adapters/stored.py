"""Weights as stored in memory: in the setting's dtype, or as int8 or int4 with scales.

The products are torch's weight-only ones on a CPU, which convert the weights as they load them into
registers. int8 has a scale per row of a weight [out, in]; int4 a scale and a zero per group of a
row.
"""

from collections.abc import Callable
from math import prod
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from nearfree.backends.adapters.kernel import ExecutionContext
from nearfree.backends.adapters.tensors import torch_dtype, weight
from nearfree.core.precision import FORMATS
from nearfree.core.setting import Setting
from nearfree.errors import EvidenceError

Stored: TypeAlias = Tensor | tuple[Tensor, Tensor]
"""A weight, or its packed integers and their scales."""
_ATEN = torch.ops.aten
"""The operators for these products; torch has no public names for them."""
GROUP = FORMATS["int4"].group
_ROWS = 16
"""Rows of a weight must be a multiple of this in int4: torch packs as many together."""


def _int8(rows: Tensor, packed: tuple[Tensor, Tensor]) -> Tensor:
    numbers, scales = packed
    product: Tensor = _ATEN._weight_int8pack_mm(rows, numbers, scales)  # noqa: SLF001
    return product


def _int4(rows: Tensor, packed: tuple[Tensor, Tensor]) -> Tensor:
    numbers, scales = packed
    product: Tensor = _ATEN._weight_int4pack_mm_for_cpu(rows, numbers, GROUP, scales)  # noqa: SLF001
    return product


PRODUCTS: dict[str | None, Callable[..., Tensor]] = {
    None: functional.linear,
    "int8": _int8,
    "int4": _int4,
}
"""The product of rows [..., in] with a weight [out, in], by the weight's stored format."""


def matrices(setting: Setting) -> list[tuple[str, int, int]]:
    """Return projection, outputs and inputs of each weight of a GEMM or Dense FFN."""
    d_model, d_ff = setting.d_model or 0, setting.d_ff or 0
    if setting.module == "gemm":
        return [("", d_ff, d_model)]
    up = 2 * d_ff if setting.gated else d_ff
    return [("up", up, d_model), ("down", d_model, d_ff)]


def stored_bytes(setting: Setting, out: int, width: int) -> int:
    """Return the bytes of a weight [out, in] with its scales.

    Raises
    ------
    EvidenceError
        torch cannot store a weight of these sizes in the setting's format.
    """
    layout = _tensor_layout(setting, out, width)
    return sum(prod(shape) * dtype.itemsize for dtype, shape in layout)


def stored_keys(
    setting: Setting, out: int, width: int, *, copy: int, projection: str = ""
) -> list[tuple[object, ...]]:
    """Return the keys in `ExecutionContext.shared` of a weight, and of its scales."""
    key = (str(torch_dtype(setting)), out, width, copy, projection)
    if setting.weights is None:
        return [key]
    return [(setting.weights, tensor, *key) for tensor in ("numbers", "scales")]


def stored(
    setting: Setting,
    execution: ExecutionContext,
    out: int,
    width: int,
    *,
    copy: int,
    projection: str = "",
) -> Stored:
    """Return a random weight [out, in] in a setting's format, shared by requests for that copy."""
    dtype, shared = torch_dtype(setting), execution.shared
    if setting.weights is None:
        return weight(execution, dtype, out, width, copy=copy, projection=projection)
    numbers, scales = stored_keys(setting, out, width, copy=copy, projection=projection)
    if numbers not in shared:
        unshared = ExecutionContext(device=execution.device)
        unpacked = weight(unshared, dtype, out, width, copy=copy)
        shared[numbers], shared[scales] = _PACKERS[setting.weights](unpacked)
    return shared[numbers], shared[scales]


def _tensor_layout(
    setting: Setting, out: int, width: int
) -> tuple[tuple[torch.dtype, tuple[int, ...]], ...]:
    """Return dtype and shape of each tensor that stores a weight [out, in]."""
    scale_dtype = torch_dtype(setting)
    if setting.weights == "int8":
        return (torch.int8, (out, width)), (scale_dtype, (out,))
    if setting.weights == "int4":
        if out % _ROWS or width % GROUP:
            raise EvidenceError(
                f"torch stores no weight of {out} x {width} in int4",
                remedy=f"Choose widths that are multiples of {GROUP}",
            )
        return (torch.uint8, (out, width // 2)), (scale_dtype, (width // GROUP, out, 2))
    return ((scale_dtype, (out, width)),)


def _to_int8(unpacked: Tensor) -> tuple[Tensor, Tensor]:
    scales = unpacked.abs().amax(1) / 127
    return (unpacked.float() / scales.float()[:, None]).round_().to(torch.int8), scales


def _to_int4(unpacked: Tensor) -> tuple[Tensor, Tensor]:
    """Return packed integers q, and scales with zeros: a weight is (q - 8) scale + zero.

    q is from 0 to 15.
    """
    grouped = unpacked.view(len(unpacked), -1, GROUP)
    low, high = grouped.aminmax(dim=2)
    scale = (high - low) / 15
    zero = low + 8 * scale
    levels = (grouped.float() - zero.float()[..., None]) / scale.float()[..., None]
    numbers = levels.round_().add_(8).clamp_(0, 15).to(torch.int32).view(len(unpacked), -1)
    packed = _ATEN._convert_weight_to_int4pack_for_cpu(numbers, 1)  # noqa: SLF001
    return packed, torch.stack((scale.t(), zero.t()), 2).contiguous()


_PACKERS: dict[str, Callable[[Tensor], tuple[Tensor, Tensor]]] = {
    "int8": _to_int8,
    "int4": _to_int4,
}
"""The function that packs a weight, by format."""
