"""The default attention backend: of engines by device and model, and of queries without engine."""

from collections.abc import Mapping
from typing import NamedTuple

_ANY, _AMPERE, _HOPPER, _BLACKWELL = range(200), range(80, 90), range(90, 100), range(100, 110)
ATTENTION_ORDER: Mapping[str, range] = {
    "flash_attn": _ANY,
    "vllm_fa3": _HOPPER,
    "flash_attn_4": _BLACKWELL,
    "vllm_triton": _ANY,
    "flashinfer_fa2": _ANY,
}
"""Backends of grouped-query attention, in order, with the compute capabilities on which each is a
default. If a query names none, the first that takes the model's attention is assumed."""


class AttentionChoice(NamedTuple):
    """An attention backend that an engine selects on some compute capabilities.

    `sizes` are the head sizes for which it does so. `sinks` says whether also for heads with
    attention sinks, `narrow` whether over a cache in 8 bits, `images` whether for models in which
    positions of an image attend to each other. `since` is the oldest release read that selects it,
    None for all releases; `until` the oldest read that no longer does. It is selected for the model
    types in `only`, for all if that is empty, but not for those in `but`.
    """

    capabilities: range
    name: str
    sizes: frozenset[int] = frozenset(range(1, 257))
    sinks: bool = True
    narrow: bool = True
    images: bool = True
    since: str | None = None
    until: str | None = None
    only: frozenset[str] = frozenset()
    but: frozenset[str] = frozenset()


_FLASH = frozenset(range(8, 257, 8))
_FLASH_4 = frozenset(range(8, 129, 8))
_FLASHINFER = frozenset({64, 128, 256})
_WIDE = frozenset(range(1, 513))
WINDOWED = "exaone4"
"""A model type in `_FLASH_3` that belongs there only if its layers have windows."""
_FLASH_3 = frozenset({"olmo2", WINDOWED})
ENGINE_ATTENTION: Mapping[str, tuple[AttentionChoice, ...]] = {
    "vllm": (
        AttentionChoice(_BLACKWELL, "flashinfer_fa2", frozenset({256, 512}), since="0.30.0"),
        AttentionChoice(
            _BLACKWELL, "flashinfer_fa2", _FLASHINFER | {512}, images=False, since="0.24.0"
        ),
        AttentionChoice(_BLACKWELL, "flashinfer_fa2", _FLASHINFER, images=False),
        AttentionChoice(_BLACKWELL, "flash_attn_4", _FLASH_4, since="0.24.0"),
        AttentionChoice(_BLACKWELL, "flash_attn_4", _FLASH_4, images=False, since="0.19.0"),
        AttentionChoice(_HOPPER, "vllm_fa3", frozenset({256}), since="0.30.0"),
        AttentionChoice(_HOPPER, "vllm_fa3", _FLASH, images=False),
        AttentionChoice(_ANY, "flash_attn", _FLASH, sinks=False, narrow=False, images=False),
        AttentionChoice(_ANY, "flashinfer_fa2", _FLASHINFER, sinks=False, images=False),
        AttentionChoice(_ANY, "vllm_triton", _WIDE),
    ),
    "sglang": (
        AttentionChoice(_HOPPER, "vllm_fa3"),
        AttentionChoice(_AMPERE, "flash_attn_3", only=_FLASH_3),
        AttentionChoice(_BLACKWELL, "vllm_triton", only=frozenset({"falcon_h1"})),
        AttentionChoice(
            _BLACKWELL, "vllm_triton", only=frozenset({"granitemoehybrid"}), until="0.5.13"
        ),
        AttentionChoice(_BLACKWELL, "flashinfer_fa2", _WIDE),
        AttentionChoice(_ANY, "flashinfer_fa2", sinks=False, but=_FLASH_3 | {"llama4_text"}),
        AttentionChoice(_ANY, "vllm_triton", _WIDE),
    ),
}
"""The attention backends that an engine selects, in its order, as far as its rules are read.

vLLM takes FlashInfer on data-centre Blackwell and FlashAttention elsewhere, each for the head sizes
that it has, then the other, then Triton's (vllm 0.33.0, vllm/platforms/cuda.py:157-181;
vllm/v1/attention/backends/flashinfer.py:691-693, and 402 of 0.20.2, which lacks 512;
flash_attn.py:425-435 there). Its FlashAttention is version 3 on Hopper, on data-centre Blackwell 4
for heads of up to 128 elements (fa_utils.py:95-226 there, and of 0.19.0, the oldest read that has
it), and 2 elsewhere. Heads of 512 elements are Gemma 4's, which up to 0.22.0 runs by Triton's
kernels alone (vllm/model_executor/models/config.py of 0.22.0, lines 57-106, and of 0.24.0). For
models in which positions of an image attend to each other, the backend must have such a mask, even
for steps without images: FlashAttention 4 has it from 0.24.0 on, and Triton's (use_mm_prefix in
vllm/v1/attention/backend.py of 0.14.0, lines 220-236, and flash_attn.py of 0.24.0, lines 195-233).
Since 0.30.0 steps without images run by FlashInfer or FlashAttention if heads have 256 or 512
elements
(triton_flashinfer.py and triton_flash_attn.py of 0.30.0).

SGLang takes FlashAttention 3 on Hopper, kernels of TensorRT-LLM on data-centre Blackwell, and
elsewhere FlashInfer, or Triton for heads with sinks, Llama 4 and Gemma 4 (sglang 0.5.23,
sglang/srt/arg_groups/model_override_base.py:277-345, and model_overrides/llama4.py:23-37 and
gemma4.py:30-34; server_args.py of 0.5.9, 1450-1460). OLMo 2, and EXAONE 4 with windows, have
FlashAttention 3 from 8.0 on, which does not start on 12.0, while Triton's does (olmo2.py:24-30 and
exaone.py:22-29 of model_overrides; server_args.py of 0.5.9, 1488-1512, where EXAONE 4's must be
named; layers/attention/attention_registry.py:238-246). On data-centre Blackwell Triton decodes
Falcon-H1, and Granite 4's hybrids up to 0.5.12 (falcon_h1.py:17 of model_overrides; server_args.py
of 0.5.9, 1629-1652, and of 0.5.13, 2585-2592), and so it does Qwen's with states in 0.5.9 and,
without drafts, up to 0.5.14 (1579-1605 there, and 4188-4210 of 0.5.14); predictions nevertheless
assume TensorRT-LLM's kernels there, which published recipes name. FlashInfer stands in for
TensorRT-LLM's kernels, which it runs on Blackwell and whose source is not public: both pack the
heads that share keys. xformers' and vLLM's FlashAttention 3 and vLLM's Triton stand in for
SGLang's.
"""
STAND_INS = {
    *(("sglang", backend) for backend in ("vllm_fa3", "vllm_triton", "flash_attn_3")),
    *(("trtllm", backend) for backend in (*ATTENTION_ORDER, "flash_attn_3")),
}
"""Engines, and attention backends that stand in for kernels of the engine's own. TensorRT-LLM's
are in binaries; it takes them by default (`attn_backend` of tensorrt_llm/llmapi/llm_args.py)."""
IMAGES_SINCE = {"vllm": "0.14.0"}
"""The oldest release read that requires a backend to support a mask of images, by engine."""
