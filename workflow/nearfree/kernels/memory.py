"""What a setting needs of memory, asked before anything is allocated."""

from pathlib import Path

import torch

from nearfree.errors import EvidenceError
from nearfree.kernels import Place
from nearfree.kernels.tensors import torch_dtype
from nearfree.settings import Setting
from nearfree.units import BYTES_PER_ELEMENT, BYTES_PER_GB

_RESERVE = 0.9
"""The share of free memory that a kernel may take; the rest is for what it makes meanwhile."""


def bytes_needed(setting: Setting, positions: tuple[int, ...], place: Place) -> int:
    """Return the bytes that are still to be allocated: those of the tensors of all N.

    These are weights, but those in `place.shared`, or keys and values in whole pages; inputs and
    masks; and the activations of the largest N.
    """
    size, most = int(BYTES_PER_ELEMENT[setting.dtype]), max(positions)
    rows = setting.batch * most
    d_model, d_ff = setting.d_model or 0, setting.d_ff or 0
    weights = activations = 0
    if setting.module == "dense_ffn":
        weights, activations = 2 * d_model * d_ff, rows * (2 * d_model + d_ff)
    elif setting.module == "moe_ffn":
        weights = 3 * (setting.experts or 0) * d_model * d_ff
        pairs = rows * (setting.top_k or 0) + (setting.experts or 0) * (setting.block_size_m or 128)
        activations = 2 * rows * d_model + pairs * (2 * d_model + 3 * d_ff)
    elif setting.module == "attention":
        head_dim, page = setting.head_dim or 0, setting.page_size or 1
        keys = -(-((setting.context or 0) + most) // page) * page
        weights = 2 * setting.batch * (setting.kv_heads or 0) * keys * head_dim
        queries = setting.batch * (sum(positions) + 2 * most) * (setting.heads or 0) * head_dim
        masks = sum(positions) * keys if place.device == "cpu" else 0
        activations = queries + masks
    return (place.copies * weights + activations) * size - _shared_bytes(setting, place)


def _shared_bytes(setting: Setting, place: Place) -> int:
    """Return the bytes of a setting's weights that another one has allocated already."""
    dtype, d_model, d_ff = torch_dtype(setting), setting.d_model or 0, setting.d_ff or 0
    shapes: set[tuple[int, ...]] = {(d_ff, d_model), (d_model, d_ff)}
    if setting.module == "moe_ffn":
        experts = setting.experts or 0
        shapes = {(experts, 2 * d_ff, d_model), (experts, d_model, d_ff)}
    return sum(
        tensor.nbytes
        for tensor in place.shared.values()
        if tensor.dtype == dtype and tuple(tensor.shape) in shapes
    )


def free_bytes(device: str) -> int | None:
    """Return the memory that is free on a device, None where the system does not tell."""
    if device == "cuda":
        return int(torch.cuda.mem_get_info()[0])
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    found = dict(line.split(":", 1) for line in lines)
    return int(found["MemAvailable"].split()[0]) * 1024 if "MemAvailable" in found else None


def refuse_too_large(setting: Setting, positions: tuple[int, ...], place: Place) -> None:
    """Raise EvidenceError, before anything is allocated, if a setting does not fit."""
    needed, free = bytes_needed(setting, positions, place), free_bytes(place.device)
    if free is not None and needed > _RESERVE * free:
        shape = f"L={setting.context}" if setting.context else f"batch {setting.batch}"
        raise EvidenceError(
            f"{setting.module} at {shape}, N={max(positions)}, with {place.copies} copies needs "
            f"{needed / BYTES_PER_GB:.1f} GB, and {free / BYTES_PER_GB:.1f} GB are free",
            remedy="Choose a smaller shape, context or batch, fewer copies or fewer positions",
        )
