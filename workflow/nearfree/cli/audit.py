"""Provenance: the events behind a number, and why two ledgers differ."""

import argparse
import sys
from typing import TYPE_CHECKING

from nearfree.cli.common import (
    MISTAKE,
    argument,
    command,
    config_of,
    flag,
    json_text,
    layout_of,
    log_of,
    output_format,
)
from nearfree.errors import ConfigError, printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nearfree.prove.audit.changes import Change
    from nearfree.prove.audit.ledgers import NamedLedger


def _audit_arguments(parser: argparse.ArgumentParser) -> None:
    target = parser.add_mutually_exclusive_group(required=True)
    target.add_argument(
        "what",
        nargs="?",
        metavar="WHAT",
        help="a row's id, a table's key, a figure, an event or a take",
    )
    target.add_argument("--all", action="store_true", help="recompute everything and compare")


@command(
    "audit",
    _audit_arguments,
    flag("--drawn", "with --all: also draw figures and report, and compare every byte"),
    output_format("text", "json", "mermaid", note="; text shows the deciding rows, json all rows"),
)
def run_audit(args: argparse.Namespace) -> int:
    """Show the provenance of a number down to its events, and check it against the log.

    WHAT is a row's id (`boundaries:1f3a5c7e9b2d`), a table's key
    (`boundaries:platform=cpu,n_max=8`; a value that has commas stands between double quotes), a
    figure (`cpu/dense_ffn_latency_against_n`, or only its name), an event (`SEGMENT#LINE`) or a
    take. A row and all its inputs are recomputed from the log; if the result differs from the
    table, the difference is printed and the exit code is 2.
    With --all every table and figure is recomputed and compared, cell by cell and mark by mark;
    with --drawn every file of the figures and the report is compared byte by byte, too, which takes
    about three times as long.

    Example: nearfree audit boundaries:5b1eae9b1bfa
    """
    if args.all and args.format == "mermaid":
        raise ConfigError("--all has no chart", remedy="Name a row for --format mermaid")
    if args.drawn and not args.all:
        raise ConfigError("--drawn needs --all", remedy="Give --all, too")
    return _all(args) if args.all else _one(args)


def _one(args: argparse.Namespace) -> int:
    from nearfree.prove.audit.graph import trace_query
    from nearfree.prove.audit.recompute import recompute
    from nearfree.prove.audit.render import as_json, as_mermaid, as_text

    layout = log_of(args)
    graph = trace_query(layout, config_of(args), args.what)
    root = graph.nodes[graph.root]
    differences_by_row = recompute(layout, args.config, [root.id]) if root.kind == "row" else {}
    differing = [str(difference) for row in differences_by_row.values() for difference in row]
    if args.format == "json":
        print(as_json(graph, differing if differences_by_row else None))
        return MISTAKE if differing else 0
    print("\n".join(as_mermaid(graph) if args.format == "mermaid" else as_text(graph)))
    out = sys.stderr if args.format == "mermaid" else sys.stdout
    for difference in differing:
        print(f"DIFFERS: {printable(difference)}", file=out)
    if differences_by_row and not differing and args.format == "text":
        print(f"\nrecomputed from the log alone: equal (nearfree audit {root.id})")
    if root.kind == "figure" and args.format == "text":
        print("\na figure is not recomputed here; nearfree audit --all recomputes all figures")
    return MISTAKE if differing else 0


def _all(args: argparse.Namespace) -> int:
    from nearfree.prove.audit.full_audit import audit_all

    result = audit_all(layout_of(args), args.config, drawn=args.drawn)
    if args.format == "json":
        print(json_text(result))
        return MISTAKE if result.findings else 0
    for finding in result.findings:
        print(f"DIFFERS: {printable(finding)}")
    print(
        f"{args.results}: {result.cells} cells of {result.rows} rows in {result.tables} tables and "
        f"{result.marks} marks of {result.figures} figures recomputed from the log; "
        f"{len(result.findings)} differences"
    )
    return MISTAKE if result.findings else 0


_SHOWN_ROWS = 5
_DIGESTS = ("setting_key", "plan8")
"""Fields of a setting that text output leaves out."""


@command(
    "diff",
    argument("old", metavar="OLD", help="a ledger"),
    argument("new", metavar="NEW", help="another ledger"),
    output_format("text", "json", note=f"; text shows {_SHOWN_ROWS} rows per cause, json all"),
)
def run_diff(args: argparse.Namespace) -> int:
    """List the reported numbers that differ between two ledgers, and why.

    Both ledgers are recomputed by the installed code, so code never causes a difference. Rows are
    listed by cause: new takes, retractions, rules, constants, and changes of the config. OLD and
    NEW are N for ledger N of this machine, adopted:N for one that git tracks.

    Example: nearfree diff 1 adopted:2
    """
    import tempfile
    from pathlib import Path

    from nearfree.prove.audit.changes import changes
    from nearfree.prove.audit.ledger_snapshot import make_snapshot
    from nearfree.prove.audit.ledgers import find_ledger

    layout = log_of(args)
    old, new = (find_ledger(layout, name) for name in (args.old, args.new))
    with tempfile.TemporaryDirectory() as folder:
        before = make_snapshot(layout, old, Path(folder) / "old")
        changed = changes(before, make_snapshot(layout, new, Path(folder) / "new", like=before))
    if args.format == "json":
        print(_json(old, new, changed))
        return 0
    for line in (*_heads(old, new), *_text(changed)):
        print(printable(line))
    return 0


def _heads(*named_ledgers: "NamedLedger") -> "Iterator[str]":
    from nearfree.prove.audit.ledgers import differences
    from nearfree.prove.audit.render import plain

    for named_ledger in named_ledgers:
        ledger = named_ledger.ledger
        yield (
            f"ledger {named_ledger.name}: {plain(ledger.time)}, {len(ledger.seals)} takes, "
            f"code {plain(ledger.code_digest)}"
        )
    for named_ledger in named_ledgers:
        if difference := differences(named_ledger.ledger):
            yield f"the installed code is not that of ledger {named_ledger.name}: {difference}"
    yield "both were recomputed by the installed code, so it causes no difference below"


def _text(changed_rows: "list[Change]") -> "Iterator[str]":
    from nearfree.prove.audit.changes import by_cause, summary
    from nearfree.prove.audit.render import plain

    if not changed_rows:
        yield "no number differs"
    for causes, rows in by_cause(changed_rows):
        yield ""
        yield from map(plain, causes)
        yield f"  {summary(rows)}"
        for change in rows[:_SHOWN_ROWS]:
            fields = (field for field in change.about.items() if field[0] not in _DIGESTS)
            setting = ", ".join(f"{name} {plain(value)}" for name, value in fields)
            yield f"  {change.kind} {change.row_id} ({change.scope}; {setting})"
            for cell in change.cells:
                yield f"    {cell.column}: {plain(cell.old)} -> {plain(cell.new)}"
        if len(rows) > _SHOWN_ROWS:
            yield f"  and {len(rows) - _SHOWN_ROWS} more: --format json lists them"


def _json(old: "NamedLedger", new: "NamedLedger", changed_rows: "list[Change]") -> str:
    import msgspec

    from nearfree.prove.audit.ledgers import differences

    ledgers = [
        {
            "name": named_ledger.name,
            "time": named_ledger.ledger.time,
            "root": named_ledger.ledger.root,
            "code_digest": named_ledger.ledger.code_digest,
            "other_code": differences(named_ledger.ledger),
        }
        for named_ledger in (old, new)
    ]
    return msgspec.json.encode({"ledgers": ledgers, "changes": changed_rows}).decode()
