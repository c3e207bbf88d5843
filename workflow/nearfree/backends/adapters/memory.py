"""The memory that a setting needs, checked before anything is allocated."""

from typing import NamedTuple

import torch

from nearfree.backends.adapters.experts import windows
from nearfree.backends.adapters.kernel import ExecutionContext, Positions
from nearfree.backends.adapters.stored import matrices, stored_bytes, stored_keys
from nearfree.backends.adapters.tensors import copies_for, share_read, torch_dtype
from nearfree.backends.free_memory import free_host_bytes
from nearfree.core.modules.attention import is_causal
from nearfree.core.modules.mla import head_widths
from nearfree.core.precision import ELEMENT_BYTES
from nearfree.core.setting import Setting
from nearfree.errors import EvidenceError
from nearfree.units import BYTES_PER_GB

_FLOAT32_BYTES, _INT64_BYTES = 4, 8
RESERVE = 0.9
"""The share of free memory that a kernel may allocate; the rest is for its temporaries."""


class _Need(NamedTuple):
    """Bytes of one copy of the weights, or of keys and values, and of all that is not copied."""

    copy: int
    once: int


def bytes_needed(setting: Setting, positions: Positions, execution: ExecutionContext) -> int:
    """Return the bytes that a setting's kernel still has to allocate for all its N.

    They are weights not yet in `execution.shared`, or keys and values in whole pages; inputs and
    masks of all N; and the activations of the largest N.
    """
    need = _need(setting, positions, execution)
    copies = copies_needed(setting, positions, execution)
    copies_bytes = copies * need.copy
    if setting.module == "moe_ffn":
        copies_bytes = (
            windows(setting, positions, execution).experts * need.copy // (setting.experts or 1)
        )
    return copies_bytes + need.once - _shared_bytes(setting, positions, execution)


def copies_needed(setting: Setting, positions: Positions, execution: ExecutionContext) -> int:
    """Return the number of rotating copies; if `execution` gives 0, as many as fill the cache."""
    if setting.module == "moe_ffn":
        return len(windows(setting, positions, execution).starts)
    read_bytes: float = _need(setting, positions, execution).copy
    if setting.context is not None:
        read_bytes *= share_read(setting, positions, setting.page_size or 1)
    return execution.copies or copies_for(read_bytes, execution.cache_bytes)


def _need(setting: Setting, positions: Positions, execution: ExecutionContext) -> _Need:
    element_bytes, max_n = int(ELEMENT_BYTES[setting.dtype]), max(positions)
    rows = setting.batch * max_n
    d_model, d_ff = setting.d_model or 0, setting.d_ff or 0
    if setting.module == "gemm":
        return _Need(_dense_bytes(setting), element_bytes * rows * (d_model + d_ff))
    if setting.module == "dense_ffn":
        hidden_width = 3 if setting.gated else 1
        return _Need(
            _dense_bytes(setting), element_bytes * rows * (2 * d_model + hidden_width * d_ff)
        )
    if setting.module == "moe_ffn":
        experts = setting.experts or 0
        pairs = rows * (setting.top_k or 0) + experts * (setting.block_size_m or 128)
        activations = 2 * rows * d_model + pairs * (2 * d_model + 3 * d_ff)
        return _Need(element_bytes * 3 * experts * d_model * d_ff, element_bytes * activations)
    if setting.module in ("mla", "indexer"):
        return _latent_need(setting, positions, masked=execution.device == "cpu")
    head_dim, page = setting.head_dim or 0, setting.page_size or 1
    keys = -(-((setting.context or 0) + max_n) // page) * page
    queries = setting.batch * (sum(positions) + 2 * max_n) * (setting.heads or 0) * head_dim
    masks = sum(positions) * keys if execution.device == "cpu" and is_causal(setting) else 0
    cache_elements = 2 * setting.batch * (setting.kv_heads or 0) * keys * head_dim
    return _Need(element_bytes * cache_elements, element_bytes * (queries + masks))


def _latent_need(setting: Setting, positions: Positions, *, masked: bool) -> _Need:
    """Return the need of latent attention or its indexer.

    Latent attention holds latents in whole pages; queries and outputs; and, with `masked`, a mask
    per head. An indexer holds keys; queries and, with `masked`, masks; and in float32 its keys, its
    queries and each head's products.
    """
    element_bytes, max_n = int(ELEMENT_BYTES[setting.dtype]), max(positions)
    page, width, heads = setting.page_size or 1, setting.head_dim or 0, setting.heads or 0
    key_count = -(-((setting.context or 0) + max_n) // page) * page
    masked = masked and is_causal(setting)
    if setting.module == "indexer":
        keys, queries = setting.batch * key_count * width, setting.batch * max_n * heads * width
        masks = sum(positions) * key_count if masked else 0
        float32_bytes = _FLOAT32_BYTES * (
            keys + queries + 2 * setting.batch * max_n * heads * key_count
        )
        return _Need(element_bytes * keys, element_bytes * (queries + masks) + float32_bytes)
    width = head_widths(setting)[0]
    queries = setting.batch * (sum(positions) + 2 * max_n) * heads * width
    context, selected = setting.context or 0, setting.selected or 0
    selecting = [n for n in positions if 0 < selected < context + n]
    unselective = sum(n for n in positions if n not in selecting)
    masks = unselective * heads * key_count if masked else 0
    gathered = setting.batch * max(selecting, default=0) * selected * width
    index_bytes = setting.batch * sum(selecting) * selected * _INT64_BYTES
    latent_bytes = element_bytes * setting.batch * key_count * width
    return _Need(latent_bytes, element_bytes * (queries + masks + gathered) + index_bytes)


def _dense_bytes(setting: Setting) -> int:
    return sum(stored_bytes(setting, *shape) for _, *shape in matrices(setting))


def _shared_bytes(setting: Setting, positions: Positions, execution: ExecutionContext) -> int:
    """Return the bytes of a setting's weights that an earlier setting has allocated."""
    keys: list[tuple[object, ...]] = []
    if setting.module in ("gemm", "dense_ffn"):
        keys = [
            key
            for copy in range(copies_needed(setting, positions, execution))
            for projection, *shape in matrices(setting)
            for key in stored_keys(setting, *shape, copy=copy, projection=projection)
        ]
    elif setting.module == "moe_ffn":
        dtype, experts = torch_dtype(setting), windows(setting, positions, execution).experts
        d_model, d_ff = setting.d_model or 0, setting.d_ff or 0
        shapes = (experts, 2 * d_ff, d_model), (experts, d_model, d_ff)
        keys = [(str(dtype), *shape, 0, "") for shape in shapes]
    return sum(execution.shared[key].nbytes for key in keys if key in execution.shared)


def free_bytes(device: str) -> int | None:
    """Return the free memory of a device in bytes, None if the system does not report it."""
    if device == "cuda":
        return int(torch.cuda.mem_get_info()[0])
    return free_host_bytes()


def refuse_too_large(setting: Setting, positions: Positions, execution: ExecutionContext) -> None:
    """Raise EvidenceError if a setting does not fit into free memory; nothing is allocated."""
    needed, free = bytes_needed(setting, positions, execution), free_bytes(execution.device)
    if free is not None and needed > RESERVE * free:
        shape = f"L={setting.context}" if setting.context else f"batch {setting.batch}"
        copies = copies_needed(setting, positions, execution)
        raise EvidenceError(
            f"{setting.module} at {shape}, N={max(positions)}, with {copies} copies needs "
            f"{needed / BYTES_PER_GB:.1f} GB, and {free / BYTES_PER_GB:.1f} GB are free",
            remedy="Choose a smaller shape, context or batch, fewer copies or fewer positions",
        )
