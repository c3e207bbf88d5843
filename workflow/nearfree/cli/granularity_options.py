"""Options of `nearfree granularity`, and the options that a kind of rules ignores."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from nearfree.backends.records import LLAMA_CPP_CUDA, ruled_packages
from nearfree.cli.common import OFFLINE, TABLE_OR_JSON, command, positions, positive
from nearfree.errors import ConfigError

if TYPE_CHECKING:
    from nearfree.core.setting import Module

_MATRIX_OPTIONS = ("d_ff", "d_model")
_MOE_OPTIONS = (
    *("experts", "top_k", "block_shape", "per_channel_quant", "triton", "deterministic"),
    *("override", "tuned_folder"),
)
_GPU_OPTIONS = ("dtype", "tokens", "kernel")
_ATTENTION_OPTIONS = (
    *("heads", "kv_heads", "head_dim", "context", "batch", "positions", "backend", "causal"),
    *("paged", "page_size", "window", "cuda_graph"),
)
_STORED_OPTIONS = ("weight", "rows")
_CPU_OPTIONS = (*_STORED_OPTIONS, "expert", "cpu_flags", "repack", "threads")
MOE_LAYERS, DENSE_PRODUCTS = "MoE layers", "dense products"
ATTENTION, CPU_PRODUCTS = "attention", "products on a CPU"
CUDA_PRODUCTS = "llama.cpp's products on a GPU"
"""Kinds of rules, as messages name them."""
RULED: "dict[str, Module]" = {DENSE_PRODUCTS: "gemm", MOE_LAYERS: "moe_ffn", ATTENTION: "attention"}
"""The module that each kind of a GPU's rules is about."""
_UNUSED = {
    MOE_LAYERS: (*_ATTENTION_OPTIONS, *_CPU_OPTIONS),
    DENSE_PRODUCTS: (*_MOE_OPTIONS, *_ATTENTION_OPTIONS, *_CPU_OPTIONS, "api"),
    ATTENTION: (*_MOE_OPTIONS, *_GPU_OPTIONS, *_MATRIX_OPTIONS, *_CPU_OPTIONS),
    CPU_PRODUCTS: (
        *(*_MOE_OPTIONS, *_GPU_OPTIONS, *_ATTENTION_OPTIONS),
        *("device", "sm", "sms", "api"),
    ),
    CUDA_PRODUCTS: (
        *(*_MOE_OPTIONS[1:], *_GPU_OPTIONS, *_ATTENTION_OPTIONS, *_CPU_OPTIONS[2:]),
        *("sms", "api"),
    ),
}
"""Attributes of parsed arguments that have no effect on a kind of rules."""
OPTION_NAMES = {"weight": "--type", "repack": "--no-repack", "causal": "--no-causal"}
"""Options whose names differ from their attributes of the parsed arguments."""
DTYPES = ("bf16", "fp16", "fp8", "fp8_block", "int8", "int8_w8a16", "int4", "mxfp4", "nvfp4")
DENSE_DTYPES = ("fp8", "fp8_block", "int8", "int8_w8a16", "int4", "nvfp4")
"""Those of `DTYPES` whose dense products have rules."""
GROUP_SCALED = ("int8_w8a16", "int4")
"""Weight-only formats with one scale per group of columns: rows is 0, as in vLLM."""
_MAX_ROWS = 4096
MOE_APIS, ATTENTION_APIS = ("functional", "modular"), ("kvcache", "varlen", "dense")


def add_granularity_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `nearfree granularity`, grouped by kind of rules."""
    packages = {kind: ", ".join(ruled_packages(module)) for kind, module in RULED.items()}
    parser.add_argument(
        "release",
        help="package==version, such as vllm==0.20.2. Packages of MoE layers: "
        f"{packages[MOE_LAYERS]}; of dense products: {packages[DENSE_PRODUCTS]}; of attention: "
        f"{packages[ATTENTION]} (vllm-fa3 is the FlashAttention 3 of a vLLM release, "
        "xformers ships another; vllm-triton is vLLM's own kernel); of products on a CPU: "
        "llama_cpp (0.x is llama-cpp-python's, from 1 on node-llama-cpp's prebuilt library); of "
        f"its products on NVIDIA GPUs: {LLAMA_CPP_CUDA}",
    )
    TABLE_OR_JSON(parser)
    OFFLINE(parser)
    parser.add_argument("--device", help="the device's name, such as 'NVIDIA H20'")
    parser.add_argument("--sm", type=positive, help="compute capability: 90 for 9.0")
    parser.add_argument(
        "--api", choices=[*MOE_APIS, *ATTENTION_APIS], help="the API that is called"
    )
    moe = parser.add_argument_group("MoE layers and dense products")
    for name, text in (
        ("experts", "E, experts on one rank; of llama.cpp: the matrices are those of experts"),
        ("top-k", "k, experts per token"),
        ("d-ff", "width of an expert, or columns of a product, on one rank, in elements"),
        ("d-model", "hidden width, in elements"),
    ):
        moe.add_argument(f"--{name}", type=positive, help=text)
    moe.add_argument(
        "--dtype",
        choices=DTYPES,
        default="bf16",
        help="quantisation: int8 is w8a8, int4 is w4a16 in groups of 128 (default: bf16)",
    )
    moe.add_argument(
        "--block-shape",
        type=_block_shape,
        help="rows,columns that share a scale: 128,128; with int4 and int8_w8a16 0,GROUP",
    )
    moe.add_argument(
        "--per-channel-quant", action="store_true", help="one activation scale per channel"
    )
    moe.add_argument(
        "--triton", help="the installed Triton's version, which selects the folder of tuned files"
    )
    moe.add_argument("--deterministic", action="store_true", help="batch-invariant mode")
    moe.add_argument("--override", type=positive, help="BLOCK_SIZE_M set by the caller")
    moe.add_argument("--tuned-folder", type=Path, help="a folder with your own tuned files")
    moe.add_argument(
        "--tokens", type=_whole_range, default=(1, 512), help="tokens per call (default: 1:512)"
    )
    moe.add_argument(
        "--kernel",
        choices=["CUTLASS", "Marlin", "Machete", "triton_kernels"],
        help="the kernel that an option of the engine or the model sets, of a MoE layer (Marlin, "
        "triton_kernels) or of a product [tokens, d-model] x [d-model, d-ff] (default: Triton's, "
        "or the release's own choice)",
    )
    attention = parser.add_argument_group("attention")
    for name, text in (
        ("heads", "query heads"),
        ("kv-heads", "key and value heads"),
        ("head-dim", "width of a head, in elements"),
    ):
        attention.add_argument(f"--{name}", type=positive, help=text)
    attention.add_argument(
        "--context",
        type=positions,
        default=4096,
        help="cached positions per request (default: 4096)",
    )
    attention.add_argument("--batch", type=positive, default=1, help="requests (default: 1)")
    attention.add_argument("--sms", type=positive, help="number of SMs")
    attention.add_argument(
        "--positions",
        type=_whole_range,
        default=(1, 512),
        help="N, positions per request (default: 1:512)",
    )
    attention.add_argument(
        "--backend",
        choices=["auto", "fa2", "fa3"],
        default="auto",
        help="FlashInfer's backend (default: auto)",
    )
    attention.add_argument(
        "--causal", action=argparse.BooleanOptionalAction, default=True, help="causal mask"
    )
    attention.add_argument("--paged", action="store_true", help="keys and values in pages")
    attention.add_argument("--page-size", type=positive, help="tokens per page")
    attention.add_argument(
        "--window",
        type=positive,
        help="sliding window in positions, the query's own included; in flash-attn and vllm-fa3 "
        "it changes the tile",
    )
    attention.add_argument(
        "--cuda-graph", action="store_true", help="in a CUDA graph captured for the largest N"
    )
    _product_arguments(parser)


def _product_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of llama.cpp's products, of which some are about a CPU."""
    group = parser.add_argument_group("products of llama.cpp")
    group.add_argument("--type", dest="weight", help="the weights' type in ggml, such as q4_k")
    group.add_argument(
        "--rows", type=_row_range, help="rows of activations, b N: 17 or 1:33 (default: 1:33)"
    )
    group.add_argument(
        "--cpu-flags",
        help="instructions that the library is compiled for, such as avx2,f16c,avx512f (default: "
        "this machine's; for a prebuilt library those of the variant that it would load here)",
    )
    group.add_argument(
        "--no-repack",
        dest="repack",
        action="store_false",
        help="keep the weights in the file's layout (use_extra_bufts off)",
    )
    group.add_argument(
        "--expert",
        action="store_true",
        help="the matrix is a routed expert's, and rows are those of the tokens that take it",
    )
    group.add_argument("--threads", type=positive, default=1, help="CPU threads (default: 1)")


def _whole_range(text: str) -> tuple[int, int]:
    """Return the first and the last number of a text like `17` or `1:33`."""
    first, _, last = text.partition(":")
    pair = positive(first), positive(last or first)
    if pair[0] > pair[1]:
        raise argparse.ArgumentTypeError(f"{text} ends before it begins")
    return pair


def _row_range(text: str) -> tuple[int, int]:
    """Return the first and the last number of rows of a text as in `_whole_range`."""
    pair = _whole_range(text)
    if pair[1] > _MAX_ROWS:
        raise argparse.ArgumentTypeError(f"{text} is more than {_MAX_ROWS} rows")
    return pair


@command("granularity", add_granularity_options, answers=True)
def run_granularity(args: argparse.Namespace) -> int:
    """Print the block or tile that a release uses, by range of tokens or N, with source lines.

    For MoE layers give --experts, --top-k, --d-ff, --d-model and --tokens; for dense products
    --d-model, --d-ff, --dtype and --tokens; for attention --heads, --kv-heads, --head-dim,
    --context, --batch and --positions; for products of llama.cpp --type and --rows, on a GPU also
    --device, and --experts for those of experts. Ranges are written first:last.

    Example: nearfree granularity flash-attn==2.8.3 --heads 32 --kv-heads 8 --head-dim 128
    --device "NVIDIA H20"
    """
    from nearfree.cli.granularity import granularity

    return granularity(args)


def refuse_unused(args: argparse.Namespace, rule_kind: str) -> None:
    """Raise ConfigError if an option is given that has no effect on a kind of rules.

    An option with its default value counts as not given.
    """
    from nearfree.cli import make_parser

    argv = ("granularity", args.release)
    default = make_parser(argv).parse_args(argv)
    options = [
        OPTION_NAMES.get(name, f"--{name.replace('_', '-')}")
        for name in _UNUSED[rule_kind]
        if getattr(args, name) != getattr(default, name)
    ]
    if options:
        raise ConfigError(
            f"{', '.join(options)} {'has' if len(options) == 1 else 'have'} no effect on "
            f"{args.release}, whose rules are of {rule_kind}",
            remedy=f"Leave out {', '.join(options)}, or name another release",
        )


def _block_shape(text: str) -> tuple[int, int]:
    try:
        first, columns = text.split(",")
        return 0 if first == "0" else positive(first), positive(columns)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r:.80} is not a pair: write rows,columns"
        ) from None
