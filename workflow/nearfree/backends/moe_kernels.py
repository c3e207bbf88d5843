"""The vocabulary of facts about the kernel that an engine runs for an MoE layer or dense product.

The facts are stated by hand, in `vllm_moe_kernels`, `sglang_moe_kernels` and `dense_kernels`: an
engine asks class after class whether it supports a layer, and the answers are spread over its
source. Each fact was read in the releases that it names and holds for no other. Environment
variables and options have their defaults.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from nearfree.errors import EvidenceError

TRITON, MARLIN, TRITON_KERNELS = "Triton", "Marlin", "triton_kernels"
"""The kernel whose blocks `fused_moe` reads; the one for 4- and 8-bit weights; gpt-oss's."""
TRTLLM = "FlashInfer's TRTLLM"
TRTLLM_8 = "FlashInfer's TRTLLM over rows in mxfp8"
"""The same kernel over rounded rows, which an option selects; by default rows keep 16 bits."""
CUTLASS = "FlashInfer's CUTLASS"
UNREAD = "one that is not read"
UNKNOWN_YET = "(none that takes them there)"
"""The kernel that a release lacks, for weights that a later one takes or for a GPU."""
NAIVE, ALIGNED = "naive", "aligned"
"""The Triton kernel's row order: token by token, or sorted by expert and padded to blocks."""
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
FALLBACKS = ("", "it is not", "it does not", "neither")
"""Conditions of a fallback: they hold if no earlier kernel's condition does."""
EIGHT_BITS = ("fp8", "fp8_block")
"""Formats of float8: all kernels but Marlin round the rows that enter."""
NEVER_TRITON = ("mxfp4", "nvfp4")
"""Formats that the Triton kernel of `fused_moe` does not take, even if a query names it."""
MAX_SM = 999


class Kernel(NamedTuple):
    """A kernel and the compute capabilities, 90 for 9.0, on which it runs, both ends included."""

    name: str
    min_sm: int
    max_sm: int = MAX_SM
    condition: str = ""
    """A further condition that a query does not determine; empty if there is none."""
    columns: int = 1
    depth: int = 1
    """Of a dense product: the multiples that its weights' outputs and inputs must be."""


class Selection(NamedTuple):
    """The kernels of a package's releases for formats, in the order in which it tries them.

    Formats are named as in an MoE query, or as `dense_format` names them.
    """

    package: str
    dtypes: tuple[str, ...]
    file: str
    lines: Mapping[str, tuple[int, int]]
    """First and last line of the code that selects, by release."""
    kernels: tuple[Kernel, ...]
    spread: tuple[Kernel, ...] = ()
    """The kernels if whole experts are spread over ranks; empty if they are the same."""
    for_models: tuple[Kernel, ...] = ()
    """The kernels for single models and files, which a release tries first. They do not apply to a
    query without a model."""

    def place(self, version: str) -> str:
        """Return the file and lines of the code that selects in a release."""
        first, last = self.lines[version]
        return f"{self.file}:{first}-{last}"


def selection_of(
    selections: Sequence[Selection], package: str, version: str, dtype: str, what: str
) -> Selection:
    """Return the selection of a release for a format; EvidenceError, begun by `what`, if none."""
    of_format = [
        selection
        for selection in selections
        if selection.package == package and dtype in selection.dtypes
    ]
    for selection in of_format:
        if version in selection.lines:
            return selection
    releases = ", ".join(release for selection in of_format for release in selection.lines)
    raise EvidenceError(
        f"{what} is not read; it is read for {releases or 'no release'}",
        remedy="Ask for one of those releases",
    )
