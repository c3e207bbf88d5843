"""Import published values and public measurements into the event log.

`published` imports the paper's tables from config/published, `aiconfigurator` the public latency
tables of AIConfigurator's wheel, and `curves` curves T(N) from a CSV file.
"""

import argparse
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from nearfree.cli.common import add_roots

if TYPE_CHECKING:
    from nearfree.log.seal import Seal
    from nearfree.public.aiconfigurator import Found


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    datasets = parser.add_subparsers(dest="dataset", required=True, metavar="DATASET")
    _dataset(datasets, "published", "the paper's tables, from config/published")
    tables = _dataset(datasets, "aiconfigurator", "AIConfigurator's public latency tables")
    tables.add_argument("--version", metavar="VERSION", help="which release (default: 0.12.0)")
    tables.add_argument("--offline", action="store_true", help="do without the network")
    curves = _dataset(datasets, "curves", "curves T(N) from a CSV file")
    curves.add_argument("file", type=Path, metavar="FILE.csv", help="the file")
    curves.add_argument("--name", help="a name for the curves (default: the file's name)")


def _dataset(
    datasets: "argparse._SubParsersAction[argparse.ArgumentParser]", name: str, text: str
) -> argparse.ArgumentParser:
    parser = datasets.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    add_roots(parser, inner=True)
    return parser


def run(args: argparse.Namespace) -> int:
    """Import and seal a dataset unless it is sealed."""
    {"published": _published, "aiconfigurator": _aiconfigurator, "curves": _curves}[args.dataset](
        args
    )
    return 0


def _published(args: argparse.Namespace) -> None:
    from nearfree.log.names import Layout
    from nearfree.public.published import import_published

    _sealed(import_published(Layout(args.results), args.config / "published"))


def _aiconfigurator(args: argparse.Namespace) -> None:
    from nearfree.config.files import Config
    from nearfree.log.names import Layout
    from nearfree.public.aiconfigurator import VERSION, import_aiconfigurator
    from nearfree.sources.fetching.cache import Cache, default_cache

    done = import_aiconfigurator(
        Layout(args.results),
        Config(args.config).platforms,
        cache=Cache(default_cache()),
        version=args.version or VERSION,
        offline=args.offline,
    )
    _sealed(done.seal)
    if done.fresh is None:
        print("  it was there already")
    else:
        _print_summary(done.fresh)


def _curves(args: argparse.Namespace) -> None:
    from nearfree.config.files import Config
    from nearfree.log.names import Layout
    from nearfree.public.curve_file import import_curves

    seal, imported = import_curves(
        Layout(args.results), args.file, Config(args.config), name=args.name
    )
    _sealed(seal)
    print(f"  {len(imported.curves)} curves of {args.file.name}")
    for name in imported.unchecked:
        print(f"  {name}: not all of its latencies can be checked against its hardware")


def _sealed(seal: "Seal") -> None:
    print(f"{seal.name}: sealed, {sum(part.events for part in seal.segments)} events")


def _print_summary(imported: "Found") -> None:
    """Print a release's curves, the rows left out, and facts that differ from the config's."""
    print(f"  {imported.notice}")
    curves = Counter((event.platform, event.setting.module) for event in imported.events)
    modules = sorted({module for _, module in curves})
    print(f"\n  {'curves of':<20}{''.join(f'{name:>12}' for name in modules)}")
    for system in imported.systems:
        counts = "".join(f"{curves[system.platform, name]:>12}" for name in modules)
        print(f"  {system.platform:<20}{counts}")
    unknown = [system.name for system in imported.systems if not system.known]
    if unknown:
        print(f"  not in config/platforms.yaml, under their own names: {', '.join(unknown)}")
    for name, why in imported.left_out.items():
        print(f"  left out: {name}, {why}")
    print(f"  {imported.repeats} points were measured several times: their median counts")
    print("\n  left out: rows that are no point of a setting")
    for (table, why), rows in sorted(imported.rows_skipped.items()):
        print(f"  {rows:>10}  {table}: {why}")
    if imported.curves_skipped:
        print("\n  left out: curves that are implausible, or too short")
    for (platform, why), many in sorted(imported.curves_skipped.items()):
        print(f"  {many:>10}  {platform}: {why}")
    for why, example in sorted(imported.examples.items()):
        print(f"  such as ({why}) {example}")
    for text in imported.differences:
        print(f"  differs: {text}")
