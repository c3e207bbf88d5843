"""Which kernel of public tables decodes where a backend of attention runs, or stands for one."""

from typing import NamedTuple

from nearfree.core.precision import PLAIN


class Decodes(NamedTuple):
    """A kernel of one position over a cache by its name in public tables, and where it stands.

    `backend` and `release` are those whose tiles it has; `where` are the compute capabilities, 90
    for 9.0, on which it was measured, and `plain` says whether its cache has 16 bits, None of any.
    """

    kernel: str
    backend: str
    release: str
    where: frozenset[int]
    plain: bool | None


_FLASHINFER = ("flashinfer_fa2", "0.7.2.post1")
_GDDR = frozenset({89, 120})
DECODE_KERNELS = (
    Decodes("vllm_flash_attn_fa3", "vllm_fa3", "0.33.0", frozenset({90}), plain=True),
    Decodes("vllm_flash_attn", "flash_attn", "2.8.3", frozenset({80}), plain=True),
    Decodes("vllm_flash_attn_fa2", "flash_attn", "2.8.3", _GDDR, plain=True),
    Decodes("vllm_flashinfer_trtllmdecode", *_FLASHINFER, frozenset({100, 103}), plain=None),
    Decodes("flashinfer", *_FLASHINFER, _GDDR, plain=True),
    Decodes("vllm_flashinfer_fidecode", *_FLASHINFER, _GDDR, plain=False),
)
"""Source: collector/kernel_source_backends.yaml of ai-dynamo/aiconfigurator at 095f58a5, lines 235
to 248: FlashAttention 3 on Hopper and 2 on others, of vLLM 0.14.0 on the A100 without its number;
FlashInfer's call of TensorRT-LLM's decoder on data-centre Blackwell, and its own elsewhere, by
SGLang in 16 bits and by vLLM over a cache in 8."""


def decode_kernel(named: str | None, sm: int | None, kv_dtype: str) -> Decodes | None:
    """Return the kernel whose public curves speak of a backend's decoding, None without one.

    Parameters
    ----------
    named
        The backend, or the kernel itself by its public name.
    sm
        The compute capability, 90 for 9.0.
    kv_dtype
        The format of the cache.
    """
    plain = kv_dtype in PLAIN
    fitting = (
        each
        for each in DECODE_KERNELS
        if named in (each.kernel, each.backend) and sm in each.where and each.plain in (None, plain)
    )
    return next(fitting, None)
