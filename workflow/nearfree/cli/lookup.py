"""`nearfree lookup` and `surface`: predicted boundaries of many deployments."""

import argparse
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from nearfree.cli.common import (
    TEXT_OR_JSON,
    argument,
    command,
    config_of,
    flag,
    in_one_thread,
    json_text,
    layout_of,
    output_format,
)
from nearfree.cli.deployment_options import (
    LARGEST,
    add_answer_options,
    add_deployment,
    conditions,
    fit,
    loads_of,
    make_answerer,
    make_spec,
    refuse_options,
    tolerance_of,
)
from nearfree.cli.forecast import BATCHES, answerable, refuse
from nearfree.cli.serving_engine import add_serving_engine, use_only_serving_engine
from nearfree.errors import ConfigError

if TYPE_CHECKING:
    from nearfree.config.files import Config, DeploymentSpec

_ENGINE = ("engine", "release")
"""Options of `add_serving_engine`."""
_ANSWER = ("epsilon", "largest", "ignore_memory")


@command(
    "lookup",
    partial(add_deployment, required=False),
    add_serving_engine,
    add_answer_options,
    flag("--published", "recompute the paper's table and compare"),
    output_format("text", "csv", "json"),
    answers=True,
)
def run_lookup(args: argparse.Namespace) -> int:
    """Print the deployment table: N_max by every predictor for a list of models and conditions.

    Without --model it covers the deployments of deployments.yaml that are marked as drawn. With
    --published it recomputes the paper's own table, and compares it with the printed values and
    with the rules read from source.

    Example: nearfree lookup --model qwen3_8b --platform h100,h200 --batch 1,8,64
    """
    in_one_thread()
    config = config_of(args)
    if args.published:
        unused = ("model", "platform", *conditions(), *_ENGINE, *_ANSWER)
        where = "with --published, which covers the paper's deployments"
        refuse_options(args, unused, where, "--published")
        print(_published(args, config))
        return 0
    return _lookup(args, config)


def _lookup(args: argparse.Namespace, config: "Config") -> int:
    from nearfree.derive.predict.forecast.alternatives import Alternatives
    from nearfree.derive.predict.forecast.doubts import doubts_by_model
    from nearfree.derive.predict.forecast.expand_deployments import expand
    from nearfree.derive.predict.forecast.forecast import forecast, positions
    from nearfree.show.text.answer_json import rows_json, with_about
    from nearfree.show.text.memory import warning_lines
    from nearfree.show.text.surface import lookup_report

    epsilon = tolerance_of(args, config)
    specs, loads = _specs(args, config), loads_of(args)
    expanded = [expand(config, spec, loads) for spec in specs]
    queries = [query for known, _ in expanded for query in known]
    answerer = make_answerer(args, config, queries)
    unanswered = [
        query
        for spec, (_, unknown) in zip(specs, expanded, strict=True)
        for query in Alternatives(config, spec, answerer, loads).completed(unknown)
    ]
    if not queries:
        refuse(unanswered)
    answers = forecast(queries, answerer, [epsilon], grid=positions(args.largest or LARGEST))
    rows = answers.answers.drop("calibration")
    if args.format == "json":
        print(json_text(rows_json(queries, rows, answers.total)))
    elif args.format == "csv":
        print(with_about(answers.deployments, rows).write_csv().rstrip("\n"))
    else:
        warnings = warning_lines(queries, doubts_by_model(answers.total, queries))
        print("\n".join((*warnings, *lookup_report(answers, epsilon))))
    refuse(unanswered)
    return 2 if any(answers.total.refusals) or not fit(args, queries) else 0


def _specs(args: argparse.Namespace, config: "Config") -> "list[DeploymentSpec]":
    from nearfree.config.files import BOUNDS

    if (args.model is None) != (args.platform is None):
        raise ConfigError(
            "--model and --platform must be given together",
            remedy="Give both, or neither for the deployments of deployments.yaml",
        )
    if args.model is not None:
        use_only_serving_engine(args)
        return [make_spec(args, routing=BOUNDS)]
    where = "without --model and --platform, on the deployments of deployments.yaml"
    refuse_options(args, (*conditions(), *_ENGINE), where, "name a model and a platform")
    if not config.deployments:
        raise ConfigError(
            f"{config.folder}/deployments.yaml lists no deployment",
            remedy="Name --model and --platform, or add one",
        )
    return [spec for spec in config.deployments.values() if spec.drawn]


def _published(args: argparse.Namespace, config: "Config") -> str:
    from nearfree.derive.outlook.lookup import published_answers
    from nearfree.derive.tables.platforms import PLATFORMS
    from nearfree.show.text.surface import published_report

    no_platforms = PLATFORMS.frame([]).with_columns(row_id=None)
    answers, _ = published_answers(layout_of(args), config.platforms, no_platforms)
    rows = answers.drop("from_ids")
    if args.format == "json":
        return json_text(rows.to_dicts())
    if args.format == "csv":
        return rows.write_csv().rstrip("\n")
    return "\n".join(published_report(rows))


_SURFACE_CONTEXTS = (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)


@command(
    "surface",
    add_deployment,
    add_serving_engine,
    add_answer_options,
    argument("--output", type=Path, help="write the points to this .parquet or .csv file"),
    TEXT_OR_JSON,
    answers=True,
)
def run_surface(args: argparse.Namespace) -> int:
    """Predict T(N) by the work model over batch sizes and contexts, and print N_max over both.

    Without --routing a model with experts is predicted for balanced and for skewed routing. Ratios
    are relative to N = 1, and to the paper's baseline, at which balanced routing activates every
    expert. The defaults are b from 1 to 256 and L from 512 to 131072.

    Example: nearfree surface --model qwen3_8b --platform h200 --output points.csv
    """
    in_one_thread()
    from nearfree.derive.predict.forecast.doubts import doubts_by_model
    from nearfree.derive.predict.forecast.forecast import positions
    from nearfree.derive.predict.forecast.surface import surface
    from nearfree.show.text.answer_json import rows_json
    from nearfree.show.text.memory import warning_lines
    from nearfree.show.text.surface import check_points_file, surface_report, write_points

    if args.output:
        check_points_file(args.output)
    use_only_serving_engine(args)
    config = config_of(args)
    epsilon = tolerance_of(args, config)
    routings = ("balanced", "skewed")
    spec = make_spec(args, batch=BATCHES, context=_SURFACE_CONTEXTS, routing=routings)
    queries = answerable(args, config, spec)
    points, boundaries, total = surface(
        queries, make_answerer(args, config, queries), positions(args.largest or LARGEST), epsilon
    )
    if args.output:
        write_points(args.output, queries, points)
    if args.format == "json":
        print(json_text(rows_json(queries, boundaries, total)))
    else:
        warnings = warning_lines(queries, doubts_by_model(total, queries))
        print("\n".join((*warnings, *surface_report(queries, boundaries, epsilon))))
    refused = boundaries["refusal"].is_not_null().any()
    return 2 if refused or not fit(args, queries) else 0
