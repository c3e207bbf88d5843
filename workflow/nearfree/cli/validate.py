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
from nearfree.errors import ConfigError, EvidenceError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nearfree.config.files import Config
    from nearfree.derive.predict.answers import Answerer
    from nearfree.derive.reference.left_out import LeftOut
    from nearfree.derive.truth.truth import Truth
    from nearfree.log.names import Layout
    from nearfree.public.curves import ImportedCurves


DATASETS = ("published", "aiconfigurator", "measured", "whole")
PREDICTORS = ("idle_compute", "principle", "principle_resolved", "work_model", "twin_version")
CONSTANT = "always_baseline"
MODULES = (
    *("gemm", "dense_ffn", "moe_ffn", "attention", "mla", "indexer", "attention_layer"),
    *("collective", "model", "engine"),
)
_WHOLE_BY = ("model", "platform", "precision", "engine", "several", "draft")
_OF_WHOLE = (
    *("epsilon", "predictor", "module", "backend", "weights", "kv_dtype", "routing", "regime"),
    *("unseen", "own", "leave_one_out", "from_one", "tried", "minimum_mb"),
)
"""Options that do not go with steps of whole models."""
BY = (
    *("predictor", "platform", "module", "backend", "backend_version", "in_sample"),
    *("epsilon", "dtype", "weights", "kv_dtype", "routing", "kernel"),
    *("operation", "gpus", "regime", "selected", "cached"),
)
REGIMES = ("R0", "R1", "R2m", "R2s", "R3")
_BY_REGIME = ("regime", "module", "dtype", "routing")
_BY = ("predictor", "platform", "module", "epsilon")
_MINIMUM_MB = 64.0
_COLLECTIVES = ("family", "kernel", "operation", "gpus")
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
        help=f"columns to group by, with commas between: {', '.join(BY)} "
        f"(default: {','.join(_BY)}, and in_sample with --own)",
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
        help="least weights of a gemm in MB; smaller ones can stay in the cache "
        f"(default: {_MINIMUM_MB:g} for aiconfigurator, else 0)",
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
    """
    in_one_thread()
    from nearfree.derive.score.engine_steps import curve_steps
    from nearfree.derive.score.evaluation import evaluate
    from nearfree.derive.score.scores import groups
    from nearfree.derive.work_model.constants import recorded_constants
    from nearfree.show.text.engine_steps import steps_lines
    from nearfree.show.text.scores import basis, head, table

    layout, config = layout_of(args), config_of(args)
    if args.dataset == "whole" and not args.curves:
        return _validate_whole(args, layout, config)
    if args.file or args.models or not {*(args.by or ())} <= {*BY}:
        raise ConfigError(
            f"--file, --models and --by {','.join(sorted({*_WHOLE_BY} - {*BY}))} are of steps of "
            "whole models",
            remedy="Add --dataset whole",
        )
    if "collective" in (args.module or ()):
        return _validate_collectives(args, layout, config)
    if args.regime:
        return _validate_regimes(args, layout, config)
    epsilons = _tolerances(args, config)
    source, known = _truth(args, layout, config, epsilons)
    known = _narrowed(args, source, known, layout, config)
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


def _validate_whole(args: argparse.Namespace, layout: "Layout", config: "Config") -> int:
    """Print how well published steps of whole models are predicted."""
    from nearfree.derive.predict.answers import Answerer
    from nearfree.derive.score.whole import StepFit, whole_score
    from nearfree.derive.score.whole_steps import timed_steps
    from nearfree.public.whole_models import FILE, read_rows
    from nearfree.show.text.whole import TABLES, as_json, lines

    odd = [name for name in _OF_WHOLE if getattr(args, name) not in (None, False, [])]
    by = tuple(args.by or ())
    wrong = [f"--by {name}" for name in by if name not in _WHOLE_BY]
    if odd or wrong:
        said = [f"--{name.replace('_', '-')}" for name in odd] + wrong
        raise ConfigError(
            f"{', '.join(said)} says nothing of steps of whole models",
            remedy=f"Leave it out; --by takes {', '.join(_WHOLE_BY)}",
        )
    answerer = Answerer(layout, config, offline=args.offline)
    own = config.folder / FILE
    asked = timed_steps(read_rows(args.file or own).rows, config, answerer, args.models)
    if args.platform:
        asked = [e for e in asked if e.deployment and e.deployment.platform in args.platform]
    if not any(each.deployment for each in asked):
        reasons = dict.fromkeys(each.refusal for each in asked if each.refusal)
        raise EvidenceError(
            f"none of {len(asked)} rows is answered: {'; '.join(reasons)[:600]}",
            remedy="Give rows of engines, GPUs and models that are known, or --models FOLDER",
        )
    every = not (args.file or args.models or args.platform)
    fitted = asked if every else timed_steps(read_rows(own).rows, config, answerer)
    fit = StepFit(fitted, answerer.bandwidths_gb_s)
    score = whole_score(asked, fit)
    if args.format == "json":
        print(json_text(as_json(score, by or _WHOLE_BY)))
        return 0
    constants = {engine: known for engine in fit.engines if (known := fit.of(engine))}
    source = (args.file or own).name
    print("\n".join(lines(source, score, constants, [by] if by else TABLES)))
    return 0


def _validate_collectives(args: argparse.Namespace, layout: "Layout", config: "Config") -> int:
    """Print the error of collectives' T on platforms that no constant has seen."""
    from nearfree.derive.granularity.facts import datasheet_facts
    from nearfree.derive.score.collectives import BY as COLUMNS
    from nearfree.derive.score.collectives import grouped, left_out_errors
    from nearfree.show.text.collectives import lines

    if args.module != ["collective"] or not (args.curves or args.dataset == "aiconfigurator"):
        raise ConfigError(
            "collectives are scored by themselves, on curves",
            remedy="Give --module collective alone, with --dataset aiconfigurator or --curves FILE",
        )
    by = args.by or _COLLECTIVES
    odd = [name for name in by if name not in COLUMNS]
    if odd:
        raise ConfigError(
            f"collectives cannot be grouped by {', '.join(odd)}",
            remedy=f"Choose from {', '.join(COLUMNS)}",
        )
    source, curves = _imported(args, layout, config)
    errors = left_out_errors(curves, datasheet_facts(config.platforms))
    for column in ("platform", "backend"):
        names = getattr(args, column)
        errors = errors.filter(errors[column].is_in(names)) if names else errors
    if errors.is_empty():
        raise EvidenceError(
            f"{source}: no collective of it can be scored",
            remedy="Import curves of collectives on several platforms whose links are known",
        )
    rows = grouped(errors, by)
    if args.format == "json":
        print(json_text(rows.to_dicts()))
    else:
        print("\n".join(lines(source, rows, by)))
    return 0


def _validate_regimes(args: argparse.Namespace, layout: "Layout", config: "Config") -> int:
    """Print how each regime answers what it does not know."""
    from nearfree.derive.granularity.facts import datasheet_facts
    from nearfree.derive.granularity.resolve import Resolver
    from nearfree.derive.reference.build import curves_by_form, known_truth
    from nearfree.derive.reference.regimes import chips
    from nearfree.derive.score.narrowing import chosen, learnt
    from nearfree.derive.score.regimes import regime_scores
    from nearfree.derive.score.scores import groups
    from nearfree.show.text.regimes import lines
    from nearfree.sources.fetching.cache import Cache, default_cache

    odd = [option for option, given in (
        ("--own", args.own), ("--unseen", args.unseen), ("--leave-one-out", args.leave_one_out),
        ("--from-one", args.from_one), ("--least-n", args.least_n > 1),
        ("--minimum-mb", args.minimum_mb is not None), ("--predictor", bool(args.predictor)),
    ) if given]  # fmt: skip
    if odd or not (args.curves or args.dataset == "aiconfigurator"):
        what = f"--regime and {', '.join(odd)} do not go together" if odd else (
            "regimes are scored on curves")  # fmt: skip
        raise ConfigError(
            what, remedy="Give --regime with --dataset aiconfigurator or --curves FILE alone"
        )
    epsilons = _tolerances(args, config)
    source, curves = _imported(args, layout, config)
    filters = {name: getattr(args, name) for name in ("module", "dtype", "weights", "kv_dtype")}
    curves = learnt(curves, filters)
    known = known_truth(curves, config.site.epsilon)
    scored = known
    for column in ("platform", "backend", "routing"):
        scored = chosen(source, scored, column, getattr(args, column) or ())
    resolver = Resolver(layout, cache=Cache(default_cache()), offline=args.offline)
    facts = datasheet_facts(config.platforms)
    every = list(curves_by_form(known, curves, facts, resolver))
    scores = regime_scores(
        scored,
        every,
        chips(config.platforms),
        list(dict.fromkeys(args.regime)),
        epsilons,
        epsilon=config.site.epsilon,
    )
    by = args.by or _BY_REGIME
    rows = groups(scores, by)
    if args.format == "json":
        print(json_text(rows))
    else:
        print("\n".join(lines(source, scored, epsilons, rows, by)))
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

    _, curves = _imported(args, layout, config)
    answerer = Answerer(layout, config, offline=args.offline)
    return answerer.left_out(curves, epsilon=config.site.epsilon)


def _imported(
    args: argparse.Namespace, layout: "Layout", config: "Config"
) -> "tuple[str, ImportedCurves]":
    """Return the curves of a file, or of the newest release, and what to call them."""
    from nearfree.derive.truth.datasets import newest_release
    from nearfree.public.curve_file import curves_from_csv
    from nearfree.public.curves import read_curves

    if args.curves:
        return args.curves.name, curves_from_csv(args.curves, config)
    stream = newest_release(layout)
    return f"aiconfigurator ({stream})", read_curves(layout, stream=stream)


def _by(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(text.split(",")))
    for name in names:
        if name not in (*BY, *_WHOLE_BY):
            raise argparse.ArgumentTypeError(
                f"{name!r} is no column to group by: choose from {', '.join(BY)}"
            )
    return names


def _tolerances(args: argparse.Namespace, config: "Config") -> list[float]:
    tolerances = args.epsilon or [config.site.epsilon]
    return sorted(
        {*(e for e in tolerances if e), *(config.site.tolerances if None in tolerances else ())}
    )


def _truth(
    args: argparse.Namespace, layout: "Layout", config: "Config", epsilons: list[float]
) -> "tuple[str, Truth]":
    """Return the name of the dataset and its truth."""
    from nearfree.derive.truth import datasets

    least = _MINIMUM_MB if args.dataset == "aiconfigurator" and not args.curves else 0.0
    grids = datasets.Grids(
        minimum_mb=least if args.minimum_mb is None else args.minimum_mb,
        least_n=args.least_n,
        awake=not args.from_one,
    )
    if args.curves:
        return datasets.load_file(args.curves, config, epsilons, grids)
    for option, given in (("--least-n", args.least_n > 1), ("--from-one", args.from_one)):
        if args.dataset != "aiconfigurator" and given:
            raise ConfigError(
                f"{args.dataset} has boundaries without curves, so {option} has no effect",
                remedy=f"Use {option} with curves: --dataset aiconfigurator, or --curves FILE",
            )
    if args.dataset == "published":
        return datasets.load_published(layout, epsilons)
    if args.dataset == "measured":
        return datasets.load_measured(layout, config, epsilons)
    return datasets.load_aiconfigurator(layout, epsilons, grids)


def _narrowed(
    args: argparse.Namespace, source: str, known: "Truth", layout: "Layout", config: "Config"
) -> "Truth":
    """Return the truth of the chosen settings; ConfigError if there are none."""
    from nearfree.derive.score.narrowing import chosen, not_fitted, unseen
    from nearfree.derive.work_model.constants import recorded_constants
    from nearfree.derive.work_model.own import recorded_own

    constants = recorded_constants(layout, collectives=False)
    aliases = {alias: name for name, sheet in config.platforms.items() for alias in sheet.aliases}
    for column in _FILTERS:
        names = getattr(args, column) or ()
        if column == "platform":
            names = [aliases.get(name, name) for name in names]
        known = chosen(source, known, column, names)
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
