"""`nearfree validate`: scores of the predictors."""

import argparse
from pathlib import Path

from nearfree.cli.common import (
    OFFLINE,
    TABLE_OR_JSON,
    command,
    in_one_thread,
    positive,
    size,
    tolerance_or_all,
)
from nearfree.core.predictors import PREDICTORS

DATASETS = ("published", "aiconfigurator", "measured", "whole")
SCORED = (*PREDICTORS, "twin_version")
CONSTANT = "always_baseline"
BY = (
    *("predictor", "platform", "module", "backend", "backend_version", "in_sample"),
    *("epsilon", "dtype", "weights", "kv_dtype", "routing", "kernel"),
    *("operation", "gpus", "regime", "selected", "cached"),
)
WHOLE_BY = ("model", "platform", "precision", "engine", "several", "draft")
REGIMES = ("R0", "R1", "R2m", "R2s", "R3")
DEFAULT_BY = ("predictor", "platform", "module", "epsilon")
MINIMUM_MB = 64.0


def _validate_arguments(parser: argparse.ArgumentParser) -> None:
    from nearfree.core.setting import MODULES

    data = parser.add_mutually_exclusive_group()
    data.add_argument(
        "--dataset", choices=DATASETS, default="published", help="the dataset (default: published)"
    )
    data.add_argument(
        "--curves", type=Path, metavar="FILE", help="a CSV file of curves, not added to the log"
    )
    parser.add_argument(
        "--file",
        type=Path,
        metavar="FILE",
        help="with --dataset whole: a CSV file of steps of whole models, instead of "
        "config/whole/steps.csv",
    )
    parser.add_argument(
        "--models",
        type=Path,
        metavar="FOLDER",
        help="with --dataset whole: the folder with MODEL/config.json of each model",
    )
    parser.add_argument(
        "--epsilon",
        type=tolerance_or_all,
        action="append",
        help="a tolerance, or `all` of the config's; repeatable (default: the config's epsilon)",
    )
    for name, choices, meaning in (
        ("predictor", (*SCORED, CONSTANT), "a predictor to score"),
        ("platform", None, "a platform to score on"),
        ("module", MODULES, "a module to score on"),
        ("backend", None, "a backend to score on"),
        ("dtype", None, "an element type to score on"),
        ("weights", None, "a format of stored weights to score on, else the element type"),
        ("kv-dtype", None, "a format of the KV cache to score on, else the element type"),
        (
            "routing",
            None,
            "a routing to score on: balanced, skewed, power_law (of any exponent) or power_law:1.2",
        ),
    ):
        parser.add_argument(
            f"--{name}",
            choices=choices,
            action="append",
            help=f"{meaning}; repeatable (default: all)",
        )
    parser.add_argument(
        "--by",
        type=_by,
        help=f"columns to group by, comma-separated: {', '.join(BY)}; with --dataset whole: "
        f"{', '.join(WHOLE_BY)} (default: {','.join(DEFAULT_BY)}, and in_sample with --own; with "
        "--dataset whole several tables)",
    )
    for name, text in (
        ("unseen", "leave out the platforms that constants were calibrated on"),
        ("own", "use platforms' own constants, and leave out the curves they were fitted to"),
        (
            "leave-one-out",
            "also score the work model with constants of all platforms but the scored one",
        ),
    ):
        parser.add_argument(f"--{name}", action="store_true", help=text)
    parser.add_argument(
        "--regime",
        choices=REGIMES,
        action="append",
        help="score predictions with constants refitted without the model (R2m), the shape (R2s), "
        "the release (R3), the GPU (R1), or the GPU and its siblings (R0); repeatable",
    )
    parser.add_argument(
        "--least-n",
        type=positive,
        default=1,
        help="drop smaller N from the grids of curves; with 2, attention is scored only on the "
        "kernel for several positions (default: 1)",
    )
    parser.add_argument(
        "--from-one",
        action="store_true",
        help="take the smallest N of every curve as the baseline, where not all experts are "
        "active, and score `always_baseline`, which predicts that no further position is near-free",
    )
    parser.add_argument(
        "--minimum-mb",
        type=size,
        help="for imported curves: the least weights of a gemm, in MB; smaller ones can stay in "
        f"the cache (default: {MINIMUM_MB:g} for aiconfigurator, 0 for --curves)",
    )
    parser.add_argument("--tried", action="store_true", help="print every candidate form of T(N)")
    OFFLINE(parser)
    TABLE_OR_JSON(parser)


@command("validate", _validate_arguments)
def run_validate(args: argparse.Namespace) -> int:
    """Score the predictors against published, imported or measured boundaries.

    The truth is the last N of the grid, from the baseline upwards, up to which T(N) stays within
    the tolerance. The baseline is the smallest N; with balanced routing the smallest N >=
    ceil(E / (b k)); with a power law the smallest N at which nine in ten experts are expected to be
    active. A hit is a real-valued prediction in [N_max, next grid N), unbounded above where N_max
    is the last grid N. Refused and undecided settings count as misses. `twin_version`, the curve of
    another version, is the noise ceiling.

    The platforms that constants were calibrated on are in sample; `--unseen` leaves them out. Rows
    by a platform's own constants (`--own`) are in sample, too, and listed separately.

    With `--regime` curves are left out in folds, constants and residuals of each kernel are fitted
    to the rest, and their predictions are scored. The fold is the first byte of the SHA-1 of
    `d_model,experts,top_k` modulo 5 (for products `K`, for attention `heads,kv_heads,head_dim`; R2s
    adds `d_ff`). Bands are calibrated on the curves with an even second byte and scored on the odd
    ones, and vice versa. Without `--regime` imported curves are predicted by the shared constants
    alone, since constants of kernels were fitted to them. The curves of `--curves` are predicted as
    `predict` does, by regime; with `--unseen` or `--leave-one-out` by the shared constants, too.

    With `--module collective` the error of T itself is printed, on each platform by constants of
    all others: the paper's laws do not cover collectives.

    Where engines were measured, the steps of their curves that neither the work model nor a source
    rule explains are listed, too.

    With `--dataset whole` the error of T of published steps of whole models is printed, N = 1 and
    N > 1 separately. T is the modules' T(N) as in `predict`, and the engine's time between them, by
    constants fitted to the rows of other models. Unanswered rows are counted by reason. `growth` is
    T divided by T of the fewest rows in a source's series.

    Example: nearfree validate --by predictor,module --epsilon all
    """
    in_one_thread()
    from nearfree.cli.scoring import score

    return score(args)


def _by(text: str) -> tuple[str, ...]:
    columns = tuple(dict.fromkeys(text.split(",")))
    for column in columns:
        if column not in (*BY, *WHOLE_BY):
            raise argparse.ArgumentTypeError(
                f"{column!r} is not a column to group by: choose from {', '.join(BY)}; with "
                f"--dataset whole from {', '.join(WHOLE_BY)}"
            )
    return columns
