"""Write a ledger with its evidence and results as a Workflow Run RO-Crate, or verify such a crate.

With --verify every byte is compared; exits with 2 if anything is damaged, missing or superfluous.
"""

import argparse
from pathlib import Path

from nearfree.cli.common import printable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument("out", type=Path, metavar="OUT", help="the crate's folder; new, to write")
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--ledger",
        metavar="LEDGER",
        help="N for ledger N of this machine, adopted:N for a tracked one (default: the newest)",
    )
    which.add_argument("--verify", action="store_true", help="read the crate in OUT back")


def run(args: argparse.Namespace) -> int:
    """Write a crate, or verify one and print the findings."""
    return _verify(args.out) if args.verify else _write(args)


def _write(args: argparse.Namespace) -> int:
    from nearfree.log.names import Layout, require_log
    from nearfree.prove.crate.write import write_crate

    layout = require_log(Layout(args.results))
    done = write_crate(layout, Path(), args.config, args.out, args.ledger)
    if done.other_code:
        print(f"notice: rules and Snakefile are newer than the ledger: {done.other_code}")
    written = f"ledger {done.ledger}, {done.takes} takes, {done.files} files"
    print(printable(f"{args.out}: {written}, {done.size / 1e6:.1f} MB"))
    return 0


def _verify(out: Path) -> int:
    from nearfree.cli import MISTAKE
    from nearfree.prove.crate.check import check_crate

    findings = check_crate(out)
    for finding in findings:
        print(printable(f"DAMAGE: {out}/{finding.path} {finding.message}"))
    print(printable(f"{out}: {len(findings)} damaged"))
    return MISTAKE if findings else 0
