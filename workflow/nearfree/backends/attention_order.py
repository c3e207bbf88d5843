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

    `sinks` says whether it does so for heads with a logit that is no position's, too.
    """

    where: range
    name: str
    sinks: bool = True


ENGINE_ATTENTION: Mapping[str, tuple[Taken, ...]] = {
    "vllm": (Taken(_BLACKWELL, "flashinfer_fa2"), Taken(_HOPPER, "vllm_fa3")),
    "sglang": (
        *(Taken(_HOPPER, "vllm_fa3"), Taken(_BLACKWELL, "flashinfer_fa2")),
        Taken(_ANY, "flashinfer_fa2", sinks=False),
    ),
}
"""What an engine takes before those, by compute capability, as far as rules of it are read.

vLLM takes FlashInfer on data-centre Blackwell and FlashAttention elsewhere, of that version 3 on
Hopper and 2 on others (vllm-project/vllm at 0052a5b8, vllm/platforms/cuda.py,
_get_backend_priorities, and vllm/v1/attention/backends/fa_utils.py, get_flash_attn_version); SGLang
FlashAttention 3 on Hopper, kernels of TensorRT-LLM on data-centre Blackwell, and elsewhere
FlashInfer, or Triton where heads have sinks (sgl-project/sglang, srt/server_args.py,
_get_default_attn_backend). FlashInfer stands for TensorRT-LLM's kernels, which it runs on Blackwell
and whose source is not public: both pack the heads that share keys. vLLM's FlashAttention 3 stands
for SGLang's, which is of the same source.
"""
