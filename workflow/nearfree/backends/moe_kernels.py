"""Which kernel an engine runs for a quantised MoE layer: what the facts of each engine are made of.

They are stated by hand, in `vllm_moe_kernels` and `sglang_moe_kernels`: an engine asks class after
class whether it supports a layer, and what those answer is spread over its text. Each was read in
the releases that it names and holds for no other; environment variables and options are as they are
by default.
"""

from collections.abc import Mapping
from typing import NamedTuple

TRITON, MARLIN, TRITON_KERNELS = "Triton", "Marlin", "triton_kernels"
"""The kernel whose blocks `fused_moe` reads; the one for weights of few bits; gpt-oss's."""
TRTLLM = "FlashInfer's TRTLLM"
TRTLLM_8 = "FlashInfer's TRTLLM over rows in mxfp8"
"""The same where an engine's own choice keeps 16 bits, and an option of it rounds."""
CUTLASS = "FlashInfer's CUTLASS"
UNREAD = "one that is not read"
UNKNOWN_YET = "(none that takes them there)"
"""What a release lacks for weights that a later one takes, or for a GPU that others run on."""
NAIVE, ALIGNED = "naive", "aligned"
"""How the Triton kernel gets its rows: token by token, or sorted by expert and padded to blocks."""
GPT_OSS = "the model is gpt-oss"
KIMI_K3 = "it is Kimi K3 in a file of compressed-tensors"
DEEPSEEK_V4 = "it is DeepSeek V4"
GEMMA_4 = "it is Gemma 4"
NEMOTRON = "it is Nemotron-H in a file of ModelOpt or of 16 bits"
QWEN_3_5 = "it is Qwen3.5 or Qwen3.6"
INT4_K2 = "it is of DeepSeek V3's kind in a file of compressed-tensors with 4 bits in groups of 32"
PRESET = "the architecture is one that it is preset for"
TAKES = "it takes the layer's activation and routing"
ROUTED = "its activation and routing are among those that it takes"
GATED = f"{ROUTED}, and its experts have a gate"
STORED = "scales of activations are stored"
COMPRESSED = "the file is one of compressed-tensors"
STORED_ROUTED = f"{STORED} and it takes the routing"
COMPRESSED_4 = "the file is one of compressed-tensors, with 4 bits"
NOT_MODELOPT = "the file is one of compressed-tensors and none of ModelOpt"
WIDE = "rows enter in 16 bits"
GROUPS = "requests are spread over groups (dp)"
STORED_SPLIT = f"{STORED}, and tp, dp and ep are above 1"
ELSE = ("", "it is not", "it does not", "neither")
"""What holds where nothing that stands before it does."""
EIGHT_BITS = ("fp8", "fp8_block")
"""Formats of float8, whose rows all kernels but Marlin round as they enter."""
NEVER_TRITON = ("mxfp4", "nvfp4")
"""Formats that the Triton kernel of `fused_moe` does not take, whatever a question names."""
LAST = 999


class Kernel(NamedTuple):
    """A kernel and the compute capabilities, 90 for 9.0, where it runs, both ends included."""

    name: str
    first: int
    last: int = LAST
    where: str = ""
    """What else decides, where a question does not say it; several kernels may stand for one."""


class Selection(NamedTuple):
    """What a package's releases run for formats, named as a MoE query names them."""

    package: str
    dtypes: tuple[str, ...]
    file: str
    lines: Mapping[str, tuple[int, int]]
    """First and last line of what decides, by release."""
    kernels: tuple[Kernel, ...]
    spread: tuple[Kernel, ...] = ()
    """Those where whole experts are spread over ranks, where they are others."""
    apart: tuple[Kernel, ...] = ()
    """Those of single models and files, which come first: a question that names none is not of
    them."""
