"""`nearfree rules check` and `rules compile`: source rules beside compiled kernels."""

import argparse
from collections import Counter
from collections.abc import Iterator
from itertools import groupby

from msgspec.structs import asdict

from nearfree.cli.common import (
    MISTAKE,
    config_of,
    json_text,
    layout_of,
    platform_of,
    print_seal,
    source_cache,
)
from nearfree.sources.binaries.compare import Difference
from nearfree.sources.binaries.compiled import blocks_in_use, record_compiled, recorded_compiled
from nearfree.sources.binaries.record import (
    BinaryCheck,
    binary_release,
    check_release,
    record_listing,
)
from nearfree.sources.extraction import Extraction
from nearfree.sources.packages import parse_release
from nearfree.sources.record import find_extraction


def extraction_of(args: argparse.Namespace, release: str) -> Extraction:
    """Return a release's rules: those on record, else read from its sources."""
    package, version = parse_release(release)
    return find_extraction(
        layout_of(args), package, version, cache=source_cache(), offline=args.offline
    )


def run_check(args: argparse.Namespace) -> int:
    """Print the differences between rules and binaries; return 2 if any is unexplained."""
    package, version = binary_release(args.release)
    layout, cache = layout_of(args), source_cache()
    seal = record_listing(
        layout, package, version, cache=cache, offline=args.offline, take=args.take
    )
    comparisons = check_release(layout, package, version, cache=cache, offline=args.offline)
    differences = [each for comparison in comparisons for each in comparison.differences]
    if args.format == "json":
        binaries = [asdict(comparison) for comparison in comparisons]
        for binary in binaries:
            del binary["differences"]
        answer = {
            "package": package,
            "version": version,
            "points": sum(comparison.points for comparison in comparisons),
            "differences": differences,
            "binaries": binaries,
        }
        print(json_text(answer))
    else:
        print_seal(seal)
        for comparison in comparisons:
            _print(comparison)
    return MISTAKE if any(each.explained is None for each in differences) else 0


def run_compile(args: argparse.Namespace) -> int:
    """Compile a release's MoE kernel for the blocks in use, and record registers and occupancy."""
    extraction = extraction_of(args, args.release)
    config = config_of(args)

    def sm_of(device: str) -> int | None:
        platform = platform_of(config, device)
        return platform.sm if platform else None

    seal = record_compiled(
        layout_of(args),
        extraction,
        blocks_in_use(extraction, sm_of),
        cache=source_cache(),
        offline=args.offline,
        take=args.take,
    )
    print_seal(seal)
    compiled = recorded_compiled(layout_of(args), extraction.package, extraction.version)
    for sm, blocks in groupby(compiled.blocks if compiled else (), lambda block: block.sm):
        kinds = Counter(block.instruction or "none" for block in blocks)
        print(f"  {sm}: " + ", ".join(f"{count} by {kind}" for kind, count in kinds.items()))
    return 0


def _print(comparison: BinaryCheck) -> None:
    unexplained = sum(each.explained is None for each in comparison.differences)
    print(
        f"\n{comparison.binary}: {comparison.kernels} kernels, compared with the rules of "
        f"{comparison.rules}"
    )
    print(
        f"  {comparison.points} points, {len(comparison.differences)} differences,"
        f" {unexplained} of them unexplained"
    )
    for line in _lines(comparison.differences):
        print(f"  {line}")


def _lines(differences: tuple[Difference, ...]) -> Iterator[str]:
    """Yield one line per group of differences that vary only in device, type, pages and splits."""
    count_by_line = Counter(
        f"{difference.point.kernel} of {_width(difference)}, mask {difference.point.mask}: rule"
        f" {_rows(difference.rule)}, binary {_rows(difference.binary)}:"
        f" {difference.explained or 'UNEXPLAINED'}"
        for difference in differences
    )
    for line, count in count_by_line.items():
        yield f"{count} points, {line}"


def _width(difference: Difference) -> str:
    point = difference.point
    values = f", values {point.value_dim}" if point.value_dim != point.head_dim else ""
    return f"{point.head_dim}{values}"


def _rows(rows: tuple[int, ...]) -> str:
    return " and ".join(map(str, rows)) if rows else "none"
