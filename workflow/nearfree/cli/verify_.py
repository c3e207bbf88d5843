"""Verify every byte of a results folder: log, seals, ledgers, receipts, tables, figures, report.

Exits with 2 if anything is damaged, missing or out of place; notices alone exit with 0.
"""

import argparse
from pathlib import Path

from nearfree.cli.common import printable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument(
        "path", type=Path, nargs="?", help="a folder with events/ in it (default: --results)"
    )


def run(args: argparse.Namespace) -> int:
    """Verify and print the findings."""
    from nearfree.cli import MISTAKE
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
