"""Make a scope's tables, one stage at a time.

`accuracy` is of imported curves alone, `outlook` and `schedules` of the public scope alone.
"""

import argparse

from nearfree.derive.stages import STAGES


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    choices = [name for name, stage in STAGES.items() if stage.tables]
    parser.add_argument("stage", choices=choices, help="the stage that makes the tables")
    parser.add_argument("scope", help="a platform, public, or imported")


def run(args: argparse.Namespace) -> int:
    """Write the stage's tables."""
    from nearfree.config.files import Config
    from nearfree.derive.jobs import Job, make
    from nearfree.log.names import Layout, check_part

    make(Layout(args.results), Config(args.config), Job(args.stage, check_part(args.scope)))
    return 0
