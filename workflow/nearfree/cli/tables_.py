"""Make a scope's tables, one stage at a time.

`accuracy` is of imported curves alone, and `outlook` of the public scope alone.
"""

import argparse

STAGES = ("project", "boundaries", "predictions", "validation", "accuracy", "outlook")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument("stage", choices=STAGES, help="which tables")
    parser.add_argument("scope", help="a platform, public, or imported")


def run(args: argparse.Namespace) -> int:
    """Write the stage's tables."""
    from nearfree.config import Config
    from nearfree.events.names import Layout, check_part
    from nearfree.tables.bound import bound
    from nearfree.tables.project import project
    from nearfree.theory.stages import write_accuracy, write_predictions, write_validation

    layout, scope, config = Layout(args.results), check_part(args.scope), Config(args.config)
    if args.stage == "project":
        project(layout, scope, config.datasheets(scope))
    elif args.stage == "boundaries":
        bound(layout, scope, config.site.tolerances)
    elif args.stage == "predictions":
        write_predictions(layout, scope, config, config.site.tolerances)
    elif args.stage == "accuracy":
        write_accuracy(layout, config, config.site.epsilon)
    elif args.stage == "outlook":
        from nearfree.theory.outlook_stage import write_outlook

        write_outlook(layout, config, config.site.epsilon)
    else:
        write_validation(layout, scope)
    return 0
