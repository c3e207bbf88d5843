"""List the reported numbers that differ between two ledgers, and why.

Both are recomputed by the installed code, so no difference is the code's. A row is reported under
its causes: new takes, retractions, rules, constants, and changes of the config. OLD and NEW are N
for ledger N of this machine, adopted:N for one that git tracks.
"""

import argparse
from typing import TYPE_CHECKING

from nearfree.cli.common import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nearfree.prove.audit.changes import Change
    from nearfree.prove.audit.ledgers import NamedLedger

_MOST = 5
_DIGESTS = ("setting_key", "plan8")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument("old", metavar="OLD", help="a ledger")
    parser.add_argument("new", metavar="NEW", help="another one")
    parser.add_argument(
        "--format",
        choices=("text", "json"),
        default="text",
        help=f"output format; text shows {_MOST} rows a cause, json all (default: text)",
    )


def run(args: argparse.Namespace) -> int:
    """Print the differences."""
    import tempfile
    from pathlib import Path

    from nearfree.log.names import Layout, require_log
    from nearfree.prove.audit.changes import changes
    from nearfree.prove.audit.ledger_snapshot import make_snapshot
    from nearfree.prove.audit.ledgers import find_ledger

    layout = require_log(Layout(args.results))
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


def _heads(*both: "NamedLedger") -> "Iterator[str]":
    from nearfree.prove.audit.ledgers import differences
    from nearfree.prove.audit.render import plain

    for named in both:
        ledger = named.ledger
        yield (
            f"ledger {named.name}: {plain(ledger.time)}, {len(ledger.seals)} takes, "
            f"code {plain(ledger.code_digest)}"
        )
    for named in both:
        if other := differences(named.ledger):
            yield f"not the code of ledger {named.name}: {other}"
    yield "both were recomputed by the installed code, so no difference below is the code's"


def _text(changed: "list[Change]") -> "Iterator[str]":
    from nearfree.prove.audit.changes import by_cause, summary
    from nearfree.prove.audit.render import plain

    if not changed:
        yield "no number differs"
    for causes, rows in by_cause(changed):
        yield ""
        yield from map(plain, causes)
        yield f"  {summary(rows)}"
        for change in rows[:_MOST]:
            shown = (field for field in change.about.items() if field[0] not in _DIGESTS)
            about = ", ".join(f"{name} {plain(value)}" for name, value in shown)
            yield f"  {change.kind} {change.row_id} ({change.scope}; {about})"
            for cell in change.cells:
                yield f"    {cell.column}: {plain(cell.old)} -> {plain(cell.new)}"
        if len(rows) > _MOST:
            yield f"  and {len(rows) - _MOST} more: --format json lists them"


def _json(old: "NamedLedger", new: "NamedLedger", changed: "list[Change]") -> str:
    import msgspec

    from nearfree.prove.audit.ledgers import differences

    ledgers = [
        {
            "name": named.name,
            "time": named.ledger.time,
            "root": named.ledger.root,
            "code_digest": named.ledger.code_digest,
            "other_code": differences(named.ledger),
        }
        for named in (old, new)
    ]
    return msgspec.json.encode({"ledgers": ledgers, "changes": changed}).decode()
