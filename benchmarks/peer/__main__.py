"""AIConfigurator's SDK against nearfree where neither knows the shape: hits, and the error of T.

By fold, all rows of the fold's models are deleted from a copy of the SDK's tables, and it is asked
for T at each N of the curves that it lost; nearfree answers the same curves by what the others say
(regime R2m), from the same tables, which `nearfree import aiconfigurator` put into the log. A
refusal is a miss. Models and folds are those of `derive/reference/folds.py`. Beside them stands
what the SDK says with nothing deleted: nearly all hits, else it was asked for something else.

The SDK is run by an interpreter of its own (`--sdk-python`), never imported here:
`python -m venv /tmp/sdk && /tmp/sdk/bin/pip install aiconfigurator==0.12.0`.
"""

import argparse
import sys
from pathlib import Path

import polars as pl
from nearfree.config.files import Config
from nearfree.derive.reference.build import known_truth, scored_of
from nearfree.errors import ConfigError, NearfreeError
from nearfree.log.names import Layout
from nearfree.public.curves import ImportedCurves, read_curves

from benchmarks.peer.compare import (
    CONTROL,
    EPSILON,
    THEIRS,
    ours,
    queries,
    reasons,
    scored,
    table,
    without_the_asked,
)
from benchmarks.peer.protocol import Sdk

ROOT = Path(__file__).parents[2]
QUANTS = {"bfloat16": "bfloat16", "float8": "fp8", "float8_block": "fp8_block", "nvfp4": "nvfp4"}
"""The formats that both speak of, by the SDK's names."""


def chosen(curves: ImportedCurves, args: argparse.Namespace) -> ImportedCurves:
    """Return the curves that are asked for; ConfigError if there are none."""
    asked = curves.settings.filter(
        pl.col("source").str.starts_with("aiconfigurator-core"),
        pl.col("module") == args.module,
        pl.col("dtype") == args.dtype,
        pl.col("weights").is_null(),
        pl.col("routing").is_null() | (pl.col("routing") == "balanced"),
        pl.col("platform").is_in(args.platform) if args.platform else pl.lit(value=True),
    )
    if asked.is_empty():
        raise ConfigError(
            f"no imported curve of {args.module} in {args.dtype} on the platforms that were named",
            remedy="Run `nearfree import aiconfigurator`, or name other platforms",
        )
    points = curves.points.join(asked.select("curve"), on="curve", how="semi")
    return ImportedCurves(settings=asked, points=points)


def arguments() -> argparse.Namespace:
    """Return what the command line asks."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peer",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--sdk-python", type=Path, required=True, help="an interpreter that has the SDK")
    add("--module", choices=("moe_ffn", "gemm"), required=True)
    add("--dtype", choices=tuple(QUANTS), default="bfloat16")
    add("--platform", nargs="+", help="platforms; without it all that have tables")
    add(
        "--mode",
        choices=("SILICON", "HYBRID", "EMPIRICAL"),
        default="HYBRID",
        help="how the SDK answers; HYBRID, the default, estimates what its tables lack",
    )
    add(
        "--whole",
        action="store_true",
        help="ask the SDK for what one GPU computes as a whole layer, not as a part of one",
    )
    add("--root", type=Path, default=ROOT / "results", help="the folder of the results")
    add("--timeout", type=float, default=600.0, help="seconds that the SDK may take for a fold")
    return parser.parse_args()


def run(args: argparse.Namespace) -> None:
    """Print how both do."""
    layout, sdk = Layout(args.root), Sdk(args.sdk_python, args.timeout)
    where = sdk.where()
    curves = chosen(read_curves(layout), args)
    config = Config(ROOT / "config")
    known = known_truth(curves, config.platforms, EPSILON)
    scored_on = scored_of(known)
    versions = ", ".join(f"{name} {each}" for name, each in where.versions.items())
    print(f"{versions}, {args.mode}; {args.module} {args.dtype}, epsilon {EPSILON}, "
          f"{scored_on.settings.height} settings")  # fmt: skip
    systems = Path(where.systems)
    asked = queries(scored_on, systems, QUANTS[args.dtype], whole=args.whole)
    said = without_the_asked(scored_on, asked, sdk, systems, args.mode)
    for reason, many in reasons(said).most_common():
        print(f"refused {many}: {reason}")
    control = sdk.latency(systems, args.mode, asked)
    every = [
        ours(scored_on, known, curves, config, layout),
        scored(scored_on, said, THEIRS),
        scored(scored_on, control, CONTROL),
    ]
    for by in (["platform", "backend"], ["backend"], []):
        print(table(pl.concat(every), by))


def main() -> None:
    """Run the command line; a mistake ends in one message and exit code 2."""
    try:
        run(arguments())
    except NearfreeError as error:
        print(f"benchmarks.peer: error: {error}", file=sys.stderr)
        raise SystemExit(2) from error


if __name__ == "__main__":
    main()
