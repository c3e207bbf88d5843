"""`nearfree import`: published values and public measurements."""

import argparse
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from nearfree.cli.common import (
    NEW_TAKE,
    OFFLINE,
    add_action,
    command,
    config_of,
    layout_of,
    print_seal,
    source_cache,
)

if TYPE_CHECKING:
    from nearfree.public.aiconfigurator import ReleaseContent


def _import_arguments(parser: argparse.ArgumentParser) -> None:
    datasets = parser.add_subparsers(dest="dataset", required=True, metavar="DATASET")
    published = add_action(datasets, "published", "the paper's tables, from config/published")
    tables = add_action(datasets, "aiconfigurator", "AIConfigurator's public latency tables")
    tables.add_argument("--version", metavar="VERSION", help="the release (default: 0.12.0)")
    OFFLINE(tables)
    curves = add_action(datasets, "curves", "curves T(N) from a CSV file")
    curves.add_argument("file", type=Path, metavar="FILE.csv", help="the file")
    curves.add_argument("--name", help="a name for the curves (default: the file's name)")
    for action in (published, tables, curves):
        NEW_TAKE(action)


@command("import", _import_arguments)
def run_import(args: argparse.Namespace) -> int:
    """Import published values and public measurements into the event log.

    `published` imports the paper's tables from config/published, `aiconfigurator` the public
    latency tables of AIConfigurator's wheel, and `curves` curves T(N) from a CSV file.

    Example: nearfree import curves MINE.csv --name mine
    """
    datasets = {"published": _published, "aiconfigurator": _aiconfigurator, "curves": _curves}
    datasets[args.dataset](args)
    return 0


def _published(args: argparse.Namespace) -> None:
    from nearfree.public.published import import_published

    print_seal(import_published(layout_of(args), args.config / "published", take=args.take))


def _aiconfigurator(args: argparse.Namespace) -> None:
    from nearfree.public.aiconfigurator import VERSION, import_aiconfigurator

    imported = import_aiconfigurator(
        layout_of(args),
        config_of(args).platforms,
        cache=source_cache(),
        version=args.version or VERSION,
        take=args.take,
        offline=args.offline,
    )
    print_seal(imported.seal)
    if imported.fresh is None:
        print("  it was already sealed")
    else:
        _print_summary(imported.fresh)


def _curves(args: argparse.Namespace) -> None:
    from nearfree.public.curve_file import import_curves

    seal, imported = import_curves(
        layout_of(args), args.file, config_of(args), name=args.name, take=args.take
    )
    print_seal(seal)
    print(f"  {len(imported.curves)} curves of {args.file.name}")
    for name in imported.unchecked:
        print(f"  {name}: some of its latencies cannot be checked against its hardware")


def _print_summary(imported: "ReleaseContent") -> None:
    """Print a release's curves, the rows left out, and its facts that differ from the config."""
    print(f"  {imported.notice}")
    curves = Counter((event.platform, event.setting.module) for event in imported.events)
    modules = sorted({module for _, module in curves})
    print(f"\n  {'curves of':<20}{''.join(f'{name:>12}' for name in modules)}")
    for system in imported.systems:
        counts = "".join(f"{curves[system.platform, name]:>12}" for name in modules)
        print(f"  {system.platform:<20}{counts}")
    unknown = [system.name for system in imported.systems if not system.known]
    if unknown:
        print(f"  not in platforms.yaml, under their own names: {', '.join(unknown)}")
    for name, reason in imported.left_out.items():
        print(f"  left out: {name}, {reason}")
    print(f"  {imported.repeats} points were measured several times: the median is used")
    print("\n  left out: rows that are not a point of a setting")
    for (table, reason), rows in sorted(imported.rows_skipped.items()):
        print(f"  {rows:>10}  {table}: {reason}")
    if imported.curves_skipped:
        print("\n  left out: curves that are implausible, or too short")
    for (platform, reason), count in sorted(imported.curves_skipped.items()):
        print(f"  {count:>10}  {platform}: {reason}")
    for reason, example in sorted(imported.examples.items()):
        print(f"  such as ({reason}) {example}")
    for text in imported.differences:
        print(f"  differs: {text}")
