"""`nearfree granularity`: the block or tile that a release uses for a layer."""

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from nearfree.backends.records import LLAMA_CPP_CUDA, backends_of, ruled_packages
from nearfree.cli.binaries import extraction_of
from nearfree.cli.common import config_of, json_text, layout_of, platform_of
from nearfree.cli.cuda_products import cuda_answer, cuda_lines
from nearfree.cli.deployment_options import FORMAT_ALIASES
from nearfree.cli.granularity_options import (
    ATTENTION,
    ATTENTION_APIS,
    CPU_PRODUCTS,
    CUDA_PRODUCTS,
    DENSE_DTYPES,
    DENSE_PRODUCTS,
    GROUP_SCALED,
    MOE_APIS,
    MOE_LAYERS,
    RULED,
    refuse_unused,
)
from nearfree.cli.products import product_answer, product_lines
from nearfree.core.modules.attention import ATTENTION as ATTENTION_MODULE
from nearfree.errors import ConfigError, EvidenceError
from nearfree.hardware.occupancy import smem_per_block
from nearfree.log.events import TunedIndexed
from nearfree.log.reader import read_bytes
from nearfree.sources.answers.dense import DenseQuery
from nearfree.sources.answers.ggml_cuda_granularity import CudaGranularity
from nearfree.sources.answers.granularity import (
    attention_granularity,
    dense_granularity,
    moe_granularity,
)
from nearfree.sources.answers.intervals import Granularity, Interval, place_of
from nearfree.sources.answers.moe import MoeQuery
from nearfree.sources.attention import AttentionQuery
from nearfree.sources.binaries.compiled import compiled_intervals
from nearfree.sources.extraction import Extraction
from nearfree.sources.fetching.members import MEMBER_LIMIT
from nearfree.sources.packages import on_cpu, parse_release
from nearfree.sources.tuned import index_tuned


def granularity(args: argparse.Namespace) -> int:
    """Print the answer of a release's rules, and return the exit code."""
    package, _ = parse_release(args.release)
    kind = _kind(args.release, package)
    refuse_unused(args, kind)
    extraction = extraction_of(args, args.release)
    make, lines = _KINDS[kind]
    answer = make(args, extraction)
    answer = replace(answer, notes=(*answer.notes, *_device_notes(args)))
    if args.format == "json":
        print(json_text(answer))
        return 0
    print(f"{answer.package} {answer.version}  ({answer.artefact}, verified by {answer.verified})")
    for line in (*lines(answer), *(f"  note: {note}" for note in answer.notes)):
        print(line)
    return 0


def _kind(release: str, package: str) -> str:
    """Return the kind of a release's rules; ConfigError if none is of a block or tile."""
    if on_cpu(package):
        return CPU_PRODUCTS
    if package == LLAMA_CPP_CUDA:
        return CUDA_PRODUCTS
    for kind, module in RULED.items():
        if package in ruled_packages(module):
            return kind
    raise ConfigError(
        f"{release} has no rules of a block or tile",
        remedy=f"`nearfree rules show {release}` prints the rules that it has",
    )


def _moe_answer(args: argparse.Namespace, extraction: Extraction) -> Granularity:
    _require(args, "experts", "top_k", "d_ff", "d_model")
    _check_api(args, MOE_APIS)
    if args.block_shape and not args.block_shape[0] and args.dtype not in GROUP_SCALED:
        raise ConfigError(
            f"--block-shape 0,{args.block_shape[1]} means groups; --dtype {args.dtype} has none",
            remedy=f"Give rows,columns of a block, or --dtype {' or '.join(GROUP_SCALED)}",
        )
    device, sm, _ = _device(args)
    facts: dict[str, Any] = {
        "device": device,
        "sm": sm,
        "smem_per_block": smem_per_block(sm),
        "modular": args.api == "modular",
        "own": _own_tuned_files(args.tuned_folder, extraction),
    }
    query = MoeQuery(**_fields(args, MoeQuery) | facts)
    answer = moe_granularity(extraction, query, *args.tokens)
    compiled = compiled_intervals(layout_of(args), extraction, query, *args.tokens)
    return replace(answer, compiled=compiled)


def _dense_answer(args: argparse.Namespace, extraction: Extraction) -> Granularity:
    _require(args, "d_ff", "d_model")
    _, sm, sms = _device(args)
    if sm is None:
        raise ConfigError(
            f"{args.release} needs the device's compute capability",
            remedy="Give --sm, or the name of a known --device",
        )
    if args.dtype not in DENSE_DTYPES:
        reason = "the kernel that runs them is unknown"
        if args.dtype in ("bf16", "fp16"):
            reason = "a library chooses its tile"
        raise ConfigError(
            f"the tile of products in {args.dtype} is not read from source: {reason}",
            remedy=f"Choose --dtype from {', '.join(DENSE_DTYPES)}",
        )
    query = DenseQuery(
        columns=args.d_ff,
        depth=args.d_model,
        format=FORMAT_ALIASES.get(args.dtype, args.dtype),
        sm=sm,
        sms=sms,
        kernel=args.kernel,
    )
    return dense_granularity(extraction, query, *args.tokens)


def _attention_answer(args: argparse.Namespace, extraction: Extraction) -> Granularity:
    _require(args, "heads", "kv_heads", "head_dim")
    _check_api(args, ATTENTION_APIS)
    _, sm, sms = _device(args)
    for backend in backends_of(ATTENTION_MODULE.name).values():
        selected = (
            backend.rules is not None
            and backend.rules.package == extraction.package
            and backend.kernels in (None, args.backend)
        )
        if selected and sm and backend.capabilities and sm not in backend.capabilities:
            raise EvidenceError(
                f"{args.release} has no kernels for compute capability {sm}",
                remedy="Name another release or device",
            )
    facts = {"sm": sm, "sms": sms, "api": args.api or "kvcache"}
    captured = args.positions[1] if args.cuda_graph else None
    query = AttentionQuery(**_fields(args, AttentionQuery) | facts, capture_positions=captured)
    return attention_granularity(extraction, query, *args.positions)


def _cuda_answer(args: argparse.Namespace, extraction: Extraction) -> CudaGranularity:
    return cuda_answer(args, extraction, _device(args)[1])


def _fields(args: argparse.Namespace, query: type[MoeQuery | AttentionQuery]) -> dict[str, Any]:
    """Return the parsed options that are fields of a query."""
    return {name: value for name, value in vars(args).items() if name in query.__struct_fields__}


def _device(args: argparse.Namespace) -> tuple[str | None, int | None, int | None]:
    """Return the device's driver name, compute capability and number of SMs; None if unknown."""
    # An unknown device is refused only where the answer needs its facts.
    platform = platform_of(config_of(args), args.device) if args.device else None
    if platform is None:
        return args.device, args.sm, args.sms
    name = platform.device_name or args.device
    return name, args.sm or platform.sm, args.sms or platform.sm_count


def _device_notes(args: argparse.Namespace) -> tuple[str, ...]:
    """Return a note on a device that the config does not know."""
    if not args.device or platform_of(config_of(args), args.device) is not None:
        return ()
    note = (
        f"{args.device!r} is not a device of {args.config}/platforms.yaml: only --sm and --sms "
        "describe it"
    )
    return (note,)


def _own_tuned_files(folder: Path | None, extraction: Extraction) -> tuple[TunedIndexed, ...]:
    if folder is None:
        return ()

    if not folder.is_dir():
        raise ConfigError(f"{folder} is not a folder", remedy="Name the folder of your tuned files")
    files = {path.name: read_bytes(path, MEMBER_LIMIT) for path in sorted(folder.glob("*.json"))}
    return tuple(index_tuned(extraction.package, extraction.version, files))


def _require(args: argparse.Namespace, *names: str) -> None:
    missing = [f"--{name.replace('_', '-')}" for name in names if getattr(args, name) is None]
    if missing:
        raise ConfigError(
            f"{args.release} needs {', '.join(missing)}", remedy="Give these numbers of the layer"
        )


def _check_api(args: argparse.Namespace, apis: tuple[str, ...]) -> None:
    if args.api is not None and args.api not in apis:
        raise ConfigError(
            f"{args.release} has no API {args.api!r}", remedy=f"Choose from {', '.join(apis)}"
        )


def _granule(interval: Interval) -> str:
    """Return what one block or tile takes, in words."""
    if interval.tile is not None:
        count = f"{interval.tiles} tile{'' if interval.tiles == 1 else 's'}"
        return f"{interval.value:>4} positions a tile of {interval.tile} rows, {count}"
    if interval.passes is None:
        return f"{interval.value:>4} tokens a block"
    passes = f", {interval.passes} passes over the weights" if interval.passes > 1 else ""
    return f"{interval.value:>4} rows a tile{passes}"


def _lines(answer: Granularity) -> Iterator[str]:
    of_attention = any(interval.tile is not None for interval in answer.intervals)
    yield f"  {'positions N' if of_attention else 'tokens'}, first to last:"
    for path in answer.kernel_path:
        yield f"  {path.first:>6} to {path.last:<6} path {path.path}"
    for interval in answer.intervals:
        where = f"{interval.source}  {place_of(interval.file, interval.lines)}"
        yield f"  {interval.first:>6} to {interval.last:<6} {_granule(interval)}  {where}"
    for kernel in answer.compiled:
        block = " x ".join(map(str, kernel.block))
        yield (
            f"  {kernel.first:>6} to {kernel.last:<6} block {block}, {kernel.warps} warps,"
            f" {kernel.stages} stages: {kernel.registers} registers,"
            f" {kernel.blocks_an_sm} blocks per SM,"
            f" {kernel.instruction or 'no matrix instruction'}  ({kernel.compiler}, compiled)"
        )
    if answer.backend_order is not None:
        kernels = ", ".join(answer.backend_order.kernels)
        yield f"  in a served model, kernels are tried in the order {kernels}"


_KINDS: dict[str, tuple[Callable[..., Any], Callable[[Any], Iterator[str]]]] = {
    MOE_LAYERS: (_moe_answer, _lines),
    DENSE_PRODUCTS: (_dense_answer, _lines),
    ATTENTION: (_attention_answer, _lines),
    CPU_PRODUCTS: (product_answer, product_lines),
    CUDA_PRODUCTS: (_cuda_answer, cuda_lines),
}
"""What answers a kind of rules, and the lines of its table."""
