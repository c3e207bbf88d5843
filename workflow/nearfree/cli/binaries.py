"""Rules compared with the kernels in binaries: `nearfree rules check`."""

import argparse
from collections import Counter
from itertools import groupby
from typing import TYPE_CHECKING

from nearfree.cli.common import (
    MISTAKE,
    config_of,
    json_text,
    layout_of,
    platform_of,
    print_seal,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nearfree.sources.binaries.compare import Difference
    from nearfree.sources.binaries.record import Checked


def run_check(args: argparse.Namespace) -> int:
    """Print where rules and binaries differ; exit code 2 where a difference is not explained."""
    from msgspec.structs import asdict

    from nearfree.sources.binaries.packages import binary_release
    from nearfree.sources.binaries.record import check_release, record_listing
    from nearfree.sources.fetching.cache import Cache, default_cache

    package, version = binary_release(args.release)
    layout, cache = layout_of(args), Cache(default_cache())
    seal = record_listing(
        layout, package, version, cache=cache, offline=args.offline, take=args.take
    )
    checked = check_release(layout, package, version, cache=cache, offline=args.offline)
    if args.format == "json":
        print(
            json_text(
                {
                    "package": package,
                    "version": version,
                    "points": sum(each.points for each in checked),
                    "differences": [found for each in checked for found in each.differences],
                    "binaries": [
                        {
                            name: value
                            for name, value in asdict(each).items()
                            if name != "differences"
                        }
                        for each in checked
                    ],
                }
            )
        )
    else:
        print_seal(seal)
        for each in checked:
            _print(each)
    unexplained = sum(each.explained is None for one in checked for each in one.differences)
    return MISTAKE if unexplained else 0


def run_compile(args: argparse.Namespace) -> int:
    """Record what a compiler makes of a release's MoE kernel for the blocks in use."""
    from nearfree.cli.rules import extraction_of
    from nearfree.sources.binaries.compiled import (
        blocks_in_use,
        record_compiled,
        recorded_compiled,
    )
    from nearfree.sources.fetching.cache import Cache, default_cache

    found = extraction_of(args, args.release)
    config = config_of(args)

    def sm_of(device: str) -> int | None:
        named = platform_of(config, device)
        return named.sm if named else None

    seal = record_compiled(
        layout_of(args),
        found,
        blocks_in_use(found, sm_of),
        cache=Cache(default_cache()),
        offline=args.offline,
        take=args.take,
    )
    print_seal(seal)
    made = recorded_compiled(layout_of(args), found.package, found.version)
    for sm, blocks in groupby(made.blocks if made else (), lambda block: block.sm):
        kinds = Counter(each.instruction or "none" for each in blocks)
        print(f"  {sm}: " + ", ".join(f"{count} by {kind}" for kind, count in kinds.items()))
    return 0


def _print(checked: "Checked") -> None:
    open_ones = [each for each in checked.differences if each.explained is None]
    print(f"\n{checked.binary}: {checked.kernels} kernels, against the rules of {checked.rules}")
    print(
        f"  {checked.points} points, {len(checked.differences)} differences,"
        f" {len(open_ones)} of them unexplained"
    )
    for line in _lines(checked.differences):
        print(f"  {line}")


def _lines(differences: "tuple[Difference, ...]") -> "Iterator[str]":
    """Yield a line for all differences alike but for the device, the type, pages and splits."""
    alike = Counter(
        f"{each.point.kernel} of {_width(each)}, mask {each.point.mask}: rule"
        f" {_rows(each.rule)}, binary {_rows(each.binary)}: {each.explained or 'UNEXPLAINED'}"
        for each in differences
    )
    for line, count in alike.items():
        yield f"{count} points, {line}"


def _width(difference: "Difference") -> str:
    point = difference.point
    values = f", values {point.value_dim}" if point.value_dim != point.head_dim else ""
    return f"{point.head_dim}{values}"


def _rows(rows: tuple[int, ...]) -> str:
    return " and ".join(map(str, rows)) if rows else "none"
