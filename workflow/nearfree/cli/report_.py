"""Write the report over all scopes: one static page, results/report/index.html.

With --as-of, the tables, figures and report of an earlier ledger are made again, below
results/as_of/. LEDGER is N for ledger N of this machine, adopted:N for one that git tracks.
"""

import argparse
import sys

from nearfree.cli.common import printable
from nearfree.errors import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument(
        "--as-of", metavar="LEDGER", help="the ledger whose state is reported (default: what is)"
    )
    parser.add_argument(
        "--other-code",
        action="store_true",
        help="with --as-of: go on if the ledger's code or libraries are not those at hand, and "
        "say so beside the results",
    )


def run(args: argparse.Namespace) -> int:
    """Write the page."""
    from nearfree.pipeline.pipeline import Pipeline
    from nearfree.show.page.whole import report_of

    if args.as_of is not None:
        return _as_of(args)
    if args.other_code:
        raise ConfigError("--other-code is of an earlier ledger", remedy="Name one with --as-of")
    print(report_of(Pipeline(args.results, args.config)))
    return 0


def _as_of(args: argparse.Namespace) -> int:
    from nearfree.log.names import Layout, require_log
    from nearfree.prove.audit.as_of import as_of
    from nearfree.prove.audit.ledgers import find_ledger

    layout = require_log(Layout(args.results))
    found, note = as_of(layout, find_ledger(layout, args.as_of), other_code=args.other_code)
    if note:
        print(printable(note), file=sys.stderr)
    print(found.layout.root / "report" / "index.html")
    return 0
