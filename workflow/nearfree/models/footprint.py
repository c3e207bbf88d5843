"""The memory that a decoder's forward takes, known before anything of it is allocated."""

from typing import NamedTuple

import torch
from msgspec import Struct, structs

from nearfree.backends.adapters.flashinfer_plan import PAGE_SIZE, bytes_held
from nearfree.backends.adapters.memory import RESERVE, free_bytes
from nearfree.backends.adapters.tensors import pages_of
from nearfree.backends.adapters.torch_moe import PADDED, core_of
from nearfree.backends.records import BY_NAME
from nearfree.core.setting import Mask, ModelRouting
from nearfree.decoders.decoder import Decoder, Experts
from nearfree.decoders.details import Details
from nearfree.errors import EvidenceError
from nearfree.models.attention import AttentionMask
from nearfree.units import BYTES_PER_GB

FLOAT32_BYTES, INT64_BYTES = 4, 8


def moe_of(decoder: Decoder, details: Details) -> tuple[Experts | None, int]:
    """Return the experts of a layer that has some, and how many layers have."""
    return decoder.experts, len(details.moe_at) if decoder.experts and details.router else 0


def expert_rows(experts: Experts, tokens: int, moe: str) -> int:
    """Return the rows that experts compute at most: each one's last block may hold one row."""
    pairs = tokens * experts.top_k
    core = core_of(moe)
    block = core.block_rows(tokens, experts.experts) if core else None
    return pairs + min(pairs, experts.experts) * ((block or 1) - 1)


class Activations(NamedTuple):
    """What a forward of b requests and N positions makes and drops again, in bytes.

    Counted are the tensors that torch's CPU kernels hold at once; a GPU's fused norms hold fewer.
    """

    decoder: Decoder
    details: Details
    batch: int
    most: int
    size: int
    moe: str

    @property
    def tokens(self) -> int:
        """Rows of the hidden states."""
        return self.batch * self.most

    def most_bytes(self, meanwhile: int, *, own_router: bool) -> int:
        """Return the bytes alive where they are most; attention has `meanwhile` for itself.

        Beside each stage are the hidden states and what the norm before it made of them.
        """
        decoder, details = self.decoder, self.details
        experts, moe_layers = moe_of(decoder, details)
        stages = [self._norm(decoder.d_model), self._attention(meanwhile)]
        stages.append(self.tokens * decoder.vocabulary * self.size)
        if moe_layers < decoder.layers:
            stages.append(self._dense(decoder.d_ff or 0))
        if experts and moe_layers:
            stages += [self._router(experts), self._experts(experts, own_router=own_router)]
            kept = self.tokens * decoder.d_model * self.size  # of the routed ones
            stages.append(kept + self._dense(experts.shared_d_ff))
        return 2 * self.tokens * decoder.d_model * self.size + max(stages)

    def _norm(self, width: int) -> int:
        """Three times in float32: as it comes, divided, and multiplied by the weight."""
        copies = 2 if self.size == FLOAT32_BYTES else 3
        return copies * self.tokens * width * FLOAT32_BYTES

    def _attention(self, meanwhile: int) -> int:
        decoder, normed = self.decoder, self.details.qk_norm
        queries, keys = (count * decoder.head_dim for count in (decoder.heads, decoder.kv_heads))
        made = self.tokens * (queries + 2 * keys) * self.size
        norm = self._norm(queries) if normed else 0
        kept = keys * normed
        turning = self.tokens * (kept + queries * normed + 3 * queries) * self.size
        sums = self.tokens * decoder.heads * FLOAT32_BYTES
        attention_bytes = self.tokens * (kept + 2 * queries) * self.size + sums
        output = self.tokens * (queries + decoder.d_model) * self.size
        return made + max(norm, turning, attention_bytes + max(meanwhile, output))

    def _dense(self, d_ff: int) -> int:
        """Gate and up, SiLU of the gate, and its product with up; then the output in its place."""
        return self.tokens * max(4 * d_ff, 3 * d_ff + self.decoder.d_model) * self.size

    def _router(self, experts: Experts) -> int:
        rows = self.decoder.d_model if self.size < FLOAT32_BYTES else 0
        return self.tokens * (rows + 3 * experts.experts) * FLOAT32_BYTES

    def _experts(self, experts: Experts, *, own_router: bool) -> int:
        d_model, pairs = self.decoder.d_model, self.tokens * experts.top_k
        rows = expert_rows(experts, self.tokens, self.moe)
        wide = 0 if core_of(self.moe) is PADDED else experts.d_ff
        inside = rows * (d_model + max(4 * wide, 3 * wide + d_model)) * self.size
        # one row a pair, and that weighted by its share, or in float32 for the mean
        sums = pairs * d_model * (2 * self.size if own_router else self.size + FLOAT32_BYTES)
        gathered = rows * d_model * self.size + pairs * d_model * self.size
        layout = INT64_BYTES * (rows + 3 * pairs)
        return layout + max(inside, gathered, sums + self.tokens * d_model * FLOAT32_BYTES)


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
    """Cosines and sines, and where controlled routing puts the rows of each N."""
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
    first = AttentionMask(mask, context, decoder.window).first
    masked = [n for n in positions if n > 1] if device == "cpu" and mask == "causal" else []
    seen = {n: n * (context + n - first) for n in masked}
    passing = Activations(decoder, details, batch, most, size, moe)
    repacked = device == "cpu" and size < FLOAT32_BYTES and most >= _PACKED_FROM
    keys = 2 * batch * decoder.kv_heads * decoder.head_dim * size
    meanwhile = max(
        keys * (context + most - first) if repacked else 0,
        2 * _BOOL_BYTES * seen.get(most, 0),  # what a mask is made of
    )
    kernels = BY_NAME[attention].kernels
    page = PAGE_SIZE if kernels else 1
    controlled = positions if routing != "router" else ()
    laid_out = sum(_laid_out(decoder, batch * n, moe) for n in controlled)
    return Footprint(
        weights=copies * _weights(decoder, details, size),
        kv_cache=copies * decoder.layers * keys * pages_of(context + most, page) * page,
        masks=copies * sum(seen.values()) * size,
        tables=copies * (2 * most * (details.rope.width if details.rope else 0) * size + laid_out),
        workspaces=copies * bytes_held(kernels, len(set(positions))) if kernels else 0,
        activations=passing.most_bytes(meanwhile, own_router=routing == "router"),
    )


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


def _weights(decoder: Decoder, details: Details, size: int) -> int:
    d_model, width = decoder.d_model, decoder.head_dim
    queries, qkv = decoder.heads * width, (decoder.heads + 2 * decoder.kv_heads) * width
    layer = (qkv + queries) * d_model + 2 * d_model
    layer += qkv * details.qkv_bias + d_model * details.output_bias + 2 * width * details.qk_norm
    elements = (2 - details.tied) * decoder.vocabulary * d_model + d_model + decoder.layers * layer
    experts, moe_layers = moe_of(decoder, details)
    elements += (decoder.layers - moe_layers) * 3 * d_model * (decoder.d_ff or 0)
    if experts is None or details.router is None:
        return elements * size
    router = experts.experts * (d_model + details.router.expert_bias)
    ffn = 3 * d_model * (experts.experts * experts.d_ff + experts.shared_d_ff)
    elements += moe_layers * (router + ffn + d_model * details.shared_gate)
    in_float32 = details.router.scores == "sigmoid" and size < FLOAT32_BYTES
    return elements * size + moe_layers * router * FLOAT32_BYTES * in_float32


def _laid_out(decoder: Decoder, tokens: int, moe: str) -> int:
    if decoder.experts is None:
        return 0
    rows = expert_rows(decoder.experts, tokens, moe)
    return INT64_BYTES * (rows + tokens * decoder.experts.top_k)
