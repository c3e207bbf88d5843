"""Write the report over all scopes: one static page, results/report/index.html.

With --as-of, the tables, figures and report of an earlier ledger are made again, below
results/as_of/. LEDGER is N for ledger N of this machine, adopted:N for one that git tracks.
"""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from nearfree.errors import ConfigError

if TYPE_CHECKING:
    from nearfree.pipeline import Pipeline


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
    from nearfree.pipeline import Pipeline

    if args.as_of:
        return _as_of(args)
    if args.other_code:
        raise ConfigError("--other-code is of an earlier ledger", remedy="Name one with --as-of")
    print(_write(Pipeline(args.results, args.config)))
    return 0


def _as_of(args: argparse.Namespace) -> int:
    from nearfree.audit.as_of import as_of
    from nearfree.audit.ledgers import find_ledger
    from nearfree.events.names import Layout, require_log

    layout = require_log(Layout(args.results))
    found, note = as_of(layout, find_ledger(layout, args.as_of), other_code=args.other_code)
    if note:
        print(note, file=sys.stderr)
    print(_write(found))
    return 0


def _write(pipeline: "Pipeline") -> Path:
    from nearfree.figures.gallery import read_gallery
    from nearfree.public.published import SCOPE
    from nearfree.report.stage import write_report

    return write_report(
        pipeline.layout,
        pipeline.scopes + pipeline.sources,
        pipeline.config.datasheets(SCOPE),
        pipeline.site.epsilon,
        read_gallery(pipeline.layout, pipeline.config.folder, pipeline.scopes),
        imported=bool(pipeline.imported),
    )
