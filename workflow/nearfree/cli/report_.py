"""Write the report over all scopes: one static page, results/report/index.html."""

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    del parser


def run(args: argparse.Namespace) -> int:
    """Write the page."""
    from nearfree.events.names import Layout
    from nearfree.pipeline import Pipeline
    from nearfree.public.published import SCOPE
    from nearfree.report.stage import write_report

    pipeline = Pipeline(args.results, args.config)
    datasheets = pipeline.config.datasheets(SCOPE)
    scopes = pipeline.scopes + pipeline.sources
    path = write_report(
        Layout(args.results),
        scopes,
        datasheets,
        pipeline.site.epsilon,
        imported=bool(pipeline.imports),
    )
    print(path)
    return 0
