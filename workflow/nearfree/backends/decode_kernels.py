"""The kernels of public tables by which engines and attention backends decode one position."""

from typing import NamedTuple

from nearfree.core.precision import PLAIN


class Decoder(NamedTuple):
    """A kernel of one position over a cache, by its name in an engine's public tables.

    `capabilities` are the compute capabilities, 90 for 9.0, on which the engine takes it and it was
    measured. `plain` says whether its cache has 16 bits, None for any cache. The engine decodes by
    it if it takes `backend` for attention. `own` says whether the kernel is that backend's own, and
    not only one for which the backend stands in.
    """

    kernel: str
    engine: str
    capabilities: frozenset[int]
    backend: str
    plain: bool | None = None
    own: bool = True


WIDEST = 256
"""The largest head size that these kernels take; larger heads have other kernels."""
_HOPPER, _BLACKWELL, _GDDR = frozenset({90}), frozenset({100, 103}), frozenset({89, 120})
DECODERS = (
    Decoder("vllm_flash_attn_fa3", "vllm", _HOPPER, "vllm_fa3"),
    Decoder("vllm_flash_attn", "vllm", frozenset({80}), "flash_attn", plain=True),
    Decoder("vllm_flash_attn_fa2", "vllm", _GDDR, "flash_attn", plain=True),
    Decoder("vllm_flashinfer_trtllmdecode", "vllm", _BLACKWELL, "flashinfer_fa2"),
    Decoder("vllm_flashinfer_fidecode", "vllm", _GDDR, "flashinfer_fa2", plain=False),
    Decoder("fa3", "sglang", _HOPPER, "vllm_fa3", own=False),
    Decoder("trtllm_mha", "sglang", _BLACKWELL, "flashinfer_fa2", own=False),
    Decoder("flashinfer", "sglang", _GDDR, "flashinfer_fa2"),
)
"""Source: collector/kernel_source_backends.yaml of ai-dynamo/aiconfigurator at 095f58a5, lines 235
to 248, and the tables generation_attention_perf: FlashAttention 3 on Hopper and 2 on others, of
vLLM 0.14.0 on the A100 without its number; TensorRT-LLM's decoder on data-centre Blackwell, in vLLM
by FlashInfer; FlashInfer's own elsewhere, in vLLM over a cache in 8 bits. What an engine takes by
default is in `attention_order.py`; over a cache in 8 bits on Hopper it is FlashAttention 3
(vllm 0.33.0, vllm/v1/attention/backends/fa_utils.py:282-313). TensorRT-LLM's own tables
(`torch_flow`) are left out: T(1) of other head layouts is off by .10 to .25 in the median and .3 to
.6 in one of five, and they did not improve the predictions of its published steps."""


class FlashInferModels(NamedTuple):
    """Models that an engine decodes by FlashInfer's kernel, though it takes `kernel` for others.

    This holds for its releases from `since` on and before `until`; None is an open end.
    """

    kernel: str
    models: frozenset[str]
    since: str | None = None
    until: str | None = None


BY_FLASHINFER = (
    FlashInferModels("fa3", frozenset({"qwen3_vl_text", "qwen3_vl_moe_text"}), since="0.5.23"),
    FlashInferModels("trtllm_mha", frozenset({"nemotron_h"}), until="0.5.23"),
    FlashInferModels("trtllm_mha", frozenset({"granitemoehybrid"}), since="0.5.13"),
)
"""`since` and `until` are the oldest releases read that do so, or no longer do so. Source: sglang
0.5.23, in
sglang/srt/arg_groups/model_overrides: qwen3_vl.py:17-30 and 129 (on GPUs of 60 GiB and more, as all
of compute capability 9.0 known here are), nemotron_h.py:123-148, granitemoehybrid.py:18; 0.5.14,
sglang/srt/arg_groups/nemotron_h_hook.py:60; 0.5.13, sglang/srt/server_args.py:2585-2592; 0.5.9,
sglang/srt/server_args.py:1552."""
NAMES = frozenset(decoder.kernel for decoder in DECODERS)


def engine_decoder(engine: str, backend: str, sm: int | None, kv_dtype: str) -> str | None:
    """Return the kernel by which an engine decodes by default, None if it is not known.

    Parameters
    ----------
    backend
        The engine's attention backend on that device (`ENGINE_ATTENTION`).
    sm
        The compute capability, 90 for 9.0.
    kv_dtype
        The format of the cache.
    """
    pair = engine, backend
    fitting = (one for one in _fitting(sm, kv_dtype) if (one.engine, one.backend) == pair)
    return next((decoder.kernel for decoder in fitting), None)


def backend_decoder(backend: str, sm: int | None, kv_dtype: str) -> str | None:
    """Return the kernel whose public curves measure a backend's decoding, None without one."""
    fitting = (one for one in _fitting(sm, kv_dtype) if one.own and one.backend == backend)
    return next((decoder.kernel for decoder in fitting), None)


def is_measured(kernel: str | None, engine: str, sm: int | None, kv_dtype: str) -> bool:
    """Return whether predictions use an engine's public curves of a kernel on that device."""
    fitting = _fitting(sm, kv_dtype)
    return any((kernel, engine) == (decoder.kernel, decoder.engine) for decoder in fitting)


def _fitting(sm: int | None, kv_dtype: str) -> list[Decoder]:
    """Return the decoders that engines take on a device over a cache in a format."""
    decoders = (decoder for decoder in DECODERS if sm in decoder.capabilities)
    return [decoder for decoder in decoders if decoder.plain in (None, kv_dtype in PLAIN)]
