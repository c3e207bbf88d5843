"""Print the deployment table: N_max by every predictor for a list of models and conditions.

Without a model it covers the drawn deployments of deployments.yaml. With --published it recomputes
the paper's own table and compares it with the printed values and with the rules of the sources.
"""

import argparse
from typing import TYPE_CHECKING

from nearfree.cli.deployment_options import (
    add_answer_options,
    add_deployment,
    make_answerer,
    make_spec,
    tolerance,
)

if TYPE_CHECKING:
    from nearfree.config.files import Config, DeploymentSpec


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    add_deployment(parser, required=False)
    add_answer_options(parser)
    parser.add_argument(
        "--published", action="store_true", help="recompute the paper's table and compare"
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
    queries = [query for spec in _specs(args, config) for query in deployments(config, spec)]
    grid = positions(args.largest)
    answers = forecast(queries, make_answerer(args, config, queries), [epsilon], grid=grid)
    if args.format == "csv":
        rows = answers.answers.drop("calibration")
        return [with_about(answers.deployments, rows).write_csv().rstrip("\n")]
    return list(lookup_report(answers, epsilon))


def _specs(args: argparse.Namespace, config: "Config") -> "list[DeploymentSpec]":
    from nearfree.config.files import BOUNDS
    from nearfree.errors import ConfigError

    if (args.model is None) != (args.platform is None):
        raise ConfigError(
            "one of --model and --platform is given without the other",
            remedy="Give both, or neither for the deployments of deployments.yaml",
        )
    if args.model is not None:
        return [make_spec(args, routing=BOUNDS)]
    if not config.deployments:
        raise ConfigError(
            f"{config.folder}/deployments.yaml lists no deployment",
            remedy="Name --model and --platform, or add one",
        )
    return [spec for spec in config.deployments.values() if spec.drawn]


def _published(args: argparse.Namespace, config: "Config") -> list[str]:
    from nearfree.derive.outlook.lookup import published_answers
    from nearfree.derive.tables.platforms import PLATFORMS
    from nearfree.log.names import Layout
    from nearfree.show.text.lookup import published_report

    nowhere = PLATFORMS.frame([]).with_columns(row_id=None)
    rows = published_answers(Layout(args.results), config.platforms, nowhere).rows.drop("from_ids")
    return [rows.write_csv().rstrip("\n")] if args.format == "csv" else [*published_report(rows)]
