"""Make a scope's tables, one stage at a time."""

import argparse

from nearfree.derive.stages import STAGES


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    stages = [stage for stage in STAGES.values() if stage.tables]
    alone = ", ".join(f"{stage.name} of {stage.single}" for stage in stages if stage.single)
    parser.add_argument(
        "stage",
        choices=[stage.name for stage in stages],
        help=f"the stage that makes the tables; of one scope alone: {alone}",
    )
    parser.add_argument("scope", help="a platform, public, or imported")


def run(args: argparse.Namespace) -> int:
    """Write the stage's tables."""
    from nearfree.config.files import Config
    from nearfree.derive.jobs import Job, make
    from nearfree.log.names import Layout, check_part

    make(Layout(args.results), Config(args.config), Job(args.stage, check_part(args.scope)))
    return 0
