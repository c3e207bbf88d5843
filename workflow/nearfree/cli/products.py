"""`nearfree granularity` of products on a CPU: passes over the weights by number of rows."""

import argparse
from collections.abc import Iterator

from nearfree.errors import ConfigError
from nearfree.hardware.instructions import cpu_flags
from nearfree.sources.answers.ggml import ProductQuery
from nearfree.sources.answers.ggml_cpu import Variant, best_variant, known_flags, with_implied
from nearfree.sources.answers.ggml_granularity import (
    CitedRule,
    ProductGranularity,
    product_granularity,
)
from nearfree.sources.answers.intervals import place_of
from nearfree.sources.extraction import Extraction
from nearfree.sources.fetching.bundle import is_bundled

DEFAULT_SIDE = 4096
"""Default of a matrix's sides, in elements: a multiple of every block and tile."""
DEFAULT_ROWS = (1, 33)


def product_answer(args: argparse.Namespace, extraction: Extraction) -> ProductGranularity:
    """Return the answer for one matrix.

    Raises
    ------
    ConfigError
        --type is missing, or names a type whose rules are not read.
    EvidenceError
        A rule is missing, or the CPU or the type uses kernels whose rules are not read.
    """
    if args.weight is None:
        raise ConfigError(f"{args.release} needs --type", remedy="Give the type of the weights")
    flags, variant, notes = library_flags(args, extraction)
    if args.d_ff is None or args.d_model is None:
        notes += (f"--d-ff and --d-model default to {DEFAULT_SIDE} elements",)
    query = ProductQuery(
        weight=args.weight,
        columns=args.d_ff or DEFAULT_SIDE,
        depth=args.d_model or DEFAULT_SIDE,
        flags=flags,
        threads=args.threads,
        repack=args.repack,
    )
    first, last = args.rows or DEFAULT_ROWS
    return product_granularity(
        extraction, query, first, last, routed=args.expert, variant=variant, notes=notes
    )


def library_flags(
    args: argparse.Namespace, extraction: Extraction
) -> tuple[frozenset[str], Variant | None, tuple[str, ...]]:
    """Return the library's CPU flags, its variant for this CPU, and notes on assumptions."""
    if args.cpu_flags is not None:
        return with_implied(known_flags(args.cpu_flags)), None, ()
    machine = cpu_flags()
    if not is_bundled(extraction.package, extraction.version):
        return machine, None, ("assumed: the library is built for this machine's CPU",)
    variant = best_variant(extraction.by_name(), machine)
    return variant.flags, variant, ()


def product_lines(answer: ProductGranularity) -> Iterator[str]:
    """Yield an answer as a table."""
    layout = "repacked where the release does" if answer.repack else "not repacked"
    library = f"the variant {answer.variant}" if answer.variant else "a library"
    owner = ", of an expert" if answer.routed else ""
    flags = " ".join(answer.cpu_flags) or "no vectors"
    yield f"  {answer.type}{owner}, {layout}; {library} with {flags}"
    for interval in answer.intervals:
        count = sum(tile_pass.times for tile_pass in interval.passes)
        step = f", a step of {interval.step}" if interval.step else ""
        passes = f"{count} pass{'es' if count > 1 else ''} over the weights"
        yield f"  {interval.first:>6} to {interval.last:<6} {passes}{step}"
        for tile_pass in interval.passes:
            rows = f"{tile_pass.holds} row{'s' if tile_pass.holds > 1 else ''}"
            yield f"    {tile_pass.times} x {rows}  {tile_pass.path} {tile_pass.kernel}"
            yield from map(rule_line, tile_pass.rules)


def rule_line(rule: CitedRule) -> str:
    """Return a rule with its file, lines and shortened digest."""
    place = place_of(rule.file, rule.lines)
    return f"      {rule.rule}  {place}  {(rule.sha256 or '')[:12]}"
