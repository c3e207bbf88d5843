"""Commands of the event log: show, correct, seal, verify, adopt and pack it."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from nearfree.cli.common import MISTAKE, add_action, argument, command, layout_of, log_of
from nearfree.core.scopes import PUBLIC
from nearfree.errors import EvidenceError, printable

if TYPE_CHECKING:
    from nearfree.log.names import Layout


@command("ledger")
def run_ledger(args: argparse.Namespace) -> int:
    """Write this machine's ledger: every seal, the config and the code, chained to the last one.

    Example: nearfree ledger
    """
    from nearfree.log.document import read_document, replace
    from nearfree.log.ledger import Ledger, write_ledger

    layout = log_of(args)
    path = write_ledger(layout, layout.ledgers / "local", args.config)
    replace(layout.state / "ledger.json", path.read_bytes())
    ledger = read_document(path, Ledger)
    print(f"ledger {ledger.number}: {len(ledger.seals)} seals, root {ledger.root[:16]}")
    return 0


@command(
    "verify",
    argument("path", type=Path, nargs="?", help="a folder with events/ in it (default: --results)"),
)
def run_verify(args: argparse.Namespace) -> int:
    """Verify every byte of a results root: log, seals, ledgers, receipts, tables, figures, report.

    Exits with 2 if anything is damaged, missing or out of place; notices alone exit with 0.

    Example: nearfree verify results
    """
    from nearfree.log.verify import verify

    root = args.path or args.results
    report = verify(root)
    for finding in report.findings:
        kind = "notice" if finding.notice else "DAMAGE"
        print(printable(f"{kind}: {root}/{finding.path} {finding.message}"))
    damage = sum(not finding.notice for finding in report.findings)
    counted = (
        f"{root}: {report.takes} sealed takes, {report.events} events, {report.figures} figures, "
        f"{report.tables} tables; "
        f"{damage} damaged, {len(report.findings) - damage} notices"
    )
    print(printable(counted))
    return MISTAKE if report.damaged else 0


def _log_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    show = add_action(actions, "show", "list the takes, a take's events, or print one event")
    show.add_argument(
        "what",
        nargs="?",
        help="a scope, a take (scope/stream/take-plan8) or an event (TAKE.ATTEMPT#17)",
    )
    recover = add_action(
        actions, "recover", "list interrupted takes, or seal the complete rounds of one"
    )
    recover.add_argument("take", nargs="?", help="the take to seal with its complete rounds")
    retract = add_action(actions, "retract", "declare an event or a take invalid, permanently")
    retract.add_argument("id", help="an event (scope/stream/take-plan8.attempt#17) or a take")
    retract.add_argument("--reason", required=True, type=_reason, help="why; it stays on record")


def _reason(text: str) -> str:
    """Return a reason; argparse prints the error if it is blank."""
    if not text.strip():
        raise argparse.ArgumentTypeError("it is blank: give a reason, which stays on record")
    return text


def _check_scope(layout: "Layout", target: str | None) -> None:
    """Raise EvidenceError for a scope without takes, if other scopes have takes."""
    scopes = {take.scope for sealed in (True, False) for take in layout.takes(sealed=sealed)}
    if target and "/" not in target and scopes and target not in scopes:
        raise EvidenceError(
            f"no takes in {target}", remedy=f"There are takes in {', '.join(sorted(scopes))}"
        )


@command("log", _log_arguments)
def run_log(args: argparse.Namespace) -> int:
    """Read and correct the event log: show, recover, retract.

    Example: nearfree log show cpu
    """
    layout = layout_of(args)
    if args.action == "show":
        from nearfree.log.show import show

        lines = show(layout, args.what)
        _check_scope(layout, args.what)
    elif args.action == "recover":
        from nearfree.measure.rounds import interrupted, recover

        lines = recover(layout, args.take) if args.take else interrupted(layout)
    else:
        from nearfree.log.retract import retract

        lines = iter([f"{retract(layout, args.id, args.reason).name}: retracts {args.id}"])
    for line in lines:
        print(line)
    return 0


@command(
    "adopt",
    argument("scope", help="a platform, or public"),
    argument("stream", nargs="?", help="one stream of the scope (default: all)"),
)
def run_adopt(args: argparse.Namespace) -> int:
    """Adopt recordings: add a scope's sealed takes to git, with a line in the tracked ledger.

    Example: nearfree adopt h200 dense_ffn
    """
    from nearfree.log.adopt import adopt

    new = adopt(layout_of(args), args.config, args.scope, args.stream)
    for take in new:
        print(f"{take}: added to git's index")
    print(f"{len(new)} new take(s); commit to keep them" if new else "nothing new to adopt")
    return 0


@command("repack")
def run_repack(args: argparse.Namespace) -> int:
    """Seal the events in use of all takes of kernels again, as one smaller take.

    Only T at the first N of a curve changes, by at most 0.1 %. Afterwards `nearfree adopt public
    kernels` adds the new take to git, and `nearfree retire` removes the takes that it replaces.

    Example: nearfree repack
    """
    from nearfree.derive.reference.repack import repack_kernels

    print(f"{repack_kernels(layout_of(args)).name}: sealed")
    return 0


@command(
    "retire",
    argument("take", nargs="+", help="an adopted take of kernels, public/kernels/TAKE-PLAN"),
)
def run_retire(args: argparse.Namespace) -> int:
    """Retire takes of kernels that newer takes replace: remove them from the log and from git.

    A line in the tracked ledger records it, with the digest of each seal. A take with an event that
    is still in use is kept.

    Example: nearfree retire public/kernels/1-0123abcd
    """
    from nearfree.derive.reference.record import STREAM, recorded_kernels
    from nearfree.log.adopt import retire
    from nearfree.log.names import parse_take

    layout, takes = layout_of(args), [parse_take(text) for text in args.take]
    others = [take for take in takes if (take.scope, take.stream) != (PUBLIC, STREAM)]
    if others:
        raise EvidenceError(
            f"{others[0]} is not a take of kernels: whether its events are in use is unknown",
            remedy=f"Name takes of {PUBLIC}/{STREAM}",
        )
    for take in retire(layout, args.config, takes, frozenset(recorded_kernels(layout))):
        print(f"{take}: removed from the log and from git's index; commit to complete it")
    return 0


def _crate_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "out", type=Path, metavar="OUT", help="the crate's folder; to write, it must be new"
    )
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument(
        "--ledger",
        metavar="LEDGER",
        help="N for ledger N of this machine, adopted:N for a tracked one (default: the newest)",
    )
    mode.add_argument("--verify", action="store_true", help="verify the crate in OUT")


@command("crate", _crate_arguments)
def run_crate(args: argparse.Namespace) -> int:
    """Write a ledger with its evidence and results as a Workflow Run RO-Crate, or verify a crate.

    With --verify every byte is compared; the exit code is 2 if a file is damaged, missing or
    superfluous.

    Example: nearfree crate --verify logs/crate
    """
    return _verify(args.out) if args.verify else _write(args)


def _write(args: argparse.Namespace) -> int:
    from nearfree.prove.crate.write import write_crate

    layout = log_of(args)
    crate = write_crate(layout, Path(), args.config, args.out, args.ledger)
    if crate.other_code:
        print(f"notice: rules and Snakefile differ from the ledger's: {crate.other_code}")
    contents = f"ledger {crate.ledger}, {crate.takes} takes, {crate.files} files"
    print(printable(f"{args.out}: {contents}, {crate.size / 1e6:.1f} MB"))
    return 0


def _verify(out: Path) -> int:
    from nearfree.prove.crate.check import check_crate

    findings = check_crate(out)
    for finding in findings:
        print(printable(f"DAMAGE: {out}/{finding.path} {finding.message}"))
    print(printable(f"{out}: {len(findings)} damaged"))
    return MISTAKE if findings else 0
