"""The memory of a decoder's forward, computed before anything is allocated."""

from typing import NamedTuple

import torch
from msgspec import Struct, structs

from nearfree.backends.adapters.flashinfer_plan import PAGE_SIZE, bytes_held
from nearfree.backends.adapters.kernel import Positions
from nearfree.backends.adapters.memory import RESERVE, free_bytes
from nearfree.backends.adapters.tensors import pages_of
from nearfree.backends.records import BY_NAME
from nearfree.core.routing_names import ModelRouting
from nearfree.core.setting import Mask
from nearfree.decoders.attention_kinds import Grouped, Latent, Runnable, runnable_kinds
from nearfree.decoders.decoder import Decoder
from nearfree.decoders.details import Details
from nearfree.errors import EvidenceError
from nearfree.models.activations import (
    FLOAT32_BYTES,
    INT64_BYTES,
    Activations,
    expert_rows,
    moe_of,
)
from nearfree.models.attention import AttentionMask
from nearfree.models.kinds import layer_kinds
from nearfree.units import BYTES_PER_GB

_BOOL_BYTES = 1
_PACKED_FROM = 64
"""The N from which on torch's CPU kernel repacks a layer's keys and values, if the CPU has bfloat16
products: ATen/native/cpu/FlashAttentionKernel.cpp. On other CPUs the estimate is too high by that.
"""


class Footprint(Struct, frozen=True, kw_only=True):
    """Bytes that a forward holds at the same time while it runs its largest N."""

    weights: int
    kv_cache: int
    masks: int
    """Masks of every N that is run."""
    tables: int
    """Cosines and sines, scales of queries, and the row layouts of controlled routing by N."""
    workspaces: int
    """FlashInfer's workspace and its plan of each N; forwards of one execution share them."""
    activations: int
    """The peak of temporary tensors: in a norm, attention, an FFN or the LM head."""

    @property
    def total(self) -> int:
        """The sum of all parts."""
        return sum(structs.astuple(self))


def footprint(
    decoder: Decoder,
    details: Details,
    *,
    batch: int,
    context: int,
    positions: Positions,
    dtype: torch.dtype,
    device: str = "cpu",
    mask: Mask = "causal",
    routing: ModelRouting = "router",
    attention: str = "torch_sdpa",
    moe: str = "torch_padded",
    copies: int = 1,
) -> Footprint:
    """Return the memory of a `DecoderForward` with the same arguments, in bytes.

    Freed memory that libraries and the process's heap keep is not included.

    Parameters
    ----------
    positions
        Every N that it will run; the largest is its `max_positions`.
    copies
        The number of forwards that take turns, each with its own weights and cache.
    """
    element_bytes, max_positions = dtype.itemsize, max(positions)
    kinds = [
        _KindMemory(kind, mask, context, element_bytes, device)
        for kind in runnable_kinds(decoder.attention)
    ]
    kernels = BY_NAME[attention].kernels
    page = PAGE_SIZE if kernels else 1
    cached_positions = pages_of(context + max_positions, page) * page
    layer_bytes = sum(len(memory.kind.layers) * memory.cached() for memory in kinds)
    controlled = positions if routing != "router" else ()
    layout_bytes = sum(_layout_bytes(decoder, batch * n, moe) for n in controlled)
    temporaries = Activations(decoder, details, batch, context, max_positions, element_bytes, moe)
    attention_workspaces = [memory.workspace(batch, max_positions) for memory in kinds]
    return Footprint(
        weights=copies * weight_bytes(decoder, details, element_bytes),
        kv_cache=copies * batch * cached_positions * layer_bytes,
        masks=copies * sum(memory.masks(n) for memory in kinds for n in positions),
        tables=copies
        * (max_positions * _table_elements(decoder, details) * element_bytes + layout_bytes),
        workspaces=copies * bytes_held(kernels, len(set(positions))) if kernels else 0,
        activations=temporaries.peak_bytes(attention_workspaces, own_router=routing == "router"),
    )


class _KindMemory(NamedTuple):
    """The memory of one kind of attention, under a mask and with L = `context`."""

    kind: Runnable
    mask: Mask
    context: int
    element_bytes: int
    device: str

    def cached(self) -> int:
        """Return the bytes that a layer caches per position of a request."""
        kind = self.kind
        if isinstance(kind, Grouped):
            return 0 if kind.shares else 2 * kind.kv_heads * kind.head_dim * self.element_bytes
        return (kind.cached + (kind.index_dim or 0)) * self.element_bytes

    def sees(self, n: int) -> int:
        """Return the number of positions that at least one of N new positions sees."""
        grouped = isinstance(self.kind, Grouped)
        limits = (self.kind.window, self.kind.chunk) if isinstance(self.kind, Grouped) else ()
        first = AttentionMask(self.mask, self.context, *limits).first if grouped else 0
        return self.context + n - first

    def masks(self, n: int) -> int:
        """Return the bytes of the mask of N positions; for latents there is one more per head."""
        if n == 1 or self.device != "cpu" or self.mask != "causal":
            return 0
        mask_count = 1 if isinstance(self.kind, Grouped) else 1 + self.kind.heads
        return mask_count * n * self.sees(n) * self.element_bytes

    def workspace(self, batch: int, n: int) -> int:
        """Return the bytes of temporary tensors within attention.

        A mask is made from two masks of booleans. Capped logits are held in float32, and twice in
        the model's dtype.
        """
        kind, repacks = self.kind, self.device == "cpu" and self.element_bytes < FLOAT32_BYTES
        kernel_bytes = self.cached() * batch * self.sees(n) if repacks and n >= _PACKED_FROM else 0
        if isinstance(kind, Grouped) and kind.soft_cap:
            logits = batch * n * kind.heads * self.sees(n)
            kernel_bytes = logits * (FLOAT32_BYTES + 2 * self.element_bytes)
        mask_bytes = 2 * _BOOL_BYTES * n * self.sees(n) if self.masks(n) else 0
        return max(kernel_bytes, mask_bytes)


def _table_elements(decoder: Decoder, details: Details) -> int:
    """Return the elements of tables per position: cosines, sines and scales of queries."""
    forms = [kind.form for kind in layer_kinds(decoder, details)]
    ropes = {rope for form in forms for rope in (form.rope, form.index_rope) if rope}
    query_scales = sum(form.warmth is not None for form in forms)
    return 2 * sum(rope.width for rope in ropes) + query_scales


def refuse_too_large(
    needed: Footprint,
    decoder: Decoder,
    *,
    batch: int,
    context: int,
    max_positions: int,
    device: str,
) -> None:
    """Raise EvidenceError, before anything is allocated, if a forward does not fit."""
    free = free_bytes(device)
    if free is None or needed.total <= RESERVE * free:
        return
    parts = {name.replace("kv_", "KV "): part for name, part in structs.asdict(needed).items()}
    free_gb = f"{free / BYTES_PER_GB:.1f} GB"
    summary = ", ".join(f"{name} {part / BYTES_PER_GB:.1f}" for name, part in parts.items())
    raise EvidenceError(
        f"{decoder.name} with L={context}, batch {batch}, N={max_positions} needs "
        f"{needed.total / BYTES_PER_GB:.1f} GB ({summary}), and {free_gb} are free",
        remedy="Choose a smaller model, context or batch, or fewer positions",
    )


def _layout_bytes(decoder: Decoder, tokens: int, moe: str) -> int:
    """Return the bytes of the layout that controlled routing keeps for a number of tokens."""
    if decoder.experts is None:
        return 0
    rows = expert_rows(decoder.experts, tokens, moe)
    return INT64_BYTES * (rows + tokens * decoder.experts.top_k)


def weight_bytes(decoder: Decoder, details: Details, element_bytes: int) -> int:
    """Return the bytes of all weights, and of the tensors that a forward derives from them once.

    The derived tensors are sigmoid routers in float32, norms that multiply by one plus their
    weights, and the separate matrices that expand a latent to keys and to values.
    """
    form, experts, d_model = details.form or None, decoder.experts, decoder.d_model
    norms = _norms(decoder, details)
    elements = (2 - details.tied) * decoder.vocabulary * d_model + norms
    elements += decoder.dense_layers * 3 * d_model * (decoder.d_ff or 0)
    for kind in runnable_kinds(decoder.attention):
        elements += len(kind.layers) * attention_elements(kind, d_model, details)
    if form and form.norms_from_one:
        elements += norms
    if decoder.layer_inputs:
        width, layers = decoder.layer_inputs, decoder.layers
        elements += layers * width * (decoder.vocabulary + 3 * d_model) + width + layers * d_model
    if form and form.layer_weight:
        elements += decoder.layers
    _, moe_layers = moe_of(decoder, details)
    if experts is None or details.router is None:
        return elements * element_bytes
    rule, count = details.router, experts.experts
    router = count * (d_model + rule.expert_bias)
    ffn = 3 * d_model * (count * experts.d_ff + experts.shared_d_ff)
    layer_elements = router + ffn + d_model * details.shared_gate + count * bool(rule.logit_bias)
    if form and form.expert_biases:
        layer_elements += count * (2 * experts.d_ff + d_model)
    derived_bytes = (
        router * FLOAT32_BYTES * (rule.scores == "sigmoid" and element_bytes < FLOAT32_BYTES)
    )
    if decoder.beside:  # three norms, two copies of the router's factors, and factors of weights
        layer_elements += 5 * d_model + count
        derived_bytes += count * FLOAT32_BYTES * (element_bytes < FLOAT32_BYTES)
    return (elements + moe_layers * layer_elements) * element_bytes + moe_layers * derived_bytes


def _norms(decoder: Decoder, details: Details) -> int:
    """Return the elements of norms over the model's width and over heads."""
    four_norms = bool(details.form and details.form.four_norms)
    head_norms = sum(
        (1 if kind.shares else 2) * kind.head_dim * len(kind.layers)
        for kind in runnable_kinds(decoder.attention)
        if isinstance(kind, Grouped) and details.qk_norm
    )
    return decoder.d_model * (1 + decoder.layers * (4 if four_norms else 2)) + head_norms


def attention_elements(kind: Runnable, d_model: int, details: Details) -> int:
    """Return the elements of a layer's attention, without norms over heads."""
    output = d_model * (kind.inputs + details.output_bias)
    if isinstance(kind, Latent):
        return output + _latent(kind, d_model, biased=details.qkv_bias)
    return output + kind.made * (d_model + details.qkv_bias) + kind.heads * kind.sinks


def _latent(kind: Latent, d_model: int, *, biased: bool) -> int:
    query_outputs, rank = kind.heads * (kind.nope_dim + kind.rope_dim), kind.query_rank
    down_outputs = (rank or 0) + kind.cached
    elements = down_outputs * (d_model + biased) + query_outputs * (rank or d_model)
    elements += kind.latent * (1 + 2 * kind.heads * (kind.nope_dim + kind.value_dim)) + (rank or 0)
    if kind.index_heads and kind.index_dim:
        elements += kind.index_heads * kind.index_dim * (rank or 0)
        elements += (kind.index_dim + kind.index_heads) * d_model + 2 * kind.index_dim
    return elements
