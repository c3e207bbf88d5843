"""Import what others published or measured into the event log.

`published` takes in the reference values of config/published: the tables of the paper.
"""

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument("dataset", choices=["published"], help="which data")


def run(args: argparse.Namespace) -> int:
    """Make sure that the import is sealed."""
    from nearfree.events.names import Layout
    from nearfree.public.published import import_published

    seal = import_published(Layout(args.results), args.config / "published")
    print(f"{seal.name}: sealed, {sum(part.events for part in seal.segments)} events")
    return 0
