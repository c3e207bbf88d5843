"""Print the plan of a study as JSON, for `nearfree measure --plan -` in another environment."""

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument("platform", help="a platform of `here`")
    parser.add_argument("study", help="a study of config/studies.yaml")


def run(args: argparse.Namespace) -> int:
    """Print the plan."""
    from msgspec import json

    from nearfree.cli.common import here

    config, scope = here(args)
    print(json.encode(config.measure_plan(scope, args.study)).decode())
    return 0
