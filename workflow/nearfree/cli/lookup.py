"""`nearfree lookup` and `surface`: predicted boundaries of many deployments."""

import argparse
from functools import partial
from pathlib import Path

from nearfree.cli.common import TEXT_OR_JSON, argument, command, flag, in_one_thread, output_format
from nearfree.cli.deployment_options import add_answer_options, add_deployment
from nearfree.cli.serving_engine import add_serving_engine


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
    from nearfree.cli.answers import lookup

    return lookup(args)


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
    from nearfree.cli.answers import surface_of

    return surface_of(args)
