"""The run of `nearfree validate`."""

import argparse
from collections.abc import Iterator

from nearfree.cli.common import config_of, json_text, layout_of
from nearfree.cli.separate_scores import (
    imported_of,
    tolerances_of,
    validate_collectives,
    validate_regimes,
    validate_whole,
)
from nearfree.cli.validate import BY, CONSTANT, DEFAULT_BY, MINIMUM_MB, SCORED, WHOLE_BY
from nearfree.config.files import Config
from nearfree.derive.predict.answers import Answerer
from nearfree.derive.reference.left_out import LeftOut
from nearfree.derive.score.engine_steps import curve_steps
from nearfree.derive.score.evaluation import evaluate
from nearfree.derive.score.narrowing import select, unseen_platforms, without_fitted
from nearfree.derive.score.scores import groups
from nearfree.derive.truth import datasets
from nearfree.derive.truth.truth import Truth
from nearfree.derive.work_model.constants import recorded_constants
from nearfree.derive.work_model.own import recorded_own
from nearfree.errors import ConfigError, EvidenceError
from nearfree.log.names import Layout
from nearfree.show.text.scores import answered_as_predicted, basis, head, steps_lines, table

_FILTERS = ("platform", "module", "backend", "dtype", "weights", "kv_dtype", "routing")


def score(args: argparse.Namespace) -> int:
    """Score the predictors as the options say, print the scores, return the exit code."""
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
    by = args.by or (*DEFAULT_BY[:3], *more, *DEFAULT_BY[3:])
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


def make_answerer(args: argparse.Namespace, layout: Layout, config: Config) -> Answerer:
    """Return the predictors to score, which are those of `nearfree predict`."""
    imported = bool(args.curves) or args.dataset == "aiconfigurator"
    blind = imported and not _as_predict(args)
    return Answerer(layout, config, offline=args.offline, own=args.own, blind=blind)


def _as_predict(args: argparse.Namespace) -> bool:
    """Return whether a file's curves are answered by public curves, as `predict` answers."""
    return bool(args.curves) and not (args.unseen or args.leave_one_out or args.own)


def make_left_out_answerer(args: argparse.Namespace, layout: Layout, config: Config) -> LeftOut:
    """Return, for each platform, predictors with constants of all other platforms' curves."""
    _, curves = imported_of(args, layout, config)
    answerer = Answerer(layout, config, offline=args.offline)
    return answerer.left_out(curves, epsilon=config.site.epsilon)


def _truth(
    args: argparse.Namespace, layout: Layout, config: Config, epsilons: list[float]
) -> tuple[str, Truth]:
    """Return the name of the dataset and its truth."""
    default_mb = MINIMUM_MB if args.dataset == "aiconfigurator" else 0.0
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


def _filtered(args: argparse.Namespace, source: str, truth: Truth, layout: Layout) -> Truth:
    """Return the truth of the chosen settings; ConfigError if there are none."""
    constants = recorded_constants(layout, collectives=False)
    for column in _FILTERS:
        truth = select(source, truth, column, getattr(args, column) or ())
    if args.unseen:
        truth = unseen_platforms(source, truth, constants)
    return without_fitted(truth, recorded_own(layout, constants)) if args.own else truth


def _filters_line(args: argparse.Namespace) -> Iterator[str]:
    """Yield a line with the chosen filters."""
    parts = [f"{name} {', '.join(getattr(args, name))}" for name in _FILTERS if getattr(args, name)]
    parts += ["platforms that constants were not calibrated on"] if args.unseen else []
    parts += [f"N of {args.least_n} or more"] if args.least_n > 1 else []
    if parts:
        yield f"chosen      {'; '.join(parts)}"
