"""Draw a platform's figures from its tables, as SVG and as interactive HTML."""

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument("platform", help="a platform with tables")


def run(args: argparse.Namespace) -> int:
    """Draw."""
    from nearfree.config import Config
    from nearfree.events.names import Layout, check_part
    from nearfree.figures.stage import draw

    draw(Layout(args.results), check_part(args.platform), Config(args.config).site.epsilon)
    return 0
