"""Scores of the predictors."""

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
from nearfree.cli.validate_apart import (
    WHOLE_BY,
    imported_of,
    tolerances_of,
    validate_collectives,
    validate_regimes,
    validate_whole,
)
from nearfree.errors import ConfigError, EvidenceError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nearfree.config.files import Config
    from nearfree.derive.predict.answers import Answerer
    from nearfree.derive.reference.left_out import LeftOut
    from nearfree.derive.truth.truth import Truth
    from nearfree.log.names import Layout


DATASETS = ("published", "aiconfigurator", "measured", "whole")
PREDICTORS = ("idle_compute", "principle", "principle_resolved", "work_model", "twin_version")
CONSTANT = "always_baseline"
MODULES = (
    *("gemm", "dense_ffn", "moe_ffn", "attention", "mla", "indexer", "attention_layer"),
    *("collective", "model", "engine"),
)
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
        "--dataset", choices=DATASETS, default="published", help="which data (default: published)"
    )
    data.add_argument(
        "--curves", type=Path, metavar="FILE", help="a CSV file of curves, not added to the log"
    )
    parser.add_argument(
        "--file",
        type=Path,
        metavar="FILE",
        help="with --dataset whole: a CSV file of steps of whole models, in the place of "
        "config/whole/steps.csv",
    )
    parser.add_argument(
        "--models",
        type=Path,
        metavar="FOLDER",
        help="with --dataset whole: the folder of its models, MODEL/config.json of each",
    )
    parser.add_argument(
        "--epsilon",
        type=tolerance_or_all,
        action="append",
        help="a tolerance, or `all` of the config's; repeatable (default: the config's epsilon)",
    )
    for name, choices, what in (
        ("predictor", (*PREDICTORS, CONSTANT), "a predictor to score"),
        ("platform", None, "a platform to score on"),
        ("module", MODULES, "a module to score on"),
        ("backend", None, "a backend to score on"),
        ("dtype", None, "an element type to score on"),
        ("weights", None, "a format of stored weights to score on, the element type's where none"),
        ("kv-dtype", None, "a format of the KV cache to score on, the element type's where none"),
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
            help=f"{what}; repeatable (default: every one)",
        )
    parser.add_argument(
        "--by",
        type=_by,
        help=f"columns to group by, with commas between: {', '.join(BY)}; with --dataset whole: "
        f"{', '.join(WHOLE_BY)} (default: {','.join(_BY)}, and in_sample with --own; of whole "
        "models several tables)",
    )
    parser.add_argument(
        "--unseen",
        action="store_true",
        help="leave out the platforms that constants were calibrated on",
    )
    parser.add_argument(
        "--own",
        action="store_true",
        help="use platforms' own constants, and leave out the curves that they were fitted to",
    )
    parser.add_argument(
        "--leave-one-out",
        action="store_true",
        help="also score the work model with constants of all platforms but the scored one",
    )
    parser.add_argument(
        "--regime",
        choices=REGIMES,
        action="append",
        help="score answers where nothing is known of the model (R2m), the shape (R2s), "
        "the release (R3), the GPU (R1), or it and its siblings (R0), and all else is learnt "
        "anew; repeatable",
    )
    parser.add_argument(
        "--least-n",
        type=positive,
        default=1,
        help="drop smaller grid N of curves; with 2, attention is scored within the kernel for "
        "several positions (default: 1)",
    )
    parser.add_argument(
        "--from-one",
        action="store_true",
        help="let ratios refer to the smallest N of every curve, where experts still sleep, and "
        "score `always_baseline`, which says that no further position is near-free",
    )
    parser.add_argument(
        "--minimum-mb",
        type=size,
        help="of imported curves: least weights of a gemm in MB; smaller ones can stay in the "
        f"cache (default: {_MINIMUM_MB:g} for aiconfigurator, 0 for --curves)",
    )
    parser.add_argument("--tried", action="store_true", help="print every form that was tried")
    OFFLINE(parser)
    TABLE_OR_JSON(parser)


@command("validate", _validate_arguments)
def run_validate(args: argparse.Namespace) -> int:
    """Score the predictors against published, imported or measured boundaries.

    Truth is the last pass over the grid from the baseline upwards, where the baseline is the
    smallest N, and the smallest N >= ceil(E / (b k)) where routing is balanced, or where nine in
    ten experts are expected to be awake where it is a power law. A hit is a
    real-valued prediction in [N_max, next grid N), unbounded above where N_max is the last grid N.
    Refused and undecided settings count as misses. `twin_version` is the noise ceiling: another
    version's curve.

    The platforms that constants were calibrated on are in sample; `--unseen` leaves them out. Rows
    by a platform's own constants (`--own`) are in sample, too, and listed separately.

    With `--regime` curves are left out in folds, constants and residuals of each kernel are made
    of the rest, and what they answer is scored. Folds are the first byte of the SHA-1 of
    `d_model,experts,top_k` modulo 5 (of products `K`, of attention `heads,kv_heads,head_dim`; R2s
    adds `d_ff`); bands are calibrated on even second bytes and scored on odd ones, and the other
    way round. Without it imported curves are answered by the shared constants alone, since those
    of a kernel have seen them.

    With `--module collective` the error of T itself is said, on each platform by constants of all
    others: the paper's laws do not speak of collectives.

    Where engines were measured, what their curves have beyond the work model and the rules of
    their release is listed, too.

    With `--dataset whole` it is that of published steps of whole models, N = 1 and N > 1 apart: the
    modules' T(N) as `predict` gives it, and what an engine's step has besides, by constants that
    were fitted to the other models' rows of the project. Rows that are not answered are counted by
    reason. `growth` is T over that of the fewest rows of a source's series.

    Example: nearfree validate --by predictor,module --epsilon all
    """
    in_one_thread()
    from nearfree.derive.score.engine_steps import curve_steps
    from nearfree.derive.score.evaluation import evaluate
    from nearfree.derive.score.scores import groups
    from nearfree.derive.work_model.constants import recorded_constants
    from nearfree.show.text.engine_steps import steps_lines
    from nearfree.show.text.scores import basis, head, table

    layout, config = layout_of(args), config_of(args)
    aliases = {alias: name for name, sheet in config.platforms.items() for alias in sheet.aliases}
    args.platform = [aliases.get(name, name) for name in args.platform or ()]
    if args.dataset == "whole":
        return validate_whole(args, layout, config)
    if args.file or args.models or not {*(args.by or ())} <= {*BY}:
        raise ConfigError(
            f"--file, --models and --by {','.join(sorted({*WHOLE_BY} - {*BY}))} are of steps of "
            "whole models",
            remedy="Add --dataset whole",
        )
    if "collective" in (args.module or ()):
        return validate_collectives(args, layout, config)
    if args.regime:
        return validate_regimes(args, layout, config)
    epsilons = tolerances_of(args, config)
    source, known = _truth(args, layout, config, epsilons)
    known = _narrowed(args, source, known, layout)
    default = (*PREDICTORS, CONSTANT) if args.from_one else PREDICTORS
    predictors = list(dict.fromkeys(args.predictor or default))
    left_out = make_left_out_answerer(args, layout, config) if args.leave_one_out else None
    answerer = make_answerer(args, layout, config)
    evaluation = evaluate(known, answerer, epsilons, predictors, left_out)
    if evaluation.scores.is_empty():
        raise EvidenceError(
            f"{source}: no setting of it can be scored by {', '.join(predictors)}",
            remedy="Choose other predictors; twin_version needs a second version of a curve",
        )
    by = args.by or (*_BY[:3], *(["in_sample"] if args.own else []), *_BY[3:])
    rows = groups(evaluation.scores, by)
    if args.format == "json":
        print(json_text(rows))
        return 0
    about = basis(recorded_constants(layout, collectives=False), every_form=args.tried)
    for line in (*head(source, known, evaluation, epsilons), *_chosen(args), *about, "",
                 *table(rows, by), *steps_lines(curve_steps(known, answerer))):  # fmt: skip
        print(line)
    return 0


def make_answerer(args: argparse.Namespace, layout: "Layout", config: "Config") -> "Answerer":
    """Return the predictors of `nearfree predict`, which are scored."""
    from nearfree.derive.predict.answers import Answerer

    imported = bool(args.curves) or args.dataset == "aiconfigurator"
    return Answerer(layout, config, offline=args.offline, own=args.own, blind=imported)


def make_left_out_answerer(
    args: argparse.Namespace, layout: "Layout", config: "Config"
) -> "LeftOut":
    """Return predictors with constants of the other platforms' curves, for each platform."""
    from nearfree.derive.predict.answers import Answerer

    _, curves = imported_of(args, layout, config)
    answerer = Answerer(layout, config, offline=args.offline)
    return answerer.left_out(curves, epsilon=config.site.epsilon)


def _by(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(text.split(",")))
    for name in names:
        if name not in (*BY, *WHOLE_BY):
            raise argparse.ArgumentTypeError(
                f"{name!r} is no column to group by: choose from {', '.join(BY)}; with "
                f"--dataset whole from {', '.join(WHOLE_BY)}"
            )
    return names


def _truth(
    args: argparse.Namespace, layout: "Layout", config: "Config", epsilons: list[float]
) -> "tuple[str, Truth]":
    """Return the name of the dataset and its truth."""
    from nearfree.derive.truth import datasets

    least = _MINIMUM_MB if args.dataset == "aiconfigurator" else 0.0
    grids = datasets.Grids(
        minimum_mb=least if args.minimum_mb is None else args.minimum_mb,
        least_n=args.least_n,
        awake=not args.from_one,
    )
    if args.curves:
        return datasets.load_file(args.curves, config, epsilons, grids)
    for option, given in (
        ("--least-n", args.least_n > 1),
        ("--from-one", args.from_one),
        ("--minimum-mb", args.minimum_mb is not None),
    ):
        if args.dataset != "aiconfigurator" and given:
            raise ConfigError(
                f"{option} is of imported curves, and {args.dataset} holds none",
                remedy=f"Use {option} with curves: --dataset aiconfigurator, or --curves FILE",
            )
    if args.dataset == "published":
        return datasets.load_published(layout, epsilons)
    if args.dataset == "measured":
        return datasets.load_measured(layout, config, epsilons)
    return datasets.load_aiconfigurator(layout, epsilons, grids)


def _narrowed(args: argparse.Namespace, source: str, known: "Truth", layout: "Layout") -> "Truth":
    """Return the truth of the chosen settings; ConfigError if there are none."""
    from nearfree.derive.score.narrowing import chosen, not_fitted, unseen
    from nearfree.derive.work_model.constants import recorded_constants
    from nearfree.derive.work_model.own import recorded_own

    constants = recorded_constants(layout, collectives=False)
    for column in _FILTERS:
        known = chosen(source, known, column, getattr(args, column) or ())
    if args.unseen:
        known = unseen(source, known, constants)
    return not_fitted(known, recorded_own(layout, constants)) if args.own else known


def _chosen(args: argparse.Namespace) -> "Iterator[str]":
    """Yield a line with the chosen filters."""
    parts = [f"{name} {', '.join(getattr(args, name))}" for name in _FILTERS if getattr(args, name)]
    parts += ["platforms that constants were not calibrated on"] if args.unseen else []
    parts += [f"N of {args.least_n} or more"] if args.least_n > 1 else []
    if parts:
        yield f"chosen      {'; '.join(parts)}"
