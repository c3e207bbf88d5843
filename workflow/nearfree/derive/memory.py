"""Whether a model fits: its weights as stored, its cache, and what a forward holds besides.

Weights, cache and activations follow from the model's files and from how GPUs share them; what an
engine keeps for itself is a stated allowance. What fits is decided by the GPU that holds most.
"""

from collections.abc import Callable, Iterator
from functools import cache

from msgspec import Struct, structs

from nearfree.core.parallel import ALONE, Parallel
from nearfree.core.precision import ELEMENT_BYTES, Dtype, Precision
from nearfree.decoders.attention_kinds import Latent
from nearfree.decoders.engines import VLLM, Engine
from nearfree.decoders.holding import Heads, Holding, head_share
from nearfree.decoders.model_file import ModelFile
from nearfree.decoders.stored_parts import Weights
from nearfree.decoders.weights import CacheLayer
from nearfree.units import BYTES_PER_GB

PAGE_POSITIONS = 16
"""Positions of a page of the cache: vLLM's default block size on GPUs."""
PROMPT_TOKENS = 8192
"""Tokens of a prompt that engines put through at once, which hold more than a decode forward's:
vLLM's default of `max_num_batched_tokens` when it serves on cards of 70 GB and more."""
ENGINE_BYTES = 1_500_000_000
"""An allowance a GPU for the driver's context, workspaces of libraries and captured graphs."""
COLLECTIVE_BYTES = (8 + 16 + 8 + 128) << 20
"""An allowance for buffers of collectives on each of several GPUs: those of vLLM's own all-reduce
for what is between, for its inputs and for its ranks' pointers, and the largest of torch's
symmetric memory. Source: vllm 0.33.0, in vllm/distributed/device_communicators:
custom_all_reduce.py:138-145 and 295-318, all_reduce_utils.py:58-83."""
FILLED = (256, 128)
"""Elements of whose multiples vLLM makes the rows and the width of a rank's part of experts in
mxfp4, for Marlin and FlashInfer's TRTLLM: mxfp4_round_up_hidden_size_and_intermediate_size of vllm
0.33.0, vllm/model_executor/layers/fused_moe/oracle/mxfp4.py:837-873."""
_LOGIT_BYTES = 4
_HIDDEN = 4
"""Hidden states that are alive beside what a layer makes: the sum, its norm, and their copies."""
_MOST_GPUS, _MOST_BATCH, _MOST_CONTEXT = 1 << 10, 1 << 20, 1 << 30


class Memory(Struct, frozen=True, kw_only=True):
    """What a deployment takes on `gpus` GPUs, all together, in bytes, and what fits there.

    `peak_bytes` is the sum of all parts, what several GPUs hold counting on each; `rank_bytes` is
    what the GPU with most holds. `fits` says whether that fits it; it and `capacity_bytes`, the
    memory of all GPUs, are None where the platform's is not known. `gpus_needed` is the least power
    of two that holds the same where all share each matrix, None if none does. `largest_batch` is
    that at the asked context, `largest_context` that at the asked batch: 0 where nothing fits, None
    where nothing limits it.
    """

    gpus: int
    weights_bytes: int
    kv_bytes: int
    activations_bytes: int
    engine_bytes: int
    peak_bytes: int
    rank_bytes: int
    capacity_bytes: int | None = None
    fits: bool | None = None
    gpus_needed: int | None = None
    largest_batch: int | None = None
    largest_context: int | None = None
    notes: tuple[str, ...] = ()
    """What is left out of the weights, and what a cache may take beyond what is counted."""
    drafter_bytes: int = 0
    """Weights and cache of what drafts beside it; `fits` counts them, the largest sizes do not."""

    @property
    def lasting(self) -> float:
        """What the GPU with most holds between forwards: weights and cache."""
        return self.rank_bytes - (self.activations_bytes + self.engine_bytes) / self.gpus

    def beside(self, drafter: "Memory") -> "Memory":
        """Return it with what drafts on the same GPUs."""
        bytes_ = drafter.weights_bytes + drafter.kv_bytes
        rank = self.rank_bytes + round(drafter.lasting)
        fits = None if self.capacity_bytes is None else rank <= self.capacity_bytes / self.gpus
        return structs.replace(
            self,
            drafter_bytes=bytes_,
            peak_bytes=self.peak_bytes + bytes_,
            rank_bytes=rank,
            fits=fits,
        )


class Needs(Struct, frozen=True, kw_only=True, eq=False):
    """What a model in a precision takes, in bytes: by itself, and by request, token and GPU.

    `weights` have their bytes in that precision. Two are the same if they are one object.
    """

    weights: tuple[Weights, ...]
    cache: tuple[CacheLayer, ...]
    layers: int
    heads: Heads
    experts: int
    vocabulary: int
    cached: float
    """An element of the cache."""
    kept: float
    """An element of what a layer keeps of each request, whatever its length, if not said apart."""
    hidden: float
    """What a forward makes of a token that lies on every GPU."""
    made: float
    """What a layer makes of a token, parted as the layer is."""
    logits: float
    """What it makes of each position whose logits are wanted."""
    model_type: str = ""
    expert: tuple[int, int] | None = None
    """How wide rows and a routed expert are, None without any or where it is not known."""
    notes: tuple[str, ...] = ()
    engine: int = ENGINE_BYTES
    prompt_tokens: int = PROMPT_TOKENS

    def rank(self, context: int, tp: int, *, windowed: bool) -> float:
        """Return what one of `tp` ranks caches of the positions of one request."""
        of = self.cached, self.kept
        return sum(cached_bytes(each, context, tp, *of, windowed=windowed) for each in self.cache)

    def states(self, engine: Engine, tp: int) -> float:
        """Return what one of `tp` ranks keeps of one request in all layers, however long it is."""
        return sum(each.layers * self._state(each, engine, tp) for each in self.cache)

    def _state(self, each: CacheLayer, engine: Engine, tp: int) -> float:
        matrices, dtype = each.matrices or 0, each.matrix_dtype or engine.states
        wide = ELEMENT_BYTES[dtype] if dtype else self.kept
        found = (each.state_elements - matrices) * self.kept + matrices * wide
        return found if each.whole is True else found / tp


def cached_bytes(
    each: CacheLayer, context: int, tp: int, cached: float, kept: float, *, windowed: bool
) -> float:
    """Return what one of `tp` ranks caches of some positions of a request, in whole pages.

    Parameters
    ----------
    each
        Layers, whose heads part what they cache.
    context
        The positions; where layers are not `windowed`, all are cached, however few they look back
        at.
    cached, kept
        Bytes of an element of the cache, and of one that a layer keeps in the plain format.
    """
    held = min(context, each.window or context) if windowed else context
    share = 1.0 if each.whole is True else head_share(each.heads, tp)
    pages = -(-held // PAGE_POSITIONS)
    return each.layers * pages * PAGE_POSITIONS * _position(each, cached, kept) * share


def _position(each: CacheLayer, cached: float, kept: float) -> float:
    """Return what a layer caches of a position, in bytes."""
    if each.whole is True:
        return each.elements * kept
    if each.dtype:
        return each.elements * ELEMENT_BYTES[each.dtype]
    more = (each.more or 0.0) if cached == ELEMENT_BYTES["float8"] else 0.0
    return each.elements * cached + more


class Load(Struct, frozen=True, kw_only=True):
    """What the GPUs of a deployment hold, but for what grows with requests.

    `stages` are the weights of a rank and the share of all layers, of each pipeline stage;
    `states` is what a rank keeps of a request in all layers, however long it is, and `windowed`
    says whether windows end the growth of the cache.
    """

    gpus: int
    weights: float
    stages: tuple[tuple[float, float], ...]
    dp: int
    tp: int
    engine: int
    states: float = 0.0
    windowed: bool = True


@cache
def loaded(
    needs: Needs, parallel: Parallel = ALONE, engine: Engine = VLLM, *, filled: bool = False
) -> Load:
    """Return what the GPUs of a deployment hold; layers of a cache are taken as evenly spread.

    What is stored outside of layers lies on the first stage but the LM head and what is behind the
    layers, on the last; a tied LM head on both. Source: vllm 0.33.0,
    vllm/model_executor/models/llama.py:378-397 and 502-517.
    """
    kind, vocabulary = needs.model_type, needs.vocabulary
    holding = Holding(parallel, engine, needs.heads, needs.experts, vocabulary, kind)
    full = _filled(needs.expert, parallel) if filled and needs.expert else 1.0
    tied = not any(each.kind == "lm_head" for each in needs.weights)
    ranks, every, found = parallel.ranks, 0.0, list[tuple[float, float]]()
    stages = holding.stages(needs.layers)
    for number, layers in enumerate(stages):
        last, first = number == len(stages) - 1, number == 0
        rank = 0.0
        for each in needs.weights:
            part = _there(each, layers, first=first, last=last, tied=tied) * each.size_bytes
            part *= full if each.kind == "experts" else 1.0
            rank += part * holding.share(each.how, each.kind)
            every += part * holding.copies(each.how, each.kind)
        found.append((rank, len(layers) / needs.layers))
    buffers = COLLECTIVE_BYTES if ranks > 1 else 0
    return Load(
        gpus=parallel.gpus,
        weights=every,
        stages=tuple(dict.fromkeys(found)),
        dp=parallel.dp,
        tp=parallel.tp,
        engine=needs.engine + buffers,
        states=needs.states(engine, parallel.tp),
        windowed=engine.keeps_windows(kind),
    )


def _filled(expert: tuple[int, int], parallel: Parallel) -> float:
    """Return what experts take once they are filled up, over what they take as stored."""
    (rows, width), (of_rows, of_width) = expert, FILLED
    part = -(-width // parallel.moe_tp)
    wide = -(-part // of_width) * of_width * parallel.moe_tp
    return (-(-rows // of_rows) * of_rows) * wide / (rows * width)


def _there(each: Weights, layers: range, *, first: bool, last: bool, tied: bool) -> float:
    """Return which part of some weights a stage has."""
    if each.layers:
        return sum(layer in layers for layer in each.layers) / len(each.layers)
    if each.kind == "embedding":
        return 1.0 if first or (last and tied) else 0.0
    return 1.0 if (last if each.kind in ("lm_head", "norm", "other") else first) else 0.0


def _passing(needs: Needs, load: Load, requests: int) -> float:
    """Return what a forward makes on a rank."""
    passing = max(requests, needs.prompt_tokens) * (needs.hidden + needs.made / load.tp)
    return passing + requests * needs.logits


def _request(needs: Needs, load: Load, context: int) -> float:
    """Return what a rank keeps of a request; the position itself is cached, too."""
    return needs.rank(context + 1, load.tp, windowed=load.windowed) + load.states


def _most(needs: Needs, load: Load, batch: int, context: int) -> int:
    """Return what the GPU with most takes."""
    requests = -(-batch // load.dp)
    cached = requests * _request(needs, load, context)
    most = max([weights + cached * layers for weights, layers in load.stages])
    return round(most) + round(_passing(needs, load, requests)) + load.engine


def needs(model: ModelFile, precision: Precision | None) -> Needs | None:
    """Return what a model takes, in the precision of its files if None; None if that is unknown."""
    stored = precision or model.around
    if not model.weights or stored is None:
        return None
    kv: Dtype = stored.kv
    plain = ELEMENT_BYTES[stored.plain]
    experts = model.decoder and model.decoder.experts
    return Needs(
        weights=model.stored(precision),
        cache=model.cache,
        layers=model.layers,
        heads=model.heads,
        experts=model.experts,
        vocabulary=model.vocabulary,
        cached=ELEMENT_BYTES[kv],
        kept=plain,
        hidden=_HIDDEN * model.d_model * plain,
        made=model.widest * plain,
        logits=model.vocabulary * (_LOGIT_BYTES + plain),
        model_type=model.model_type,
        expert=(model.d_model, experts.d_ff) if experts and not experts.latent else None,
        notes=(*model.notes, *_records(model, kv)),
    )


def _records(model: ModelFile, kv: Dtype) -> Iterator[str]:
    """Yield what an engine's own record of a selected latent in float8 takes beyond its elements.

    Source: MLAAttentionSpec of vllm 0.33.0, vllm/v1/kv_cache_interface.py; sglang 0.5.23,
    sglang/srt/mem_cache/memory_pool.py (the pool of DSA).
    """
    kinds = model.decoder.attention if model.decoder else ()
    of = next((kind for kind in kinds if isinstance(kind, Latent) and kind.selected), None)
    if of is not None and kv == "float8":
        record = of.latent + of.latent // 128 * 4 + 2 * of.rope_dim
        yield (
            f"a position of selected latents in float8 counts {of.cached} bytes: FlashMLA, which "
            f"engines run for it below compute capability 10.0, keeps {record}"
        )


@cache
def memory(
    needs: Needs,
    memory_gb: float | None,
    *,
    parallel: Parallel = ALONE,
    engine: Engine = VLLM,
    batch: int = 1,
    context: int = 4096,
    filled: bool = False,
) -> Memory:
    """Return what a deployment takes and whether it fits, at N = 1.

    Requests are those whose caches lie on the GPUs, parted among the groups that attend to their
    own; to keep pipeline stages busy, each must have as many under way.

    Parameters
    ----------
    memory_gb
        A GPU's memory in decimal GB, None where it is not known.
    parallel, engine
        How GPUs share the model, and whose rules say what each of them holds.
    context
        L; the position itself is cached, too.
    filled
        Whether experts are filled up to whole blocks.
    """
    asked = loaded(needs, parallel, engine, filled=filled)
    request = _request(needs, asked, context) * asked.tp
    weights, kv = round(asked.weights), round(batch * request)
    activations = round(_passing(needs, asked, -(-batch // asked.dp))) * asked.gpus
    engine_bytes = asked.engine * asked.gpus
    most = _most(needs, asked, batch, context)
    taken = Memory(
        gpus=parallel.gpus,
        weights_bytes=weights,
        kv_bytes=kv,
        activations_bytes=activations,
        engine_bytes=engine_bytes,
        peak_bytes=weights + kv + activations + engine_bytes,
        rank_bytes=most,
        notes=needs.notes,
    )
    if memory_gb is None:
        return taken
    each = memory_gb * BYTES_PER_GB

    powers = (1 << power for power in range(_MOST_GPUS.bit_length()))
    holding = (
        gpus
        for gpus in powers
        if _most(needs, loaded(needs, Parallel(tp=gpus), engine, filled=filled), batch, context)
        <= each
    )
    return structs.replace(
        taken,
        capacity_bytes=round(parallel.gpus * each),
        fits=most <= each,
        gpus_needed=next(holding, None),
        largest_batch=_largest_batch(needs, asked, each, context),
        largest_context=_largest(
            lambda length: _most(needs, asked, batch, length) <= each, _MOST_CONTEXT
        ),
    )


@cache
def _largest_batch(needs: Needs, load: Load, each: float, context: int) -> int | None:
    """Return the most requests whose caches fit, whatever the batch that is asked about."""
    return _largest(lambda batch: _most(needs, load, batch, context) <= each, _MOST_BATCH)


def _largest(holds: Callable[[int], bool], most: int) -> int | None:
    """Return the largest number of which something holds that ends once; None from `most` on."""
    if holds(most):
        return None
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
