"""Write the report over all scopes: one static page, results/report/index.html.

With --as-of it recomputes the tables, figures and report of an earlier ledger below results/as_of/.
LEDGER is N for ledger N of this machine, adopted:N for one that git tracks.
"""

import argparse
import sys

from nearfree.cli.common import printable
from nearfree.errors import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument(
        "--as-of", metavar="LEDGER", help="the ledger to report (default: the present state)"
    )
    parser.add_argument(
        "--other-code",
        action="store_true",
        help="with --as-of: continue if the ledger's code or libraries are not the installed ones, "
        "with a note beside the results",
    )


def run(args: argparse.Namespace) -> int:
    """Write the page."""
    from nearfree.pipeline.pipeline import Pipeline
    from nearfree.show.page.stage import report_of

    if args.as_of is not None:
        return _as_of(args)
    if args.other_code:
        raise ConfigError(
            "--other-code needs --as-of", remedy="Name an earlier ledger with --as-of"
        )
    print(report_of(Pipeline(args.results, args.config)))
    return 0


def _as_of(args: argparse.Namespace) -> int:
    from nearfree.log.names import Layout, require_log
    from nearfree.prove.audit.ledgers import find_ledger
    from nearfree.prove.audit.restore import as_of

    layout = require_log(Layout(args.results))
    pipeline, note = as_of(layout, find_ledger(layout, args.as_of), other_code=args.other_code)
    if note:
        print(printable(note), file=sys.stderr)
    print(pipeline.layout.root / "report" / "index.html")
    return 0
