"""Print the deployment table: N_max by every predictor for a list of models and conditions.

Without a model it answers for what deployments.yaml lists and has drawn. With --published it
computes the paper's own table anew and sets it beside what is printed, and what the sources say.
"""

import argparse
from typing import TYPE_CHECKING

from nearfree.cli.deployment_options import (
    add_deployment,
    add_looking,
    answering,
    asked,
    tolerance,
)

if TYPE_CHECKING:
    from nearfree.config.deployments import Asked
    from nearfree.config.files import Config


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    add_deployment(parser, required=False)
    add_looking(parser)
    parser.add_argument(
        "--published", action="store_true", help="the paper's table, computed anew and compared"
    )
    parser.add_argument(
        "--format", choices=["text", "csv"], default="text", help="how to print (default: text)"
    )


def run(args: argparse.Namespace) -> int:
    """Print the table."""
    from nearfree.config.files import Config

    config = Config(args.config)
    print("\n".join(_published(args, config) if args.published else _lookup(args, config)))
    return 0


def _lookup(args: argparse.Namespace, config: "Config") -> list[str]:
    from nearfree.derive.predict.forecast.expand_deployments import deployments
    from nearfree.derive.predict.forecast.forecast import forecast, positions
    from nearfree.show.text.answer_json import with_about
    from nearfree.show.text.lookup import lookup_report

    epsilon = tolerance(args, config)
    wanted = [each for one in _asked(args, config) for each in deployments(config, one)]
    grid = positions(args.largest)
    found = forecast(wanted, answering(args, config, wanted), [epsilon], grid=grid)
    if args.format == "csv":
        rows = found.answers.drop("calibration")
        return [with_about(found.deployments, rows).write_csv().rstrip("\n")]
    return list(lookup_report(found, epsilon))


def _asked(args: argparse.Namespace, config: "Config") -> "list[Asked]":
    from nearfree.config.deployments import BOUNDS
    from nearfree.errors import ConfigError

    if (args.model is None) != (args.platform is None):
        raise ConfigError(
            "of --model and --platform one is given without the other",
            remedy="Give both, or neither for what deployments.yaml lists",
        )
    if args.model is not None:
        return [asked(args, routing=BOUNDS)]
    if not config.deployments:
        raise ConfigError(
            f"{config.folder}/deployments.yaml lists no deployment",
            remedy="Name --model and --platform, or add one",
        )
    return [each for each in config.deployments.values() if each.drawn]


def _published(args: argparse.Namespace, config: "Config") -> list[str]:
    from nearfree.derive.outlook.outlook_stage import published_answers
    from nearfree.derive.tables.platforms import PLATFORMS
    from nearfree.log.names import Layout
    from nearfree.show.text.lookup import published_report

    nowhere = PLATFORMS.frame([]).with_columns(row_id=None)
    found = published_answers(Layout(args.results), config.platforms, nowhere).rows.drop("from_ids")
    return [found.write_csv().rstrip("\n")] if args.format == "csv" else [*published_report(found)]
