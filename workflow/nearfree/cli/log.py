"""The event log: reading, correcting, sealing, verifying, adopting and packing it."""

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
        "what", nargs="?", help="a scope, a take (scope/stream/take-plan8) or an event (...#17)"
    )
    recover = add_action(
        actions, "recover", "list interrupted takes, or seal what one of them holds"
    )
    recover.add_argument("take", nargs="?", help="the take to seal with its whole rounds")
    retract = add_action(actions, "retract", "declare an event or a take invalid, for good")
    retract.add_argument("id", help="an event (scope/stream/take-plan8.attempt#17) or a take")
    retract.add_argument("--reason", required=True, type=_reason, help="why; it stays on record")


def _reason(text: str) -> str:
    """Return a reason; argparse prints the error of a blank one."""
    if not text.strip():
        raise argparse.ArgumentTypeError("it is blank: say why, as it stays on record")
    return text


def _check_scope(layout: "Layout", what: str | None) -> None:
    """Refuse a scope that no take is of, where there are takes of others."""
    scopes = {take.scope for sealed in (True, False) for take in layout.takes(sealed=sealed)}
    if what and "/" not in what and scopes and what not in scopes:
        raise EvidenceError(
            f"no takes in {what}", remedy=f"There are takes in {', '.join(sorted(scopes))}"
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
    argument("stream", nargs="?", help="one stream of it (default: all)"),
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
    """Seal again, in one take of fewer bytes, what is read of all takes of kernels.

    Not a number changes but T at a curve's first N, by a tenth of a percent at most. Afterwards
    `nearfree adopt public kernels` adds the new take to git, and `nearfree retire` takes out those
    that it replaces.

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
    """Retire takes of kernels that newer ones have replaced: git and the log hold them no more.

    A line in the tracked ledger says so, with the digest of each seal. A take of which any event is
    read stays.

    Example: nearfree retire public/kernels/1-0123abcd
    """
    from nearfree.derive.reference.record import STREAM, recorded_kernels
    from nearfree.log.adopt import retire
    from nearfree.log.names import parse_take

    layout, takes = layout_of(args), [parse_take(text) for text in args.take]
    other = [take for take in takes if (take.scope, take.stream) != (PUBLIC, STREAM)]
    if other:
        raise EvidenceError(
            f"{other[0]} is no take of kernels: what else is read of a take is not known",
            remedy=f"Name takes of {PUBLIC}/{STREAM}",
        )
    for take in retire(layout, args.config, takes, frozenset(recorded_kernels(layout))):
        print(f"{take}: gone from the log and from git's index; commit to keep it so")
    return 0


def _crate_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("out", type=Path, metavar="OUT", help="the crate's folder; new, to write")
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--ledger",
        metavar="LEDGER",
        help="N for ledger N of this machine, adopted:N for a tracked one (default: the newest)",
    )
    which.add_argument("--verify", action="store_true", help="read the crate in OUT back")


@command("crate", _crate_arguments)
def run_crate(args: argparse.Namespace) -> int:
    """Write a ledger with its evidence and results as a Workflow Run RO-Crate, or verify a crate.

    With --verify every byte is compared; exits with 2 if anything is damaged, missing or
    superfluous.

    Example: nearfree crate --verify logs/crate
    """
    return _verify(args.out) if args.verify else _write(args)


def _write(args: argparse.Namespace) -> int:
    from nearfree.prove.crate.write import write_crate

    layout = log_of(args)
    done = write_crate(layout, Path(), args.config, args.out, args.ledger)
    if done.other_code:
        print(f"notice: rules and Snakefile are newer than the ledger: {done.other_code}")
    written = f"ledger {done.ledger}, {done.takes} takes, {done.files} files"
    print(printable(f"{args.out}: {written}, {done.size / 1e6:.1f} MB"))
    return 0


def _verify(out: Path) -> int:
    from nearfree.prove.crate.check import check_crate

    findings = check_crate(out)
    for finding in findings:
        print(printable(f"DAMAGE: {out}/{finding.path} {finding.message}"))
    print(printable(f"{out}: {len(findings)} damaged"))
    return MISTAKE if findings else 0
