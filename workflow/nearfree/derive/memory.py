"""Whether a model fits: its weights as stored, its cache, and what a forward holds besides.

Weights, cache and activations follow from the model's files; what an engine keeps for itself is a
stated allowance. Where several GPUs share a model, weights are parted evenly, and a layer's cache
among as many of them as it has heads.
"""

from collections.abc import Callable
from functools import cache

from msgspec import Struct, structs

from nearfree.core.precision import ELEMENT_BYTES, Dtype, Precision
from nearfree.decoders.model_file import ModelFile
from nearfree.decoders.weights import CacheLayer
from nearfree.units import BYTES_PER_GB

PAGE_POSITIONS = 16
"""Positions of a page of the cache: vLLM's default block size on GPUs."""
PROMPT_TOKENS = 8192
"""Tokens of a prompt that engines put through at once, which hold more than a decode forward's:
vLLM's default of `max_num_batched_tokens` when it serves on cards of 70 GB and more."""
ENGINE_BYTES = 1_500_000_000
"""An allowance a GPU for the driver's context, workspaces of libraries and captured graphs."""
_LOGIT_BYTES = 4
_HIDDEN = 4
"""Hidden states that are alive beside what a layer makes: the sum, its norm, and their copies."""
_MOST_GPUS, _MOST_BATCH, _MOST_CONTEXT = 1 << 10, 1 << 20, 1 << 30


class Memory(Struct, frozen=True, kw_only=True):
    """What a deployment takes on `gpus` GPUs, all together, in bytes, and what fits there.

    `peak_bytes` is the sum of all parts. `fits` and `capacity_bytes` are None where the platform's
    memory is not known. `gpus_needed` is the least power of two that holds the same, None if none
    does. `largest_batch` is that at the asked context, `largest_context` that at the asked batch:
    0 where nothing fits, None where nothing limits it.
    """

    gpus: int
    weights_bytes: int
    kv_bytes: int
    activations_bytes: int
    engine_bytes: int
    peak_bytes: int
    capacity_bytes: int | None = None
    fits: bool | None = None
    gpus_needed: int | None = None
    largest_batch: int | None = None
    largest_context: int | None = None
    notes: tuple[str, ...] = ()
    """What is left out of the weights."""


class Needs(Struct, frozen=True, kw_only=True):
    """What a model in a precision takes, in bytes: by itself, and by request, token and GPU."""

    weights: float
    cache: tuple[CacheLayer, ...]
    cache_heads: int
    cached: float
    """An element of the cache."""
    kept: float
    """An element of what a layer keeps of each request, whatever its length."""
    token: float
    """What a forward makes of a token, and of each position whose logits are wanted."""
    logits: float
    notes: tuple[str, ...] = ()
    engine: int = ENGINE_BYTES
    prompt_tokens: int = PROMPT_TOKENS

    def parts(self, gpus: int, batch: int, context: int) -> tuple[int, int, int, int]:
        """Return weights, cache, activations and the engine's part on all GPUs, in bytes."""
        request = sum(self._layers(each, context) for each in self.cache)
        copies = gpus / min(gpus, self.cache_heads)
        passing = max(batch, self.prompt_tokens) * self.token + batch * self.logits
        return (
            round(self.weights),
            round(batch * request * copies),
            round(passing) * gpus,
            self.engine * gpus,
        )

    def _layers(self, each: CacheLayer, context: int) -> float:
        held = min(context, each.window or context)
        pages = -(-held // PAGE_POSITIONS) * PAGE_POSITIONS
        bytes_ = pages * each.elements * self.cached + each.state_elements * self.kept
        return each.layers * bytes_


def needs(model: ModelFile, precision: Precision | None) -> Needs | None:
    """Return what a model takes, in the precision of its files if None; None if that is unknown."""
    stored = precision or model.precision
    if not model.weights or stored is None:
        return None
    kv: Dtype = stored.kv
    plain = ELEMENT_BYTES[stored.plain]
    return Needs(
        weights=model.weights_bytes(precision),
        cache=model.cache,
        cache_heads=model.cache_heads,
        cached=ELEMENT_BYTES[kv],
        kept=plain,
        token=(_HIDDEN * model.d_model + model.widest) * plain,
        logits=model.vocabulary * (_LOGIT_BYTES + plain),
        notes=model.notes,
    )


@cache
def memory(
    needs: Needs, memory_gb: float | None, *, gpus: int = 1, batch: int = 1, context: int = 4096
) -> Memory:
    """Return what a deployment takes and whether it fits, at N = 1.

    Parameters
    ----------
    memory_gb
        A GPU's memory in decimal GB, None where it is not known.
    context
        L; the position itself is cached, too.
    """
    parts = needs.parts(gpus, batch, context + 1)
    weights, kv, activations, engine = parts
    taken = Memory(
        gpus=gpus,
        weights_bytes=weights,
        kv_bytes=kv,
        activations_bytes=activations,
        engine_bytes=engine,
        peak_bytes=sum(parts),
        notes=needs.notes,
    )
    if memory_gb is None:
        return taken
    each = memory_gb * BYTES_PER_GB

    def fits(gpus: int, batch: int, context: int) -> bool:
        return sum(needs.parts(gpus, batch, context + 1)) <= gpus * each

    powers = (1 << power for power in range(_MOST_GPUS.bit_length()))
    return structs.replace(
        taken,
        capacity_bytes=round(gpus * each),
        fits=fits(gpus, batch, context),
        gpus_needed=next((count for count in powers if fits(count, batch, context)), None),
        largest_batch=_largest(lambda b: fits(gpus, b, context), _MOST_BATCH),
        largest_context=_largest(lambda length: fits(gpus, batch, length), _MOST_CONTEXT),
    )


def _largest(holds: Callable[[int], bool], most: int) -> int | None:
    """Return the largest number of which something holds that ends once; None from `most` on."""
    if holds(most):
        return None
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
