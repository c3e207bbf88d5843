"""The block or tile that a release uses for a layer."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nearfree.backends.records import ruled_packages, running
from nearfree.cli.common import (
    OFFLINE,
    TABLE_OR_JSON,
    command,
    config_of,
    json_text,
    layout_of,
    platform_of,
    positions,
    positive,
)
from nearfree.cli.products import print_products, product_answer, product_arguments, whole_range
from nearfree.cli.rules import extraction_of
from nearfree.errors import ConfigError, EvidenceError

if TYPE_CHECKING:
    from nearfree.log.events import TunedIndexed
    from nearfree.sources.answers.intervals import Granularity
    from nearfree.sources.answers.moe import MoeQuery
    from nearfree.sources.attention import AttentionQuery
    from nearfree.sources.extraction import Extraction


_SIDES = ("d_ff", "d_model")
_OF_MOE = (
    *("experts", "top_k", "block_shape", "per_channel_quant", "triton", "deterministic"),
    *("override", "tuned_folder"),
)
_OF_GPUS = ("dtype", "tokens", "kernel")
_OF_ATTENTION = (
    *("heads", "kv_heads", "head_dim", "context", "batch", "positions", "backend", "causal"),
    *("paged", "page_size", "window", "cuda_graph"),
)
_OF_CPUS = ("weight", "rows", "cpu_flags", "repack", "threads")
_LAYERS, _PRODUCTS, _CALLS, _CPU = (
    "MoE layers", "dense products", "attention", "products on a CPU",
)  # fmt: skip
_UNUSED = {
    _LAYERS: (*_OF_ATTENTION, *_OF_CPUS),
    _PRODUCTS: (*_OF_MOE, *_OF_ATTENTION, *_OF_CPUS, "api"),
    _CALLS: (*_OF_MOE, *_OF_GPUS, *_SIDES, *_OF_CPUS),
    _CPU: (*_OF_MOE, *_OF_GPUS, *_OF_ATTENTION, "device", "sm", "sms", "api"),
}
"""What questions of each kind have no use of, as parsed arguments name it."""
_TYPED = {"weight": "--type", "repack": "--no-repack", "causal": "--no-causal"}
"""Options that are typed otherwise than parsed arguments name them."""
DTYPES = ("bf16", "fp16", "fp8", "fp8_block", "int8", "int8_w8a16", "int4", "mxfp4", "nvfp4")
_GROUPED = ("int8_w8a16", "int4")
"""Weights alone, which a scale is of a group of columns of: rows is 0, as vLLM writes it."""
MOE_APIS, ATTENTION_APIS = ("functional", "modular"), ("kvcache", "varlen", "dense")


def _granularity_arguments(parser: argparse.ArgumentParser) -> None:
    of_moe, of_attention = ruled_packages("moe_ffn"), ruled_packages("attention")
    of_dense = ruled_packages("gemm")
    parser.add_argument(
        "release",
        help=f"package==version, such as vllm==0.20.2; of MoE layers {', '.join(of_moe)}, of "
        f"dense products {', '.join(of_dense)}, of attention {', '.join(of_attention)} (vllm-fa3 "
        "is FlashAttention 3 of a vLLM release, xformers brings another; vllm-triton is "
        "vLLM's own); of products on a CPU llama_cpp (0.x is llama-cpp-python's, from 1 on it is "
        "node-llama-cpp's prebuilt library)",
    )
    TABLE_OR_JSON(parser)
    OFFLINE(parser)
    parser.add_argument("--device", help="the device's name, such as 'NVIDIA H20'")
    parser.add_argument("--sm", type=positive, help="compute capability: 90 for 9.0")
    parser.add_argument("--api", choices=[*MOE_APIS, *ATTENTION_APIS], help="the called API")
    moe = parser.add_argument_group("MoE layers and dense products")
    for name, text in (
        ("experts", "E, on one rank"),
        ("top-k", "k, experts a token"),
        ("d-ff", "width of an expert, or columns of a product, on one rank, elements"),
        ("d-model", "hidden width, elements"),
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
        type=_pair,
        help="rows,columns of a scale: 128,128; with int4 and int8_w8a16 0,GROUP",
    )
    moe.add_argument(
        "--per-channel-quant", action="store_true", help="activations scaled by channel"
    )
    moe.add_argument("--triton", help="the running Triton's version, which chooses a folder")
    moe.add_argument("--deterministic", action="store_true", help="batch-invariant mode")
    moe.add_argument("--override", type=positive, help="BLOCK_SIZE_M that the caller sets")
    moe.add_argument("--tuned-folder", type=Path, help="a folder of your own tuned files")
    moe.add_argument(
        "--tokens", type=whole_range, default=(1, 512), help="tokens in one call (default: 1:512)"
    )
    moe.add_argument(
        "--kernel",
        choices=["CUTLASS", "Marlin", "Machete", "triton_kernels"],
        help="the kernel of a MoE layer (Marlin, triton_kernels), or of a product of [tokens, "
        "d-model] by [d-model, d-ff], that an option of the engine or the model sets (default: "
        "Triton's, or the release's own choice)",
    )
    attention = parser.add_argument_group("attention")
    for name, text in (
        ("heads", "query heads"),
        ("kv-heads", "key and value heads"),
        ("head-dim", "width of a head, elements"),
    ):
        attention.add_argument(f"--{name}", type=positive, help=text)
    attention.add_argument(
        "--context",
        type=positions,
        default=4096,
        help="cached positions a request (default: 4096)",
    )
    attention.add_argument("--batch", type=positive, default=1, help="requests (default: 1)")
    attention.add_argument("--sms", type=positive, help="number of SMs")
    attention.add_argument(
        "--positions", type=whole_range, default=(1, 512), help="N, each request (default: 1:512)"
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
    attention.add_argument("--page-size", type=positive, help="tokens of a page")
    attention.add_argument(
        "--window",
        type=positive,
        help="positions that one sees, its own included; tiles differ under one in flash-attn and "
        "vllm-fa3",
    )
    attention.add_argument(
        "--cuda-graph", action="store_true", help="graph captured for the largest number of N"
    )
    product_arguments(parser)


@command("granularity", _granularity_arguments, answers=True)
def run_granularity(args: argparse.Namespace) -> int:
    """Print the block or tile that a backend's release uses, by range, with its source lines.

    For MoE layers give --experts, --top-k, --d-ff, --d-model and --tokens; for dense products
    --d-model, --d-ff, --dtype and --tokens; for attention --heads, --kv-heads, --head-dim,
    --context, --batch and --positions; for products on a CPU --type and --rows. Ranges are written
    first:last.

    Example: nearfree granularity flash-attn==2.8.3 --heads 32 --kv-heads 8 --head-dim 128
    --device "NVIDIA H20"
    """
    from msgspec.structs import replace

    from nearfree.sources.packages import on_cpu, parse_release

    package, _ = parse_release(args.release)
    kind = _CPU if on_cpu(package) else _kind(args.release, package)
    _refuse_unused(args, kind)
    extraction = extraction_of(args, args.release)
    if kind == _CPU:
        print_products(args, product_answer(args, extraction))
        return 0
    answer = {_LAYERS: _moe, _PRODUCTS: _dense, _CALLS: _attention}[kind](args, extraction)
    if args.device and platform_of(config_of(args), args.device) is None:
        unknown = f"{args.device!r} is no device of {args.config}/platforms.yaml"
        note = f"{unknown}: only what --sm and --sms say of it is known"
        answer = replace(answer, notes=(*answer.notes, note))
    if args.format == "json":
        print(json_text(answer))
    else:
        _table(answer)
    return 0


def _refuse_unused(args: argparse.Namespace, kind: str) -> None:
    """Raise ConfigError with all options that are given and that a kind of question has no use of.

    One with its default is as good as left out.
    """
    from nearfree.cli import make_parser

    words = ("granularity", args.release)
    default = make_parser(words).parse_args(words)
    given = [
        _TYPED.get(name, f"--{name.replace('_', '-')}")
        for name in _UNUSED[kind]
        if getattr(args, name) != getattr(default, name)
    ]
    if given:
        raise ConfigError(
            f"{', '.join(given)} {'has' if len(given) == 1 else 'have'} no effect on "
            f"{args.release}, whose rules are of {kind}",
            remedy=f"Leave out {', '.join(given)}, or ask another release",
        )


def _kind(release: str, package: str) -> str:
    """Return what a release's rules are of; ConfigError if it has none of a block or tile."""
    if package in ruled_packages("gemm"):
        return _PRODUCTS
    if package in ruled_packages("moe_ffn"):
        return _LAYERS
    if package in ruled_packages("attention"):
        return _CALLS
    raise ConfigError(
        f"{release} has no rules of a block or tile",
        remedy=f"`nearfree rules show {release}` prints those that it has",
    )


def _moe(args: argparse.Namespace, extraction: "Extraction") -> "Granularity":
    from msgspec.structs import replace

    from nearfree.sources.answers.granularity import moe_granularity
    from nearfree.sources.answers.moe import MoeQuery
    from nearfree.sources.binaries.compiled import compiled_intervals

    _need(args, "experts", "top_k", "d_ff", "d_model")
    _api(args, MOE_APIS)
    if args.block_shape and not args.block_shape[0] and args.dtype not in _GROUPED:
        raise ConfigError(
            f"--block-shape 0,{args.block_shape[1]} is of groups, which --dtype {args.dtype} has "
            "none of",
            remedy=f"Give rows,columns of a block, or one of --dtype {', '.join(_GROUPED)}",
        )
    device, sm, _ = _device(args)
    facts: dict[str, Any] = {
        "device": device,
        "sm": sm,
        "smem_per_block": _smem_per_block(sm),
        "modular": args.api == "modular",
        "own": _own(args.tuned_folder, extraction),
    }
    query = MoeQuery(**_fields(args, MoeQuery) | facts)
    answer = moe_granularity(extraction, query, *args.tokens)
    compiled = compiled_intervals(layout_of(args), extraction, query, *args.tokens)
    return replace(answer, compiled=compiled)


_FORMATS = {
    "fp8": "float8",
    "fp8_block": "float8_block",
    "int8": "int8",
    "int8_w8a16": "int8_w8a16",
    "int4": "int4",
    "nvfp4": "nvfp4",
}
"""What a dense product's rules are asked for, by the quantisation."""


def _dense(args: argparse.Namespace, extraction: "Extraction") -> "Granularity":
    from nearfree.sources.answers.dense import DenseQuery
    from nearfree.sources.answers.granularity import dense_granularity

    _need(args, "d_ff", "d_model")
    _, sm, sms = _device(args)
    if sm is None:
        raise ConfigError(
            f"{args.release} needs the device's compute capability",
            remedy="Give --sm, or the name of a known --device",
        )
    if args.dtype not in _FORMATS:
        why = "which kernel runs them is not known"
        if args.dtype in ("bf16", "fp16"):
            why = "a library chooses its tile"
        raise ConfigError(
            f"no rows of products in {args.dtype} are read: {why}",
            remedy=f"Choose --dtype from {', '.join(_FORMATS)}",
        )
    query = DenseQuery(
        columns=args.d_ff,
        depth=args.d_model,
        format=_FORMATS[args.dtype],
        sm=sm,
        sms=sms,
        kernel=args.kernel,
    )
    return dense_granularity(extraction, query, *args.tokens)


def _attention(args: argparse.Namespace, extraction: "Extraction") -> "Granularity":
    from nearfree.core.modules.attention import ATTENTION
    from nearfree.sources.answers.granularity import attention_granularity
    from nearfree.sources.attention import AttentionQuery

    _need(args, "heads", "kv_heads", "head_dim")
    _api(args, ATTENTION_APIS)
    _, sm, sms = _device(args)
    for each in running(ATTENTION.name).values():
        asked = each.rules and each.rules.package == extraction.package
        named = asked and each.kernels in (None, args.backend)
        if named and sm and each.capabilities and sm not in each.capabilities:
            raise EvidenceError(
                f"{args.release} has no kernels for compute capability {sm}",
                remedy="Ask about another release or device",
            )
    facts = {"sm": sm, "sms": sms, "api": args.api or "kvcache"}
    captured = args.positions[1] if args.cuda_graph else None
    query = AttentionQuery(**_fields(args, AttentionQuery) | facts, capture_positions=captured)
    return attention_granularity(extraction, query, *args.positions)


def _fields(args: argparse.Namespace, query: type["MoeQuery | AttentionQuery"]) -> dict[str, Any]:
    """Return the options that a query has a field for."""
    return {name: text for name, text in vars(args).items() if name in query.__struct_fields__}


def _device(args: argparse.Namespace) -> tuple[str | None, int | None, int | None]:
    """Return the device's name as its driver has it, its capability and SMs; None if unknown."""
    # An unknown device is refused where the answer needs its facts.
    platform = platform_of(config_of(args), args.device) if args.device else None
    if platform is None:
        return args.device, args.sm, args.sms
    name = platform.device_name or args.device
    return name, args.sm or platform.sm, args.sms or platform.sm_count


def _smem_per_block(sm: int | None) -> int | None:
    """Return the shared memory that a block may opt in to, in bytes; None if unknown."""
    from nearfree.hardware.platforms import shared_memory

    try:
        return None if sm is None else shared_memory(sm).per_block
    except EvidenceError:
        return None


def _own(folder: Path | None, extraction: "Extraction") -> "tuple[TunedIndexed, ...]":
    if folder is None:
        return ()
    from nearfree.sources.tuned import index_tuned

    if not folder.is_dir():
        raise ConfigError(f"{folder} is no folder", remedy="Name the folder of your tuned files")
    files = {path.name: path.read_bytes() for path in sorted(folder.glob("*.json"))}
    return tuple(index_tuned(extraction.package, extraction.version, files))


def _need(args: argparse.Namespace, *names: str) -> None:
    missing = [f"--{name.replace('_', '-')}" for name in names if getattr(args, name) is None]
    if missing:
        raise ConfigError(
            f"{args.release} needs {', '.join(missing)}", remedy="Give the layer's numbers"
        )


def _api(args: argparse.Namespace, known: tuple[str, ...]) -> None:
    if args.api is not None and args.api not in known:
        raise ConfigError(
            f"{args.release} has no API {args.api!r}", remedy=f"Choose from {', '.join(known)}"
        )


def _table(answer: "Granularity") -> None:
    print(f"{answer.package} {answer.version}  ({answer.artefact}, by {answer.verified})")
    for path in answer.kernel_path:
        print(f"  {path.first:>6} to {path.last:<6} path {path.path}")
    for interval in answer.intervals:
        tile = (
            "" if interval.tile is None else f"  tile {interval.tile} rows, {interval.tiles} tiles"
        )
        if interval.passes is not None:
            several = f", {interval.passes} passes over the weights"
            tile = f"  rows of a tile{several if interval.passes > 1 else ''}"
        lines = "" if interval.lines is None else f":{interval.lines[0]}-{interval.lines[1]}"
        where = f"{interval.source}  {interval.file}{lines}"
        print(f"  {interval.first:>6} to {interval.last:<6} {interval.value:>4}{tile}  {where}")
    for made in answer.compiled:
        block = " x ".join(map(str, made.block))
        print(
            f"  {made.first:>6} to {made.last:<6} block {block}, {made.warps} warps, {made.stages}"
            f" stages: {made.registers} registers, {made.blocks_an_sm} blocks an SM,"
            f" {made.instruction or 'no matrix instruction'}  ({made.compiler}, compiled)"
        )
    if answer.backend_order is not None:
        print(f"  served, kernels are tried in the order {', '.join(answer.backend_order.kernels)}")
    for note in answer.notes:
        print(f"  note: {note}")


def _pair(text: str) -> tuple[int, int]:
    try:
        first, columns = text.split(",")
        return 0 if first == "0" else positive(first), positive(columns)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r:.80} is no pair: write rows,columns") from None
