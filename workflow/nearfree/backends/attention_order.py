"""Which backend runs attention where nobody names one: what engines take, and what stands in."""

from collections.abc import Mapping
from typing import NamedTuple

_ANY, _HOPPER, _BLACKWELL = range(200), range(90, 100), range(100, 110)
ATTENTION_ORDER: Mapping[str, range] = {
    "flash_attn": _ANY,
    "vllm_fa3": _HOPPER,
    "flash_attn_4": _BLACKWELL,
    "vllm_triton": _ANY,
    "flashinfer_fa2": _ANY,
}
"""Backends of grouped attention, of which the first that takes a model's runs where none is named,
each with the compute capabilities on which it is taken so."""


class Taken(NamedTuple):
    """A backend of attention that an engine takes on some compute capabilities.

    `sizes` are the elements of a head for which it does so. `sinks` says whether it does for heads
    with a logit that is no position's, `narrow` whether over a cache in 8 bits. `since` is the
    oldest release read that does so, None of all. Models of the kinds in `but` have another.
    """

    where: range
    name: str
    sizes: frozenset[int] = frozenset(range(1, 257))
    sinks: bool = True
    narrow: bool = True
    since: str | None = None
    but: frozenset[str] = frozenset()


_FLASH = frozenset(range(8, 257, 8))
_FLASHINFER = frozenset({64, 128, 256})
_WIDE = frozenset(range(1, 513))
ENGINE_ATTENTION: Mapping[str, tuple[Taken, ...]] = {
    "vllm": (
        Taken(_BLACKWELL, "flashinfer_fa2", _FLASHINFER | {512}, since="0.24.0"),
        Taken(_BLACKWELL, "flashinfer_fa2", _FLASHINFER),
        Taken(_BLACKWELL, "flash_attn_4", frozenset(range(8, 129, 8)), since="0.19.0"),
        Taken(_HOPPER, "vllm_fa3", _FLASH),
        Taken(_ANY, "flash_attn", _FLASH, sinks=False, narrow=False),
        Taken(_ANY, "flashinfer_fa2", _FLASHINFER, sinks=False),
        Taken(_ANY, "vllm_triton", _WIDE),
    ),
    "sglang": (
        Taken(_HOPPER, "vllm_fa3"),
        Taken(_BLACKWELL, "flashinfer_fa2", _WIDE),
        Taken(_ANY, "flashinfer_fa2", sinks=False, but=frozenset({"llama4_text"})),
        Taken(_ANY, "vllm_triton", _WIDE),
    ),
}
"""What an engine takes before those, in its order, as far as rules of it are read.

vLLM takes FlashInfer on data-centre Blackwell and FlashAttention elsewhere, each for the sizes of a
head that it has, then the other, then Triton's (vllm 0.33.0, vllm/platforms/cuda.py:157-181;
vllm/v1/attention/backends/flashinfer.py:691-693, and 402 of 0.20.2, which lacks 512;
flash_attn.py:425-435 there). Its FlashAttention is version 3 on Hopper, on data-centre Blackwell 4
for heads of up to 128 elements (fa_utils.py:95-226 there, and of 0.19.0, the oldest read that has
it), and 2 elsewhere. Heads of 512 elements are Gemma 4's, which up to 0.22.0 runs by Triton's
kernels alone (vllm/model_executor/models/config.py of 0.22.0, lines 57-106, and of 0.24.0).

SGLang takes FlashAttention 3 on Hopper, kernels of TensorRT-LLM on data-centre Blackwell, and
elsewhere FlashInfer, or Triton where heads have sinks and for Llama 4 and Gemma 4 (sglang 0.5.23,
sglang/srt/arg_groups/model_override_base.py:277-345, and model_overrides/llama4.py:23-37 and
gemma4.py:30-34; server_args.py of 0.5.9, 1450-1460). FlashInfer stands for TensorRT-LLM's kernels,
which it runs on Blackwell and whose source is not public: both pack the heads that share keys.
vLLM's FlashAttention 3 and Triton stand for SGLang's.
"""
