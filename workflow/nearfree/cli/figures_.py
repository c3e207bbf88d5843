"""Draw a platform's figures from its tables, as SVG and as interactive HTML."""

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument("platform", help="a platform with tables, or public")


def run(args: argparse.Namespace) -> int:
    """Draw."""
    from nearfree.config.files import Config
    from nearfree.log.names import Layout, check_part
    from nearfree.show.figures.stage import draw

    site = Config(args.config).site
    scope = check_part(args.platform)
    draw(Layout(args.results), scope, site.epsilon, imported=bool(site.imports))
    return 0
