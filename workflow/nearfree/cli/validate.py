"""`nearfree validate`: scores of the predictors."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from nearfree.cli.common import (
    OFFLINE,
    TABLE_OR_JSON,
    command,
    config_of,
    in_one_thread,
    json_text,
    layout_of,
    positive,
    size,
    tolerance_or_all,
)
from nearfree.cli.separate_scores import (
    WHOLE_BY,
    imported_of,
    tolerances_of,
    validate_collectives,
    validate_regimes,
    validate_whole,
)
from nearfree.core.predictors import PREDICTORS
from nearfree.core.setting import MODULES
from nearfree.errors import ConfigError, EvidenceError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nearfree.config.files import Config
    from nearfree.derive.predict.answers import Answerer
    from nearfree.derive.reference.left_out import LeftOut
    from nearfree.derive.truth.truth import Truth
    from nearfree.log.names import Layout


DATASETS = ("published", "aiconfigurator", "measured", "whole")
SCORED = (*PREDICTORS, "twin_version")
CONSTANT = "always_baseline"
BY = (
    *("predictor", "platform", "module", "backend", "backend_version", "in_sample"),
    *("epsilon", "dtype", "weights", "kv_dtype", "routing", "kernel"),
    *("operation", "gpus", "regime", "selected", "cached"),
)
REGIMES = ("R0", "R1", "R2m", "R2s", "R3")
_BY = ("predictor", "platform", "module", "epsilon")
_MINIMUM_MB = 64.0
_FILTERS = ("platform", "module", "backend", "dtype", "weights", "kv_dtype", "routing")


def _validate_arguments(parser: argparse.ArgumentParser) -> None:
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
        f"{', '.join(WHOLE_BY)} (default: {','.join(_BY)}, and in_sample with --own; with "
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
        f"the cache (default: {_MINIMUM_MB:g} for aiconfigurator, 0 for --curves)",
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
    from nearfree.derive.score.engine_steps import curve_steps
    from nearfree.derive.score.evaluation import evaluate
    from nearfree.derive.score.scores import groups
    from nearfree.derive.work_model.constants import recorded_constants
    from nearfree.show.text.scores import answered_as_predicted, basis, head, steps_lines, table

    layout, config = layout_of(args), config_of(args)
    aliases = {alias: name for name, sheet in config.platforms.items() for alias in sheet.aliases}
    args.platform = [aliases.get(name, name) for name in args.platform or ()]
    if args.dataset == "whole":
        return validate_whole(args, layout, config)
    if args.file or args.models or not {*(args.by or ())} <= {*BY}:
        raise ConfigError(
            f"--file, --models and --by {','.join(sorted({*WHOLE_BY} - {*BY}))} apply to steps of "
            "whole models",
            remedy="Add --dataset whole",
        )
    if "collective" in (args.module or ()):
        return validate_collectives(args, layout, config)
    if args.regime:
        return validate_regimes(args, layout, config)
    epsilons = tolerances_of(args, config)
    source, truth = _truth(args, layout, config, epsilons)
    truth = _filtered(args, source, truth, layout)
    default = (*SCORED, CONSTANT) if args.from_one else SCORED
    predictors = list(dict.fromkeys(args.predictor or default))
    left_out = make_left_out_answerer(args, layout, config) if args.leave_one_out else None
    answerer = make_answerer(args, layout, config)
    evaluation = evaluate(truth, answerer, epsilons, predictors, left_out)
    if evaluation.scores.is_empty():
        raise EvidenceError(
            f"{source}: none of its settings can be scored by {', '.join(predictors)}",
            remedy="Choose other predictors; twin_version needs a second version of a curve",
        )
    regimes = _as_predict(args) and "regime" in evaluation.scores.columns
    more = [*(["in_sample"] if args.own else []), *(["regime"] if regimes else [])]
    by = args.by or (*_BY[:3], *more, *_BY[3:])
    rows = groups(evaluation.scores, by)
    if args.format == "json":
        print(json_text(rows))
        return 0
    basis_lines = basis(recorded_constants(layout, collectives=False), every_form=args.tried)
    answers = answered_as_predicted(evaluation) if _as_predict(args) else ()
    for line in (*head(source, truth, evaluation, epsilons), *_filters_line(args), *answers,
                 *basis_lines, "", *table(rows, by),
                 *steps_lines(curve_steps(truth, answerer))):  # fmt: skip
        print(line)
    return 0


def make_answerer(args: argparse.Namespace, layout: "Layout", config: "Config") -> "Answerer":
    """Return the predictors to score, which are those of `nearfree predict`."""
    from nearfree.derive.predict.answers import Answerer

    imported = bool(args.curves) or args.dataset == "aiconfigurator"
    blind = imported and not _as_predict(args)
    return Answerer(layout, config, offline=args.offline, own=args.own, blind=blind)


def _as_predict(args: argparse.Namespace) -> bool:
    """Return whether a file's curves are answered by public curves, as `predict` answers."""
    return bool(args.curves) and not (args.unseen or args.leave_one_out or args.own)


def make_left_out_answerer(
    args: argparse.Namespace, layout: "Layout", config: "Config"
) -> "LeftOut":
    """Return, for each platform, predictors with constants of all other platforms' curves."""
    from nearfree.derive.predict.answers import Answerer

    _, curves = imported_of(args, layout, config)
    answerer = Answerer(layout, config, offline=args.offline)
    return answerer.left_out(curves, epsilon=config.site.epsilon)


def _by(text: str) -> tuple[str, ...]:
    columns = tuple(dict.fromkeys(text.split(",")))
    for column in columns:
        if column not in (*BY, *WHOLE_BY):
            raise argparse.ArgumentTypeError(
                f"{column!r} is not a column to group by: choose from {', '.join(BY)}; with "
                f"--dataset whole from {', '.join(WHOLE_BY)}"
            )
    return columns


def _truth(
    args: argparse.Namespace, layout: "Layout", config: "Config", epsilons: list[float]
) -> "tuple[str, Truth]":
    """Return the name of the dataset and its truth."""
    from nearfree.derive.truth import datasets

    default_mb = _MINIMUM_MB if args.dataset == "aiconfigurator" else 0.0
    grids = datasets.Grids(
        minimum_mb=default_mb if args.minimum_mb is None else args.minimum_mb,
        least_n=args.least_n,
        awake=not args.from_one,
    )
    if args.curves:
        return datasets.load_file(args.curves, config, epsilons, grids)
    for option, used in (
        ("--least-n", args.least_n > 1),
        ("--from-one", args.from_one),
        ("--minimum-mb", args.minimum_mb is not None),
    ):
        if args.dataset != "aiconfigurator" and used:
            raise ConfigError(
                f"{option} applies to imported curves, and {args.dataset} holds none",
                remedy=f"Use {option} with curves: --dataset aiconfigurator, or --curves FILE",
            )
    if args.dataset == "published":
        return datasets.load_published(layout, epsilons)
    if args.dataset == "measured":
        return datasets.load_measured(layout, config, epsilons)
    return datasets.load_aiconfigurator(layout, epsilons, grids)


def _filtered(args: argparse.Namespace, source: str, truth: "Truth", layout: "Layout") -> "Truth":
    """Return the truth of the chosen settings; ConfigError if there are none."""
    from nearfree.derive.score.narrowing import select, unseen_platforms, without_fitted
    from nearfree.derive.work_model.constants import recorded_constants
    from nearfree.derive.work_model.own import recorded_own

    constants = recorded_constants(layout, collectives=False)
    for column in _FILTERS:
        truth = select(source, truth, column, getattr(args, column) or ())
    if args.unseen:
        truth = unseen_platforms(source, truth, constants)
    return without_fitted(truth, recorded_own(layout, constants)) if args.own else truth


def _filters_line(args: argparse.Namespace) -> "Iterator[str]":
    """Yield a line with the chosen filters."""
    parts = [f"{name} {', '.join(getattr(args, name))}" for name in _FILTERS if getattr(args, name)]
    parts += ["platforms that constants were not calibrated on"] if args.unseen else []
    parts += [f"N of {args.least_n} or more"] if args.least_n > 1 else []
    if parts:
        yield f"chosen      {'; '.join(parts)}"
