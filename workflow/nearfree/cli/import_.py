"""Import what others published or measured into the event log.

`published` takes in the reference values of config/published: the tables of the paper;
`aiconfigurator` the public latency tables of AIConfigurator's wheel; `curves` anyone's curves T(N)
from a CSV file.
"""

import argparse
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from nearfree.cli.common import add_roots

if TYPE_CHECKING:
    from nearfree.log.seal import Seal
    from nearfree.public.release import Found


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    datasets = parser.add_subparsers(dest="dataset", required=True, metavar="DATASET")
    _dataset(datasets, "published", "the paper's tables, from config/published")
    tables = _dataset(datasets, "aiconfigurator", "AIConfigurator's public latency tables")
    tables.add_argument("--version", metavar="VERSION", help="which release (default: 0.12.0)")
    tables.add_argument("--offline", action="store_true", help="do without the network")
    curves = _dataset(datasets, "curves", "curves T(N) from a CSV file")
    curves.add_argument("file", type=Path, metavar="FILE.csv", help="the file")
    curves.add_argument("--name", help="what the curves are called (default: the file's name)")


def _dataset(
    datasets: "argparse._SubParsersAction[argparse.ArgumentParser]", name: str, text: str
) -> argparse.ArgumentParser:
    parser = datasets.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    add_roots(parser, inner=True)
    return parser


def run(args: argparse.Namespace) -> int:
    """Make sure that the import is sealed."""
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
        _tell(done.fresh)


def _curves(args: argparse.Namespace) -> None:
    from nearfree.config.files import Config
    from nearfree.log.names import Layout
    from nearfree.public.curve_file import import_curves

    seal, found = import_curves(
        Layout(args.results), args.file, Config(args.config), name=args.name
    )
    _sealed(seal)
    print(f"  {len(found.curves)} curves of {args.file.name}")
    for name in found.unchecked:
        print(f"  {name}: not all of its latencies can be held against its hardware")


def _sealed(seal: "Seal") -> None:
    print(f"{seal.name}: sealed, {sum(part.events for part in seal.segments)} events")


def _tell(found: "Found") -> None:
    """Print what a release held: curves, what was left out, and where its facts are others."""
    print(f"  {found.notice}")
    curves = Counter((each.platform, each.setting.module) for each in found.events)
    modules = sorted({module for _, module in curves})
    print(f"\n  {'curves of':<20}{''.join(f'{name:>12}' for name in modules)}")
    for system in found.systems:
        counts = "".join(f"{curves[system.platform, name]:>12}" for name in modules)
        print(f"  {system.platform:<20}{counts}")
    own = [system.name for system in found.systems if not system.known]
    if own:
        print(f"  not in config/platforms.yaml, under their own names: {', '.join(own)}")
    for name, why in found.left_out.items():
        print(f"  left out: {name}, {why}")
    print(f"  {found.repeats} points were measured several times: their median counts")
    print("\n  left out: rows that are no point of a setting")
    for (table, why), rows in sorted(found.rows_skipped.items()):
        print(f"  {rows:>10}  {table}: {why}")
    if found.curves_skipped:
        print("\n  left out: curves that are not believed, or too short")
    for (platform, why), many in sorted(found.curves_skipped.items()):
        print(f"  {many:>10}  {platform}: {why}")
    for why, example in sorted(found.examples.items()):
        print(f"  such as ({why}) {example}")
    for text in found.differences:
        print(f"  differs: {text}")
