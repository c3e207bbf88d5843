"""Products on a CPU, asked for on the command line: how many passes over the weights rows take."""

import argparse
from typing import TYPE_CHECKING

from nearfree.cli.common import json_text, positive
from nearfree.errors import ConfigError

if TYPE_CHECKING:
    from nearfree.sources.answers.ggml_cpu import Variant
    from nearfree.sources.answers.ggml_shown import ProductGranularity, Said
    from nearfree.sources.extraction import Extraction

SIDE = 4096
"""Sides of a matrix that a question does not give: a multiple of every block and tile."""
MOST_ROWS = 4096


def product_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of products on a CPU."""
    group = parser.add_argument_group("products on a CPU")
    group.add_argument("--type", dest="weight", help="the weights' type in ggml, such as q4_k")
    group.add_argument(
        "--rows", type=row_range, help="rows of activations, b N; 17 or 1:33 (default: 1:33)"
    )
    group.add_argument(
        "--cpu-flags",
        help="instructions that the library is compiled for, such as avx2,f16c,avx512f (default: "
        "this machine's; of a prebuilt library those of the variant that it would load here)",
    )
    group.add_argument(
        "--no-repack",
        dest="repack",
        action="store_false",
        help="weights stay as the file has them (use_extra_bufts off)",
    )
    group.add_argument(
        "--threads", type=positive, default=1, help="threads of a product (default: 1)"
    )


def whole_range(text: str) -> tuple[int, int]:
    """Return the first and the last number of a text like `17` or `1:33`."""
    first, _, last = text.partition(":")
    pair = positive(first), positive(last or first)
    if pair[0] > pair[1]:
        raise argparse.ArgumentTypeError(f"{text} ends before it begins")
    return pair


def row_range(text: str) -> tuple[int, int]:
    """Return what `whole_range` does, of rows."""
    pair = whole_range(text)
    if pair[1] > MOST_ROWS:
        raise argparse.ArgumentTypeError(f"{text} is more than {MOST_ROWS} rows")
    return pair


def product_answer(args: argparse.Namespace, extraction: "Extraction") -> "ProductGranularity":
    """Return the answer for one matrix.

    Raises
    ------
    ConfigError
        The question lacks the type of the weights, or has one whose rules are not read.
    EvidenceError
        A rule is missing, or the CPU or the type has kernels that are not read.
    """
    from nearfree.sources.answers.ggml_passes import ProductQuery
    from nearfree.sources.answers.ggml_shown import product_granularity

    if args.weight is None:
        raise ConfigError(f"{args.release} needs --type", remedy="Give the type of the weights")
    flags, variant, notes = flags_of(args, extraction)
    if args.d_ff is None or args.d_model is None:
        notes += (f"a side that is not given, by --d-ff or --d-model, is {SIDE} elements",)
    query = ProductQuery(
        weight=args.weight,
        columns=args.d_ff or SIDE,
        depth=args.d_model or SIDE,
        flags=flags,
        threads=args.threads,
        repack=args.repack,
    )
    first, last = args.rows or (1, 33)
    return product_granularity(extraction, query, first, last, variant=variant, notes=notes)


def flags_of(
    args: argparse.Namespace, extraction: "Extraction"
) -> "tuple[frozenset[str], Variant | None, tuple[str, ...]]":
    """Return what the library is compiled for, which variant that is, and what is supposed."""
    from nearfree.hardware.instructions import cpu_flags
    from nearfree.sources.answers.ggml_cpu import best_variant, known_flags, with_implied
    from nearfree.sources.fetching.bundle import bundled

    if args.cpu_flags is not None:
        return with_implied(known_flags(args.cpu_flags)), None, ()
    machine = cpu_flags()
    if not bundled(extraction.package, extraction.version):
        return machine, None, ("the library is built for this machine's CPU",)
    variant = best_variant(extraction.by_name(), machine)
    return variant.flags, variant, ()


def print_products(args: argparse.Namespace, answer: "ProductGranularity") -> None:
    """Print an answer as a table or as JSON."""
    if args.format == "json":
        print(json_text(answer))
        return
    print(f"{answer.package} {answer.version}  ({answer.artefact}, by {answer.verified})")
    kept = "repacked where the release does" if answer.repack else "not repacked"
    library = f"the variant {answer.variant}" if answer.variant else "a library"
    print(f"  {answer.type}, {kept}; {library} with {' '.join(answer.cpu_flags) or 'no vectors'}")
    for interval in answer.intervals:
        total = sum(each.times for each in interval.passes)
        named = f", a step of {interval.step}" if interval.step else ""
        several = f"{total} pass{'es' if total > 1 else ''} over the weights"
        print(f"  {interval.first:>6} to {interval.last:<6} {several}{named}")
        for each in interval.passes:
            print(f"    {each.times} x {each.holds} rows  {each.path} {each.kernel}")
            for said in each.rules:
                print(f"      {_place(said)}")
    for note in answer.notes:
        print(f"  note: {note}")


def _place(said: "Said") -> str:
    lines = "" if said.lines is None else f":{said.lines[0]}-{said.lines[1]}"
    return f"{said.rule}  {said.file}{lines}  {(said.sha256 or '')[:12]}"
