"""Write the work model's T(N) over batch sizes and contexts, and print N_max over both.

A model with experts is answered for both routings unless one is named, with ratios from N = 1 and
from the paper's baseline, at which balanced routing activates every expert. The defaults are b from
1 to 256 and L from 512 to 131072.
"""

import argparse
from pathlib import Path

from nearfree.cli.deployment_options import (
    add_answer_options,
    add_deployment,
    make_answerer,
    make_spec,
    tolerance,
)

_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_CONTEXTS = (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    add_deployment(parser)
    add_answer_options(parser)
    parser.add_argument(
        "--output", type=Path, help="a .parquet or .csv file for the points (default: none)"
    )


def run(args: argparse.Namespace) -> int:
    """Write the points, print the boundaries."""
    from nearfree.config.files import Config
    from nearfree.derive.predict.forecast.expand_deployments import deployments
    from nearfree.derive.predict.forecast.forecast import positions
    from nearfree.derive.predict.forecast.surface import surface
    from nearfree.show.text.surface import check_points_file, surface_report, write_points

    if args.output:
        check_points_file(args.output)
    config = Config(args.config)
    epsilon = tolerance(args, config)
    routings = ("balanced", "skewed")
    queries = deployments(
        config, make_spec(args, batch=_BATCHES, context=_CONTEXTS, routing=routings)
    )
    points, boundaries = surface(
        queries, make_answerer(args, config, queries), positions(args.largest), epsilon
    )
    if args.output:
        write_points(args.output, queries, points)
    print("\n".join(surface_report(queries, boundaries, epsilon)))
    return 0
