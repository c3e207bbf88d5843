"""Show a number's provenance down to its events, and recompute it from the log to compare.

WHAT is a row's id (`boundaries:1f3a5c7e9b2d`), a table's key (`boundaries:platform=cpu,n_max=8`), a
figure (`cpu/dense_ffn_latency_against_n`, or its name alone), an event (`SEGMENT#LINE`) or a take.
A row is recomputed from the log alone, with all its inputs; where the result differs from the
table, the difference is printed and the exit code is 2. With --all every table and figure is
recomputed and compared, cell by cell and mark by mark; with --drawn every file of figures and
report is compared byte by byte, too, which takes about three times as long.
"""

import argparse
import sys

from nearfree.cli.common import printable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("what", nargs="?", metavar="WHAT", help="a row, a key, a figure, an event")
    what.add_argument("--all", action="store_true", help="recompute everything and compare")
    parser.add_argument(
        "--drawn", action="store_true", help="with --all: also draw, and compare every byte"
    )
    parser.add_argument(
        "--format",
        choices=("text", "json", "mermaid"),
        default="text",
        help="output format; text shows the deciding rows, json all (default: text)",
    )


def run(args: argparse.Namespace) -> int:
    """Print a number's provenance, or the findings of the full audit."""
    from nearfree.errors import ConfigError

    if args.all and args.format == "mermaid":
        raise ConfigError("--all has no chart", remedy="Name a row for --format mermaid")
    if args.drawn and not args.all:
        raise ConfigError("--drawn works with --all alone", remedy="Give --all, too")
    return _all(args) if args.all else _one(args)


def _one(args: argparse.Namespace) -> int:
    from nearfree.cli import MISTAKE
    from nearfree.config.files import Config
    from nearfree.log.names import Layout, require_log
    from nearfree.prove.audit.graph import trace_query
    from nearfree.prove.audit.recompute import recompute
    from nearfree.prove.audit.render import as_json, as_mermaid, as_text

    layout = require_log(Layout(args.results))
    graph = trace_query(layout, Config(args.config), args.what)
    root = graph.nodes[graph.root]
    again = recompute(layout, args.config, [root.id]) if root.kind == "row" else {}
    differing = [str(difference) for row in again.values() for difference in row]
    if args.format == "json":
        print(as_json(graph, differing if again else None))
        return MISTAKE if differing else 0
    print("\n".join(as_mermaid(graph) if args.format == "mermaid" else as_text(graph)))
    out = sys.stderr if args.format == "mermaid" else sys.stdout
    for difference in differing:
        print(f"DIFFERS: {printable(difference)}", file=out)
    if again and not differing and args.format == "text":
        print(f"\nmade again from the log alone: the same (nearfree audit {root.id})")
    if root.kind == "figure" and args.format == "text":
        print("\nnot compared here: nearfree audit --all makes every figure again")
    return MISTAKE if differing else 0


def _all(args: argparse.Namespace) -> int:
    from nearfree.cli import MISTAKE
    from nearfree.log.names import Layout
    from nearfree.prove.audit.full_audit import audit_all

    result = audit_all(Layout(args.results), args.config, drawn=args.drawn)
    if args.format == "json":
        import msgspec

        print(msgspec.json.format(msgspec.json.encode(result), indent=2).decode())
        return MISTAKE if result.findings else 0
    for finding in result.findings:
        print(f"DIFFERS: {printable(finding)}")
    print(
        f"{args.results}: {result.cells} cells of {result.rows} rows in {result.tables} tables and "
        f"{result.marks} marks of {result.figures} figures made again from the log; "
        f"{len(result.findings)} findings"
    )
    return MISTAKE if result.findings else 0
