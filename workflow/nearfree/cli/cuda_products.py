"""`nearfree granularity` of llama.cpp's products on an NVIDIA GPU: kernels by number of rows."""

import argparse
from collections.abc import Iterator

from nearfree.cli.products import DEFAULT_ROWS, DEFAULT_SIDE, rule_line
from nearfree.errors import ConfigError
from nearfree.sources.answers.ggml_cuda import CudaQuery
from nearfree.sources.answers.ggml_cuda_granularity import (
    CudaGranularity,
    KernelInterval,
    cuda_granularity,
)
from nearfree.sources.extraction import Extraction

_SHOWN_RULES = 2
"""Rules of a range that the table names: that of its kernel, and that of the columns it holds."""


def cuda_answer(
    args: argparse.Namespace, extraction: Extraction, sm: int | None
) -> CudaGranularity:
    """Return the answer for one matrix, or with --experts for those of experts.

    `sm` is the device's compute capability, 90 for 9.0.

    Raises
    ------
    ConfigError
        --type or the device's compute capability is missing, or the type's rules are not read.
    EvidenceError
        A rule is missing, or the rules for the GPU are not read.
    """
    if args.weight is None:
        raise ConfigError(f"{args.release} needs --type", remedy="Give the type of the weights")
    if sm is None:
        raise ConfigError(
            f"{args.release} needs the device's compute capability",
            remedy="Give --sm, or the name of a known --device",
        )
    notes: tuple[str, ...] = ()
    if args.d_ff is None or args.d_model is None:
        notes = (f"--d-ff and --d-model default to {DEFAULT_SIDE} elements",)
    query = CudaQuery(
        weight=args.weight,
        columns=args.d_ff or DEFAULT_SIDE,
        depth=args.d_model or DEFAULT_SIDE,
        sm=sm,
        routed=args.experts is not None,
    )
    return cuda_granularity(extraction, query, *(args.rows or DEFAULT_ROWS), notes=notes)


def cuda_lines(answer: CudaGranularity) -> Iterator[str]:
    """Yield an answer as a table."""
    what, rows = ("matrices of experts", "tokens") if answer.routed else ("a matrix", "rows")
    yield (
        f"  {answer.type}, {what} of {answer.columns} x {answer.depth}, compute capability "
        f"{answer.sm / 10:.1f}, by {rows}"
    )
    for interval in answer.intervals:
        yield f"  {interval.first:>6} to {interval.last:<6} {_words(interval)}"
        yield from map(rule_line, interval.rules[:_SHOWN_RULES])


def _words(interval: KernelInterval) -> str:
    """Return a kernel, the columns that it holds, and its passes."""
    if interval.path == "sorted":
        return "sorted: expert by expert, each as a product of its own rows"
    if interval.passes is None:
        return f"{interval.path}: tiles of the library, not read"
    holds = interval.holds or 1
    varies = interval.path != "mmq" and interval.first < interval.last and holds > 1
    held = f"holds {'up to ' if varies else ''}{holds} column{'s' if holds > 1 else ''}"
    count = f"{interval.passes} pass{'es' if interval.passes > 1 else ''}"
    weights = {
        "matrix": f"{count} over the weights",
        "expert": f"at most {count} over an expert's weights",
        "token": "each token reads its own experts' weights",
    }
    return f"{interval.path}  {held}, {weights[interval.per]}"
