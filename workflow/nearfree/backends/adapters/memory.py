"""What a setting needs of memory, asked before anything is allocated."""

from typing import NamedTuple

import torch

from nearfree.backends.adapters.experts import windows
from nearfree.backends.adapters.kernel import ExecutionContext
from nearfree.backends.adapters.stored import stored_bytes, stored_keys
from nearfree.backends.adapters.tensors import copies_for, share_seen, torch_dtype
from nearfree.backends.free_memory import free_host_bytes
from nearfree.core.modules.attention import is_causal
from nearfree.core.modules.mla import head_widths
from nearfree.core.precision import ELEMENT_BYTES
from nearfree.core.setting import Setting
from nearfree.errors import EvidenceError
from nearfree.units import BYTES_PER_GB

_FLOAT32_BYTES, _INT64_BYTES = 4, 8
RESERVE = 0.9
"""The share of free memory that a kernel may take; the rest is for what it makes meanwhile."""


class _Needed(NamedTuple):
    """Bytes of a copy of the weights, or of keys and values, and of all that there is once."""

    copy: int
    once: int


def bytes_needed(setting: Setting, positions: tuple[int, ...], execution: ExecutionContext) -> int:
    """Return the bytes that are still to be allocated: those of the tensors of all N.

    These are weights, but those in `execution.shared`, or keys and values in whole pages; inputs
    and masks; and the activations of the largest N.
    """
    needed = _needed(setting, positions, execution)
    copies = copies_needed(setting, positions, execution)
    held = copies * needed.copy
    if setting.module == "moe_ffn":
        held = (
            windows(setting, positions, execution).experts * needed.copy // (setting.experts or 1)
        )
    return held + needed.once - _shared_bytes(setting, positions, execution)


def copies_needed(setting: Setting, positions: tuple[int, ...], execution: ExecutionContext) -> int:
    """Return the copies that take turns: where `execution` gives 0, as many as fill the cache."""
    if setting.module == "moe_ffn":
        return len(windows(setting, positions, execution).starts)
    read_bytes: float = _needed(setting, positions, execution).copy
    if setting.context is not None:
        read_bytes *= share_seen(setting, positions, setting.page_size or 1)
    return execution.copies or copies_for(read_bytes, execution.cache_bytes)


def _needed(setting: Setting, positions: tuple[int, ...], execution: ExecutionContext) -> _Needed:
    size, most = int(ELEMENT_BYTES[setting.dtype]), max(positions)
    rows = setting.batch * most
    d_model, d_ff = setting.d_model or 0, setting.d_ff or 0
    if setting.module == "gemm":
        return _Needed(_dense_bytes(setting), size * rows * (d_model + d_ff))
    if setting.module == "dense_ffn":
        wide = 3 if setting.gated else 1
        return _Needed(_dense_bytes(setting), size * rows * (2 * d_model + wide * d_ff))
    if setting.module == "moe_ffn":
        experts = setting.experts or 0
        pairs = rows * (setting.top_k or 0) + experts * (setting.block_size_m or 128)
        activations = 2 * rows * d_model + pairs * (2 * d_model + 3 * d_ff)
        return _Needed(size * 3 * experts * d_model * d_ff, size * activations)
    if setting.module in ("mla", "indexer"):
        return _latents_needed(setting, positions, masked=execution.device == "cpu")
    head_dim, page = setting.head_dim or 0, setting.page_size or 1
    keys = -(-((setting.context or 0) + most) // page) * page
    queries = setting.batch * (sum(positions) + 2 * most) * (setting.heads or 0) * head_dim
    masks = sum(positions) * keys if execution.device == "cpu" and is_causal(setting) else 0
    held = 2 * setting.batch * (setting.kv_heads or 0) * keys * head_dim
    return _Needed(size * held, size * (queries + masks))


def _latents_needed(setting: Setting, positions: tuple[int, ...], *, masked: bool) -> _Needed:
    """Return what latent attention takes: latents; queries, masks of each head, what comes out.

    Latents lie in whole pages, and masks are made where `masked` says so.

    An indexer has keys; and in float32 those, its queries and each head's products.
    """
    size, most, heads = int(ELEMENT_BYTES[setting.dtype]), max(positions), setting.heads or 0
    page, width = setting.page_size or 1, setting.head_dim or 0
    seen, masked = -(-((setting.context or 0) + most) // page) * page, masked and is_causal(setting)
    if setting.module == "indexer":
        keys, queries = setting.batch * seen * width, setting.batch * most * heads * width
        masks = sum(positions) * seen if masked else 0
        wide = _FLOAT32_BYTES * (keys + queries + 2 * setting.batch * most * heads * seen)
        return _Needed(size * keys, size * (queries + masks) + wide)
    width = head_widths(setting)[0]
    queries = setting.batch * (sum(positions) + 2 * most) * heads * width
    context, selected = setting.context or 0, setting.selected or 0
    choosing = [n for n in positions if 0 < selected < context + n]
    seeing = sum(n for n in positions if n not in choosing)
    masks = seeing * heads * seen if masked else 0
    taken = setting.batch * max(choosing, default=0) * selected * width
    chosen = setting.batch * sum(choosing) * selected * _INT64_BYTES
    held = size * setting.batch * seen * width
    return _Needed(held, size * (queries + masks + taken) + chosen)


def _matrices(setting: Setting) -> list[tuple[str, int, int]]:
    """Return projection, rows and columns of each weight of a product or Dense FFN."""
    d_model, d_ff = setting.d_model or 0, setting.d_ff or 0
    if setting.module == "gemm":
        return [("", d_ff, d_model)]
    up = 2 * d_ff if setting.gated else d_ff
    return [("up", up, d_model), ("down", d_model, d_ff)]


def _dense_bytes(setting: Setting) -> int:
    return sum(stored_bytes(setting, *shape) for _, *shape in _matrices(setting))


def _shared_bytes(setting: Setting, positions: tuple[int, ...], execution: ExecutionContext) -> int:
    """Return the bytes of a setting's weights that another one has allocated already."""
    keys: list[tuple[object, ...]] = []
    if setting.module in ("gemm", "dense_ffn"):
        keys = [
            key
            for copy in range(copies_needed(setting, positions, execution))
            for projection, *shape in _matrices(setting)
            for key in stored_keys(setting, *shape, copy=copy, projection=projection)
        ]
    elif setting.module == "moe_ffn":
        dtype, experts = torch_dtype(setting), windows(setting, positions, execution).experts
        d_model, d_ff = setting.d_model or 0, setting.d_ff or 0
        shapes = (experts, 2 * d_ff, d_model), (experts, d_model, d_ff)
        keys = [(str(dtype), *shape, 0, "") for shape in shapes]
    return sum(execution.shared[key].nbytes for key in keys if key in execution.shared)


def free_bytes(device: str) -> int | None:
    """Return the memory that is free on a device, None where the system does not tell."""
    if device == "cuda":
        return int(torch.cuda.mem_get_info()[0])
    return free_host_bytes()


def refuse_too_large(
    setting: Setting, positions: tuple[int, ...], execution: ExecutionContext
) -> None:
    """Raise EvidenceError, before anything is allocated, if a setting does not fit."""
    needed, free = bytes_needed(setting, positions, execution), free_bytes(execution.device)
    if free is not None and needed > RESERVE * free:
        shape = f"L={setting.context}" if setting.context else f"batch {setting.batch}"
        copies = copies_needed(setting, positions, execution)
        raise EvidenceError(
            f"{setting.module} at {shape}, N={max(positions)}, with {copies} copies needs "
            f"{needed / BYTES_PER_GB:.1f} GB, and {free / BYTES_PER_GB:.1f} GB are free",
            remedy="Choose a smaller shape, context or batch, fewer copies or fewer positions",
        )
