"""`nearfree tables`, `figures` and `report`: results derived from the log."""

import argparse
import sys

from nearfree.cli.common import argument, command, config_of, flag, in_one_thread, layout_of, log_of
from nearfree.derive.stages import STAGES
from nearfree.errors import ConfigError, printable


def _tables_arguments(parser: argparse.ArgumentParser) -> None:
    stages = [stage for stage in STAGES.values() if stage.tables]
    single_scopes = ", ".join(f"{stage.name} of {stage.single}" for stage in stages if stage.single)
    parser.add_argument(
        "stage",
        choices=[stage.name for stage in stages],
        help=f"the stage that makes the tables; limited to one scope: {single_scopes}",
    )
    parser.add_argument("scope", help="a platform, public, or imported")


@command("tables", _tables_arguments)
def run_tables(args: argparse.Namespace) -> int:
    """Make the tables of one stage for a scope.

    Example: nearfree tables boundaries cpu
    """
    in_one_thread()
    from nearfree.derive.jobs import Job, make
    from nearfree.log.names import check_part

    make(layout_of(args), config_of(args), Job(args.stage, check_part(args.scope)))
    return 0


@command(
    "figures",
    argument("platform", help="a platform with tables, or public"),
)
def run_figures(args: argparse.Namespace) -> int:
    """Draw a platform's figures from its tables, as SVG and as interactive HTML.

    Example: nearfree figures cpu
    """
    from nearfree.log.names import check_part
    from nearfree.show.figures.stage import draw

    site = config_of(args).site
    scope = check_part(args.platform)
    draw(layout_of(args), scope, site.epsilon, imported=bool(site.imports))
    return 0


@command(
    "report",
    argument("--as-of", metavar="LEDGER", help="the ledger to report (default: the current state)"),
    flag(
        "--other-code",
        "with --as-of: continue with a note if the ledger's code or libraries are not the "
        "installed ones",
    ),
)
def run_report(args: argparse.Namespace) -> int:
    """Write the report of all scopes: one static page, results/report/index.html.

    With --as-of it recomputes the tables, figures and report of an earlier ledger in a folder of
    results/as_of/. LEDGER is N for ledger N of this machine, adopted:N for one that git tracks.

    Example: nearfree report --as-of 1
    """
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
    from nearfree.prove.audit.ledgers import find_ledger
    from nearfree.prove.audit.restore import as_of

    layout = log_of(args)
    pipeline, note = as_of(layout, find_ledger(layout, args.as_of), other_code=args.other_code)
    if note:
        print(printable(note), file=sys.stderr)
    print(pipeline.layout.root / "report" / "index.html")
    return 0
