"""Choice of an attention backend where the query names none, and refusals of those it names."""

from collections.abc import Iterator, Sequence

from nearfree.backends.attention_order import (
    ATTENTION_ORDER,
    ENGINE_ATTENTION,
    IMAGES_SINCE,
    WINDOWED,
    AttentionChoice,
)
from nearfree.backends.decode_kernels import WIDEST, engine_decoder
from nearfree.backends.names import BackendRelease, is_since
from nearfree.backends.record import Backend
from nearfree.backends.records import BY_NAME, engine_backend
from nearfree.core.modules.attention import ATTENTION
from nearfree.core.modules.attention_layer import ATTENTION_LAYER
from nearfree.core.modules.indexer import INDEXER
from nearfree.core.modules.mla import MLA
from nearfree.core.precision import PLAIN, Precision
from nearfree.decoders.attention_kinds import Cached, Compressed, Grouped, in_blocks
from nearfree.decoders.decoder import Decoder
from nearfree.decoders.ranks.engines import TRTLLM, VLLM
from nearfree.decoders.state_kinds import ShortConv, State
from nearfree.errors import Refusal


def attention_candidates(
    decoder: Decoder | None, precision: Precision | None, sm: int | None, engine: BackendRelease
) -> Iterator[str]:
    """Yield candidate backends of a model's attention on a device, as users write them.

    The first one whose rules are on record runs it. The choice of the engine that serves the model
    comes first. `decoder` and `precision` are None where they are not known, `sm` is the device's
    compute capability, 90 for 9.0, None without one.
    """
    kinds = decoder.attention if decoder else ()
    plain = precision is None or precision.kv in PLAIN
    usual = [*ATTENTION_ORDER][0 if plain else -1]
    cache = [kind for kind in kinds if not (isinstance(kind, State) or in_blocks(kind))]
    special = next((kind for kind in cache if not isinstance(kind, Grouped)), None)
    if special is not None:
        module = ATTENTION_LAYER if isinstance(special, Compressed) else MLA
        record = engine_backend(engine.name, module.name) or BY_NAME[usual]
        yield f"{record.names[0]}=={engine.version}" if engine.version else record.names[0]
        return
    engine_choices = (
        (choice.name, choice.capabilities)
        for choice in _engine_choices(decoder, sm, engine, plain=plain)
    )
    for name, where in (*engine_choices, *ATTENTION_ORDER.items()):
        record = BY_NAME[name]
        cached = plain or precision is None or precision.kv in (record.caches or ())
        if cached and _runs(record, sm, where, cache):
            yield record.names[0]
    yield BY_NAME[usual].names[0]


def decode_kernel(
    decoder: Decoder, kv_dtype: str, sm: int | None, engine: BackendRelease
) -> str | None:
    """Return the attention kernel with which an engine decodes a model, None where not known.

    `kv_dtype` is the format of the cache, `sm` as in `attention_candidates`.
    """
    if not any(isinstance(kind, Grouped) for kind in decoder.attention):
        return None
    for choice in _engine_choices(decoder, sm, engine, plain=kv_dtype in PLAIN):
        if _runs(BY_NAME[choice.name], sm, choice.capabilities, _grouped_kinds(decoder)):
            return engine_decoder(engine.name, choice.name, sm, kv_dtype)
    return None


_XQA, _FA4_OF_HOPPER = "0.28.0", "0.24.0"
_BY_FLASHINFER = frozenset({"deepseek_v2", "glm4_moe_lite"})
_BY_TRITON = frozenset({"qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"})
_TRITON_WITHOUT_DRAFTS, _TRITON_UNTIL = "0.5.10", "0.5.23"


def other_kernel(decoder: Decoder, sm: int | None, engine: BackendRelease) -> str | None:
    """Return a description of an engine's attention kernel whose tiles are not known, if it is one.

    FlashInfer's XQA and FlashAttention 4 on Hopper are not read. Up to 0.26.0, the newest release
    read before 0.28.0, vLLM runs Triton's kernel for sinks (vllm 0.28.0,
    vllm/v1/attention/backends/flashinfer.py, supports_sink), and up to 0.22.0 for Gemma 4
    (Gemma4Config of model_executor/models/config.py there and of 0.24.0). SGLang runs
    TensorRT-LLM's kernel, which answers cover, only for latents of DeepSeek V3's kind (sglang
    0.5.23, model_overrides/deepseek_v2.py:37-50 and 177-189 and model_override_base.py:322-326;
    server_args.py of 0.5.9, 1197-1203 and 1823-1824), and Triton's for some models in some releases
    (`backends/attention_order.py`).
    """
    if sm is not None and sm // 10 == 10 and engine.name == "sglang":
        return _sglang_other_kernel(decoder.model_type, engine.version)
    if sm is None or engine.name != "vllm":
        return None
    grouped = _grouped_kinds(decoder)
    sinks = any(kind.sinks for kind in grouped)
    wide = any(kind.head_dim > WIDEST for kind in grouped)
    if sm // 10 == 12 and sinks and is_since(engine.version, _XQA):
        return "heads with sinks on this GPU by FlashInfer's XQA"
    if sm // 10 == 9 and wide and is_since(engine.version, _FA4_OF_HOPPER):
        return "this model on this GPU by FlashAttention 4"
    return None


def _sglang_other_kernel(model: str, version: str | None) -> str | None:
    if model in _BY_FLASHINFER:
        return "latents of this model on this GPU by FlashInfer's kernel"
    if model not in _BY_TRITON or is_since(version, _TRITON_UNTIL):
        return None
    drafts = "what has no drafts" if is_since(version, _TRITON_WITHOUT_DRAFTS) else "this model"
    return f"{drafts} on this GPU by Triton's kernels unless its --attention-backend names others"


def _engine_choices(
    decoder: Decoder | None, sm: int | None, engine: BackendRelease, *, plain: bool
) -> Iterator[AttentionChoice]:
    """Yield the backends that an engine may run for grouped attention, its own choice first."""
    kinds = _grouped_kinds(decoder)
    sinks = any(kind.sinks for kind in kinds)
    model = decoder.model_type if decoder else ""
    if model == WINDOWED and not any(kind.window for kind in kinds):
        model = ""
    since = IMAGES_SINCE.get(engine.name)
    masked = since is not None and is_since(engine.version, since)  # a backend must mask images
    images = decoder is not None and decoder.sees_images is True and masked
    for choice in ENGINE_ATTENTION.get(engine.name, ()):
        if (
            sm in choice.capabilities
            and all(kind.head_dim in choice.sizes for kind in kinds)
            and (choice.sinks or not sinks)
            and (choice.narrow or plain)
            and (choice.images or not images)
            and (choice.since is None or is_since(engine.version, choice.since))
            and not (choice.until and is_since(engine.version, choice.until))
            and (not choice.only or model in choice.only)
            and model not in choice.but
        ):
            yield choice


def _grouped_kinds(decoder: Decoder | None) -> list[Grouped]:
    """Return the kinds of a model's layers that a backend of grouped attention runs."""
    kinds = decoder.attention if decoder else ()
    return [kind for kind in kinds if isinstance(kind, Grouped) and not in_blocks(kind)]


def _runs(record: Backend, sm: int | None, where: range, kinds: Sequence[Cached]) -> bool:
    """Return whether a backend runs on a device and has kernels for kinds of layers."""
    supported = not record.capabilities or sm in record.capabilities
    on_device = not where.start if sm is None else sm in where and supported
    return on_device and not any(_lack(record, kind) for kind in kinds)


def attention_refusals(
    decoder: Decoder,
    release: BackendRelease,
    sm: int | None = None,
    kv_dtype: str = PLAIN[0],
) -> Iterator[Refusal]:
    """Yield a refusal for each kind of layers that a backend has no kernel for.

    The remedy names backends that take all kinds and a cache in `kv_dtype` and run on the device of
    compute capability `sm`, None for any; if none takes the cache, it names another format.
    """
    record = BY_NAME[release.name]
    # An engine runs the others by kernels of its own, whatever runs attention.
    kinds = [kind for kind in decoder.attention if not (isinstance(kind, State) or in_blocks(kind))]
    for kind in kinds:
        lacking = _lack(record, kind)
        if lacking:
            capable = [
                backend
                for backend in BY_NAME.values()
                if backend.names and (backend.rules or backend.engine)
                if sm is None or not backend.capabilities or sm in backend.capabilities
                if not any(_lack(backend, each) for each in kinds)
            ]
            narrow = kv_dtype not in PLAIN and isinstance(kind, Grouped)
            takers = [each for each in capable if not narrow or kv_dtype in (each.caches or ())]
            layers = f"{len(kind.layers)} layers ({kind.words})"
            cache = "" if takers or not narrow else f" --kv-dtype {decoder.dtype}"
            remedy = " or ".join(
                f"--attention {_as_written(each)}{cache}" for each in takers or capable
            )
            reason = f"{release.name} has no kernel for the attention of {layers}: {lacking}"
            yield Refusal("", "", reason, f"Ask with {remedy}" if capable else "Name another model")


def _as_written(backend: Backend) -> str:
    """Return a backend as users name it, with a release where none is listed."""
    return backend.names[0] + ("==VERSION" if backend.engine == TRTLLM.name else "")


_BLOCK_VERIFICATION = {
    "sglang": (
        "verifies no drafts of a model that attends to selected blocks: on a GPU of NVIDIA they "
        "are prefilled outside of its CUDA graphs, and with MSA it does not start (sglang 0.5.23, "
        "sglang/srt/layers/attention/minimax_sparse_backend.py:293-304 and 1456-1640)"
    ),
    "trtllm": (
        "attends to selected blocks by kernels whose forward of several positions is not read"
    ),
}


_CONVOLUTION_SINCE = {"vllm": "0.29.0", "sglang": "0.5.19"}
"""The first release on record that keeps the rows of a short convolution for every draft, so that a
rejected draft leaves no row behind. Source: vllm-project/vllm pull 50272, and
vllm/model_executor/layers/mamba/short_conv.py of 0.28.0 and 0.29.0; sglang/srt/models/lfm2.py of
0.5.18 and 0.5.19 (shortconv_target_verify)."""


def _convolution_refusals(engine: BackendRelease) -> Iterator[Refusal]:
    """Yield the refusal of an engine that cannot verify drafts in layers of short convolutions."""
    first = _CONVOLUTION_SINCE.get(engine.name)
    if first is None:
        reason = f"{engine.name} runs short convolutions by kernels that are not read"
        yield Refusal("", "moe", reason, "Ask with --moe vllm")
    elif not is_since(engine.version, first):
        reason = (
            f"{engine.name} {engine.version} verifies no drafts of a model with short "
            "convolutions: rows of a rejected draft stay in what it keeps"
        )
        yield Refusal("", "moe", reason, f"Ask with --moe {engine.name}=={first} or a later one")


def verification_refusals(decoder: Decoder, engine: BackendRelease) -> Iterator[Refusal]:
    """Yield refusals of an engine that has no forward of several positions for a model."""
    if any(isinstance(kind, ShortConv) for kind in decoder.attention):
        yield from _convolution_refusals(engine)
    expands = any(isinstance(kind, Grouped) and kind.expansion for kind in decoder.attention)
    if expands and engine.name != VLLM.name:
        reason = (
            f"{engine.name} caches the latents of this model, from which vLLM makes keys and "
            "values: its forward of several positions is not read, and memory is that of vLLM"
        )
        yield Refusal("", "moe", reason, "Ask with --moe vllm")
    if decoder.in_blocks and engine.name in _BLOCK_VERIFICATION:
        yield Refusal(
            "", "moe", f"{engine.name} {_BLOCK_VERIFICATION[engine.name]}", "Ask with --moe vllm"
        )


def _lack(record: Backend, kind: Cached) -> str:
    """Return the feature of a kind of attention that a backend's kernels lack; empty if none."""
    if isinstance(kind, Compressed):
        supported = ATTENTION_LAYER.name in record.modules
        return "" if supported else "none is of entries that stand for several positions"
    if not isinstance(kind, Grouped):
        missing = [*([] if MLA.name in record.modules else ["a latent"])]
        if kind.index_heads and INDEXER.name not in record.modules:
            missing.append("an indexer of positions")
        return f"none is of {' and '.join(missing)}" if missing else ""
    reasons = {
        "none is of grouped queries": ATTENTION.name not in record.modules,
        f"heads of {kind.head_dim} elements are wider than {record.widest}": (
            kind.head_dim > record.widest
        ),
        "heads have a logit that is no position's (sinks)": kind.sinks and not record.sinks,
        "logits are biased by distance (ALiBi)": kind.alibi and not record.alibi,
        f"keys have {kind.head_dim} elements and values {kind.value_dim}": bool(
            kind.value_dim and not record.values_apart
        ),
    }
    return next((reason for reason, applies in reasons.items() if applies), "")
