"""Compare AIConfigurator's SDK with nearfree on shapes unknown to both: hits, and the error of T.

For each fold, all rows of the fold's models are deleted from a copy of the SDK's tables, and the
SDK is queried for T at each N of the deleted curves. nearfree predicts the same curves from the
remaining ones (regime R2m) of the same tables, which `nearfree import aiconfigurator` put into the
log. A refusal is a miss. Models and folds are those of `derive/reference/folds.py`. As a control
the SDK is also queried with nothing deleted: nearly all must be hits, or the queries are wrong.

The SDK runs in its own interpreter (`--sdk-python`) and is never imported here:
`python -m venv /tmp/sdk && /tmp/sdk/bin/pip install aiconfigurator==0.12.0`.
"""

import argparse
import sys
from pathlib import Path

import polars as pl
from nearfree.config.files import Config
from nearfree.derive.reference.build import kernel_truth, scored_truth
from nearfree.errors import ConfigError, NearfreeError
from nearfree.log.names import Layout
from nearfree.public.curves import ImportedCurves, read_curves

from benchmarks.peer.compare import (
    CONTROL,
    EPSILON,
    PEER,
    held_out_answers,
    own_scores,
    queries,
    refusal_counts,
    score_answers,
    table,
)
from benchmarks.peer.protocol import Sdk

ROOT = Path(__file__).parents[2]
QUANTS = {"bfloat16": "bfloat16", "float8": "fp8", "float8_block": "fp8_block", "nvfp4": "nvfp4"}
"""The formats that both support, with the SDK's names."""


def select_curves(curves: ImportedCurves, args: argparse.Namespace) -> ImportedCurves:
    """Return the curves selected by the arguments; ConfigError if there are none."""
    settings = curves.settings.filter(
        pl.col("source").str.starts_with("aiconfigurator-core"),
        pl.col("module") == args.module,
        pl.col("dtype") == args.dtype,
        pl.col("weights").is_null(),
        pl.col("routing").is_null() | (pl.col("routing") == "balanced"),
        pl.col("platform").is_in(args.platform) if args.platform else pl.lit(value=True),
    )
    if settings.is_empty():
        raise ConfigError(
            f"no imported curve of {args.module} in {args.dtype} on the named platforms",
            remedy="Run `nearfree import aiconfigurator`, or name other platforms",
        )
    points = curves.points.join(settings.select("curve"), on="curve", how="semi")
    return ImportedCurves(settings=settings, points=points)


def parse_arguments() -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peer",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--sdk-python", type=Path, required=True, help="an interpreter that has the SDK")
    add("--module", choices=("moe_ffn", "gemm"), required=True)
    add("--dtype", choices=tuple(QUANTS), default="bfloat16")
    add("--platform", nargs="+", help="platforms (default: all that have tables)")
    add(
        "--mode",
        choices=("SILICON", "HYBRID", "EMPIRICAL"),
        default="HYBRID",
        help="how the SDK answers; HYBRID, the default, estimates what its tables lack",
    )
    add(
        "--whole",
        action="store_true",
        help="query one GPU's part of a layer as a whole layer, not as the part of a larger one",
    )
    add("--root", type=Path, default=ROOT / "results", help="the folder of the results")
    add("--timeout", type=float, default=600.0, help="time limit of the SDK per fold, in seconds")
    return parser.parse_args()


def run(args: argparse.Namespace) -> None:
    """Print the scores of both."""
    layout, sdk = Layout(args.root), Sdk(args.sdk_python, args.timeout)
    installation = sdk.installation()
    curves = select_curves(read_curves(layout), args)
    config = Config(ROOT / "config")
    truth = kernel_truth(curves, config.platforms, EPSILON)
    scored_on = scored_truth(truth)
    versions = ", ".join(f"{name} {version}" for name, version in installation.versions.items())
    print(f"{versions}, {args.mode}; {args.module} {args.dtype}, epsilon {EPSILON}, "
          f"{scored_on.settings.height} settings")  # fmt: skip
    systems = Path(installation.systems)
    sdk_queries = queries(scored_on, systems, QUANTS[args.dtype], whole=args.whole)
    answers = held_out_answers(scored_on, sdk_queries, sdk, systems, args.mode)
    for reason, count in refusal_counts(answers).most_common():
        print(f"refused {count}: {reason}")
    control = sdk.latency(systems, args.mode, sdk_queries)
    scores = [
        own_scores(scored_on, truth, curves, config, layout),
        score_answers(scored_on, answers, PEER),
        score_answers(scored_on, control, CONTROL),
    ]
    for grouping in (["platform", "backend"], ["backend"], []):
        print(table(pl.concat(scores), grouping))


def main() -> None:
    """Run the command line; an error ends in one message and exit code 2."""
    try:
        run(parse_arguments())
    except NearfreeError as error:
        print(f"benchmarks.peer: error: {error}", file=sys.stderr)
        raise SystemExit(2) from error


if __name__ == "__main__":
    main()
