"""AIConfigurator's SDK against nearfree where neither knows the shape: hits, and the error of T.

By fold, all rows of the fold's models are deleted from a copy of the SDK's tables, and it is asked
for T at each N of the curves that it lost; nearfree answers the same curves by what the others say
(regime R2m), from the same tables, which `nearfree import aiconfigurator` put into the log. A
refusal is a miss. Models and folds are those of `derive/reference/folds.py`.

The SDK is run by an interpreter of its own (`--sdk-python`), never imported here:
`python -m venv /tmp/sdk && /tmp/sdk/bin/pip install aiconfigurator==0.12.0`.
"""

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import polars as pl
from nearfree.config.files import Config
from nearfree.derive.granularity.facts import datasheet_facts
from nearfree.derive.granularity.resolve import Resolver
from nearfree.derive.reference.build import curves_by_form, known_truth
from nearfree.derive.reference.folds import FOLDS
from nearfree.derive.score.regimes import answers
from nearfree.derive.score.scores import score
from nearfree.derive.truth.truth import Truth, boundaries
from nearfree.errors import NearfreeError
from nearfree.log.names import Layout
from nearfree.public.curves import ImportedCurves, read_curves
from nearfree.sources.fetching.cache import Cache, default_cache

from benchmarks.peer.protocol import Query, Sdk
from benchmarks.peer.tables import copy_without, fold_of, place_of, sizes, sizes_of

ROOT = Path(__file__).parents[2]
EPSILON = 0.2
QUANTS = {"bfloat16": "bfloat16", "float8": "fp8", "float8_block": "fp8_block", "nvfp4": "nvfp4"}
"""The formats that both speak of, by the SDK's names."""
OURS, THEIRS = "nearfree", "aiconfigurator"


def chosen(curves: ImportedCurves, args: argparse.Namespace) -> ImportedCurves:
    """Return the curves that are asked for: one module and format, balanced, on some platforms."""
    asked = curves.settings.filter(
        pl.col("source").str.starts_with("aiconfigurator-core"),
        pl.col("module") == args.module,
        pl.col("dtype") == args.dtype,
        pl.col("weights").is_null(),
        pl.col("routing").is_null() | (pl.col("routing") == "balanced"),
        pl.col("platform").is_in(args.platform) if args.platform else pl.lit(value=True),
    )
    return ImportedCurves(
        settings=asked, points=curves.points.join(asked.select("curve"), on="curve", how="semi")
    )


def queries(known: Truth, curves: ImportedCurves, systems: Path, quant: str) -> list[Query]:
    """Return what the SDK is asked for each setting of a truth, in their order."""
    members = curves.settings.select("curve", "member", "member_sha256")
    rows = known.settings.drop("member", "member_sha256", strict=False).join(
        members, on="curve", how="left", maintain_order="left"
    )
    pairs = rows.select("member", "member_sha256").unique(maintain_order=True).rows()
    places = {member: place_of(systems, member, digest) for member, digest in pairs}
    cuts = {member: sizes_of(systems, member, quant) if "/moe/" in member else {}
            for member in places}  # fmt: skip
    found = []
    for row in rows.iter_rows(named=True):
        layer = (row["d_model"], row["d_ff"], row["experts"], row["top_k"])
        system, backend, version = places[row["member"]]
        cut = sizes(row, cuts[row["member"]].get(layer, 1))
        found.append(Query(row["module"], system, backend, version, quant, cut, tuple(row["grid"])))
    return found


def theirs(
    known: Truth, asked: Sequence[Query], sdk: Sdk, systems: Path, mode: str
) -> tuple[pl.DataFrame, Counter[str]]:
    """Return T(N) / T(baseline) by the SDK, curve, n and ratio, and how often it refused, why."""
    folds = fold_of(known.settings)
    curves = known.settings["curve"].to_list()
    rows: list[tuple[int, int, float]] = []
    refusals: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "systems"
        for fold in range(FOLDS):
            mine = [at for at, each in enumerate(folds) if each == fold]
            if not mine:
                continue
            gone = copy_without(systems, copy, asked[mine[0]].module, fold)
            print(f"fold {fold}: {gone:,} rows deleted, {len(mine)} settings", flush=True)
            said = sdk.latency(copy, mode, [asked[at] for at in mine])
            for at, answer in zip(mine, said, strict=True):
                if answer.latency_ms is None:
                    refusals[str(answer.refusal).partition(":")[0]] += 1
                    continue
                base = answer.latency_ms[0]
                rows += [
                    (curves[at], n, each / base)
                    for n, each in zip(asked[at].n, answer.latency_ms, strict=True)
                ]
    schema = {"curve": pl.Int64, "n": pl.Int64, "ratio": pl.Float64}
    return pl.DataFrame(rows, schema, orient="row").sort("curve", "n"), refusals


def scored(known: Truth, ratios: pl.DataFrame) -> pl.DataFrame:
    """Return the scores of the SDK's ratios."""
    said = boundaries(ratios, [EPSILON]).select(
        pl.col("curve").alias("asked"), pl.lit(THEIRS).alias("predictor"), "epsilon",
        pl.col("n_max").cast(pl.Float64), pl.lit(None, pl.Float64).alias("low"),
        pl.lit(None, pl.Float64).alias("high"), pl.lit(value=False).alias("in_sample"),
    )  # fmt: skip
    named = ratios.rename({"curve": "asked"}).with_columns(pl.lit(THEIRS).alias("predictor"))
    return score(known, said, [THEIRS], named)


def ours(known: Truth, curves: ImportedCurves, root: Path) -> pl.DataFrame:
    """Return the scores of nearfree, to which the same models are unknown."""
    config = Config(ROOT / "config")
    resolver = Resolver(Layout(root), cache=Cache(default_cache()), offline=True)
    parts = list(curves_by_form(known, curves, datasheet_facts(config.platforms), resolver))
    capabilities = {name: platform.sm for name, platform in config.platforms.items()}
    said, ratios = answers("R2m", parts, capabilities, [EPSILON], EPSILON)
    name = pl.lit(OURS).alias("predictor")
    return score(known, said.drop("regime").with_columns(name), [OURS], ratios.with_columns(name))


def table(scores: pl.DataFrame, by: Sequence[str]) -> str:
    """Return scores as lines, a group and predictor each."""
    totals = [
        pl.len().alias("settings"),
        (~pl.col("answered")).sum().alias("refused"),
        pl.col("hit", "within_1_31", "within_2").mean().round(3),
        pl.col("t_ratio_error").median().round(4),
    ]
    grouped = scores.group_by(*by, "predictor").agg(totals).sort(*by, "predictor")
    with pl.Config(tbl_rows=-1, tbl_cols=-1, tbl_hide_dataframe_shape=True, tbl_width_chars=120,
                   tbl_hide_column_data_types=True):  # fmt: skip
        return str(grouped)


def arguments() -> argparse.Namespace:
    """Return what the command line asks."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peer", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--sdk-python", type=Path, required=True, metavar="PATH",
                        help="an interpreter that has the SDK")  # fmt: skip
    parser.add_argument("--module", choices=("moe_ffn", "gemm"), required=True)
    parser.add_argument("--dtype", choices=tuple(QUANTS), default="bfloat16")
    parser.add_argument("--platform", nargs="+", help="platforms; all that have tables if left out")
    parser.add_argument("--mode", choices=("SILICON", "HYBRID", "EMPIRICAL"), default="HYBRID",
                        help="how the SDK answers; HYBRID estimates what its tables lack")  # fmt: skip
    parser.add_argument("--root", type=Path, default=ROOT / "results",
                        help="the results folder with imported curves")  # fmt: skip
    parser.add_argument("--timeout", type=float, default=600.0, metavar="SECONDS",
                        help="what the SDK may take for a fold")  # fmt: skip
    return parser.parse_args()


def run(args: argparse.Namespace) -> None:
    """Print how both do."""
    sdk = Sdk(args.sdk_python, args.timeout)
    where = sdk.where()
    curves = chosen(read_curves(Layout(args.root)), args)
    known = known_truth(curves, EPSILON)
    versions = ", ".join(f"{name} {each}" for name, each in where.versions.items())
    print(f"{versions}, mode {args.mode}; {args.module} {args.dtype}, epsilon {EPSILON}: "
          f"{known.settings.height} settings")  # fmt: skip
    systems = Path(where.systems)
    asked = queries(known, curves, systems, QUANTS[args.dtype])
    ratios, refusals = theirs(known, asked, sdk, systems, args.mode)
    for reason, many in refusals.most_common():
        print(f"refused {many}: {reason}")
    both = pl.concat([scored(known, ratios), ours(known, curves, args.root)])
    print(table(both, ["platform", "backend"]))
    print(table(both, ["backend"]))
    print(table(both, []))


def main() -> None:
    """Run the command line; a mistake ends in one message and exit code 2."""
    try:
        run(arguments())
    except NearfreeError as error:
        print(f"benchmarks.peer: error: {error}", file=sys.stderr)
        raise SystemExit(2) from error


if __name__ == "__main__":
    main()
