"""The memory that a decoder's forward takes, known before anything of it is allocated."""

from typing import NamedTuple

import torch
from msgspec import Struct, structs

from nearfree.backends.adapters.flashinfer_plan import PAGE_SIZE, bytes_held
from nearfree.backends.adapters.memory import RESERVE, free_bytes
from nearfree.backends.adapters.tensors import pages_of
from nearfree.backends.records import BY_NAME
from nearfree.core.routing_names import ModelRouting
from nearfree.core.setting import Mask
from nearfree.decoders.attention_kinds import Grouped, Run, runs
from nearfree.decoders.decoder import Decoder
from nearfree.decoders.details import Details
from nearfree.errors import EvidenceError
from nearfree.models.activations import FLOAT32_BYTES, INT64_BYTES, Activations, expert_rows
from nearfree.models.attention import AttentionMask
from nearfree.models.elements import weight_bytes
from nearfree.models.kinds import layer_kinds
from nearfree.units import BYTES_PER_GB

_BOOL_BYTES = 1
_PACKED_FROM = 64
"""The N from which torch's CPU kernel repacks a layer's keys and values, where a CPU has bfloat16
products: ATen/native/cpu/FlashAttentionKernel.cpp. Where it has none this is too much by that."""


class Footprint(Struct, frozen=True, kw_only=True):
    """Bytes that a forward holds at once while it runs its largest N."""

    weights: int
    kv_cache: int
    masks: int
    """Of every N that is run."""
    tables: int
    """Cosines and sines, weights of queries, and where controlled routing puts rows of each N."""
    workspaces: int
    """FlashInfer's own, and what its plan of each N keeps; forwards of one execution share them."""
    activations: int
    """What is alive at once where that is most: in a norm, attention, an FFN or the LM head."""

    @property
    def total(self) -> int:
        """All parts together."""
        return sum(structs.astuple(self))


def footprint(
    decoder: Decoder,
    details: Details,
    *,
    batch: int,
    context: int,
    positions: tuple[int, ...],
    dtype: torch.dtype,
    device: str = "cpu",
    mask: Mask = "causal",
    routing: ModelRouting = "router",
    attention: str = "torch_sdpa",
    moe: str = "torch_padded",
    copies: int = 1,
) -> Footprint:
    """Return what a `DecoderForward` with the same arguments takes, in bytes.

    What libraries and the heap of a process keep of what was freed is not in it.

    Parameters
    ----------
    positions
        Every N that it will run; the largest is its `most`.
    copies
        How many of them take turns, each with weights and a cache of its own.
    """
    size, most = dtype.itemsize, max(positions)
    seats = [_Seat(kind, mask, context, size, device) for kind in runs(decoder.attention)]
    kernels = BY_NAME[attention].kernels
    page = PAGE_SIZE if kernels else 1
    room = pages_of(context + most, page) * page
    cached = sum(len(seat.kind.layers) * seat.cached() for seat in seats)
    controlled = positions if routing != "router" else ()
    laid_out = sum(_laid_out(decoder, batch * n, moe) for n in controlled)
    passing = Activations(decoder, details, batch, context, most, size, moe)
    meanwhile = [seat.meanwhile(batch, most) for seat in seats]
    return Footprint(
        weights=copies * weight_bytes(decoder, details, size),
        kv_cache=copies * batch * room * cached,
        masks=copies * sum(seat.masks(n) for seat in seats for n in positions),
        tables=copies * (most * _turned(decoder, details) * size + laid_out),
        workspaces=copies * bytes_held(kernels, len(set(positions))) if kernels else 0,
        activations=passing.most_bytes(meanwhile, own_router=routing == "router"),
    )


class _Seat(NamedTuple):
    """A kind of layers, and what it is told of positions."""

    kind: Run
    mask: Mask
    context: int
    size: int
    device: str

    def cached(self) -> int:
        """Return the bytes that a layer keeps of a position of a request."""
        kind = self.kind
        if isinstance(kind, Grouped):
            return 0 if kind.shares else 2 * kind.kv_heads * kind.head_dim * self.size
        return (kind.cached + (kind.index_dim or 0)) * self.size

    def sees(self, n: int) -> int:
        """Return the positions that any of N new ones sees."""
        grouped = isinstance(self.kind, Grouped)
        sight = (self.kind.window, self.kind.chunk) if isinstance(self.kind, Grouped) else ()
        first = AttentionMask(self.mask, self.context, *sight).first if grouped else 0
        return self.context + n - first

    def masks(self, n: int) -> int:
        """Return the bytes of the mask of N positions; of latents it is made for each head, too."""
        if n == 1 or self.device != "cpu" or self.mask != "causal":
            return 0
        of = 1 if isinstance(self.kind, Grouped) else 1 + self.kind.heads
        return of * n * self.sees(n) * self.size

    def meanwhile(self, batch: int, most: int) -> int:
        """Return the bytes that attention has for itself at most.

        A mask is made of two of booleans; logits that are capped are held in float32, besides, and
        as shares.
        """
        kind, repacks = self.kind, self.device == "cpu" and self.size < FLOAT32_BYTES
        own = self.cached() * batch * self.sees(most) if repacks and most >= _PACKED_FROM else 0
        if isinstance(kind, Grouped) and kind.soft_cap:
            logits = batch * most * kind.heads * self.sees(most)
            own = logits * (FLOAT32_BYTES + 2 * self.size)
        masked = 2 * _BOOL_BYTES * most * self.sees(most) if self.masks(most) else 0
        return max(own, masked)


def _turned(decoder: Decoder, details: Details) -> int:
    """Return the elements that tables have of a position: cosines, sines and weights of queries."""
    kinds = layer_kinds(decoder, details)
    ropes = {rope for each in kinds for rope in (each.form.rope, each.form.index_rope) if rope}
    warm = sum(each.form.warmth is not None for each in kinds)
    return 2 * sum(rope.width for rope in ropes) + warm


def refuse_too_large(
    needed: Footprint, decoder: Decoder, *, batch: int, context: int, most: int, device: str
) -> None:
    """Raise EvidenceError, before anything is allocated, if a forward does not fit."""
    free = free_bytes(device)
    if free is None or needed.total <= RESERVE * free:
        return
    parts = {name.replace("kv_", "KV "): part for name, part in structs.asdict(needed).items()}
    free_gb = f"{free / BYTES_PER_GB:.1f} GB"
    summary = ", ".join(f"{name} {part / BYTES_PER_GB:.1f}" for name, part in parts.items())
    raise EvidenceError(
        f"{decoder.name} with L={context}, batch {batch}, N={most} needs "
        f"{needed.total / BYTES_PER_GB:.1f} GB ({summary}), and {free_gb} are free",
        remedy="Choose a smaller model, context or batch, or fewer positions",
    )


def _laid_out(decoder: Decoder, tokens: int, moe: str) -> int:
    if decoder.experts is None:
        return 0
    rows = expert_rows(decoder.experts, tokens, moe)
    return INT64_BYTES * (rows + tokens * decoder.experts.top_k)
