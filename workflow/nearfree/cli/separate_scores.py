"""The scores of `nearfree validate` with separate tables: whole models, collectives, regimes."""

import argparse
from collections.abc import Sequence

from nearfree.cli.common import json_text, source_cache
from nearfree.cli.validate import WHOLE_BY
from nearfree.config.files import Config
from nearfree.derive.granularity.facts import datasheet_facts
from nearfree.derive.granularity.resolve import Resolver
from nearfree.derive.predict.answers import Answerer
from nearfree.derive.reference.build import curves_by_form, kernel_truth, scored_truth
from nearfree.derive.reference.siblings import chips
from nearfree.derive.score.collectives import BY as COLUMNS
from nearfree.derive.score.collectives import grouped, left_out_errors
from nearfree.derive.score.narrowing import select, training_curves
from nearfree.derive.score.regimes import regime_scores
from nearfree.derive.score.scores import groups
from nearfree.derive.score.whole import StepFit, platform_of, whole_score
from nearfree.derive.score.whole_steps import timed_steps
from nearfree.derive.truth.datasets import newest_release
from nearfree.errors import ConfigError, EvidenceError
from nearfree.log.names import Layout
from nearfree.public.curve_file import curves_from_csv
from nearfree.public.curves import ImportedCurves, read_curves
from nearfree.public.whole_models import FILE, read_rows
from nearfree.show.text.scores import collective_lines, regime_lines
from nearfree.show.text.whole import TABLES, as_json, lines

_NOT_WHOLE = (
    *("epsilon", "predictor", "module", "backend", "dtype", "weights", "kv_dtype", "routing"),
    *("regime", "unseen", "own", "leave_one_out", "from_one", "least_n", "tried", "minimum_mb"),
)
"""Options that have no effect on steps of whole models."""
_NOT_COLLECTIVES = (
    *("epsilon", "predictor", "dtype", "weights", "kv_dtype", "routing", "regime"),
    *("unseen", "own", "leave_one_out", "from_one", "least_n", "tried", "minimum_mb"),
)
"""Options that have no effect on collectives."""
_NOT_REGIMES = ("predictor", "unseen", "own", "leave_one_out", "from_one", "least_n", "minimum_mb")
"""Options that have no effect on regimes."""
_BY_REGIME = ("regime", "module", "dtype", "routing")
_COLLECTIVES = ("family", "kernel", "operation", "gpus")


def validate_whole(args: argparse.Namespace, layout: Layout, config: Config) -> int:
    """Print the errors of predicted T on published steps of whole models."""
    by = tuple(args.by or ())
    unused = _given_options(args, _NOT_WHOLE) + [
        f"--by {name}" for name in by if name not in WHOLE_BY
    ]
    if unused:
        raise ConfigError(
            f"{', '.join(unused)} has no effect on steps of whole models",
            remedy=f"Leave it out; --by takes {', '.join(WHOLE_BY)}",
        )
    answerer = Answerer(layout, config, offline=args.offline)
    own_file = config.folder / FILE
    all_steps = timed_steps(read_rows(args.file or own_file).rows, config, answerer, args.models)
    steps = all_steps
    if args.platform:
        steps = [step for step in all_steps if platform_of(step) in args.platform]
        if not steps:
            raise ConfigError(
                f"no row is of {', '.join(args.platform)}", remedy="Name a GPU of the file's rows"
            )
    if not any(step.deployment for step in steps):
        reasons = dict.fromkeys(step.refusal for step in steps if step.refusal)
        raise EvidenceError(
            f"none of {len(steps)} rows is answered: {'; '.join(reasons)[:600]}",
            remedy="Give rows of engines, GPUs and models that are known, or --models FOLDER",
        )
    other_rows = args.file or args.models
    fitted = timed_steps(read_rows(own_file).rows, config, answerer) if other_rows else all_steps
    fit = StepFit(fitted, answerer.bandwidths_gb_s)
    score = whole_score(steps, fit)
    if args.format == "json":
        print(json_text(as_json(score, by or WHOLE_BY)))
        return 0
    constants = {engine: constants_ for engine in fit.engines if (constants_ := fit.of(engine))}
    source = (args.file or own_file).name
    print("\n".join(lines(source, score, constants, [by] if by else TABLES)))
    return 0


def validate_collectives(args: argparse.Namespace, layout: Layout, config: Config) -> int:
    """Print the errors of predicted T of collectives, by constants of the other platforms."""
    if args.module != ["collective"] or not (args.curves or args.dataset == "aiconfigurator"):
        raise ConfigError(
            "collectives are scored separately, on curves",
            remedy="Give --module collective alone, with --dataset aiconfigurator or --curves FILE",
        )
    if unused := _given_options(args, _NOT_COLLECTIVES):
        raise ConfigError(
            f"{', '.join(unused)} has no effect on collectives, whose T itself is scored",
            remedy="Leave it out; --platform, --backend and --by select rows",
        )
    by = args.by or _COLLECTIVES
    unknown = [name for name in by if name not in COLUMNS]
    if unknown:
        raise ConfigError(
            f"collectives cannot be grouped by {', '.join(unknown)}",
            remedy=f"Choose from {', '.join(COLUMNS)}",
        )
    source, curves = imported_of(args, layout, config)
    errors = left_out_errors(curves, datasheet_facts(config.platforms))
    for column in ("platform", "backend"):
        names = getattr(args, column)
        errors = errors.filter(errors[column].is_in(names)) if names else errors
    if errors.is_empty():
        raise EvidenceError(
            f"{source}: none of its collectives can be scored",
            remedy="Import curves of collectives on several platforms whose links are known",
        )
    rows = grouped(errors, by)
    if args.format == "json":
        print(json_text(rows.to_dicts()))
    else:
        print("\n".join(collective_lines(source, rows, by)))
    return 0


def validate_regimes(args: argparse.Namespace, layout: Layout, config: Config) -> int:
    """Print the scores of each regime on the curves that it leaves out."""
    unused = _given_options(args, _NOT_REGIMES)
    if unused or not (args.curves or args.dataset == "aiconfigurator"):
        problem = f"--regime and {', '.join(unused)} do not go together" if unused else (
            "regimes are scored on curves")  # fmt: skip
        raise ConfigError(
            problem, remedy="Give --regime with --dataset aiconfigurator or --curves FILE alone"
        )
    epsilons = tolerances_of(args, config)
    source, curves = imported_of(args, layout, config)
    filters = {name: getattr(args, name) for name in ("module", "dtype", "weights", "kv_dtype")}
    curves = training_curves(curves, filters)
    truth = kernel_truth(curves, config.platforms, config.site.epsilon)
    scored = scored_truth(truth)
    for column in ("platform", "backend", "routing"):
        scored = select(source, scored, column, getattr(args, column) or ())
    resolver = Resolver(layout, cache=source_cache(), offline=args.offline)
    facts = datasheet_facts(config.platforms)
    scores = regime_scores(
        scored,
        list(curves_by_form(truth, curves, facts, resolver)),
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
        print("\n".join(regime_lines(source, scored, epsilons, rows, by)))
    return 0


def _given_options(args: argparse.Namespace, names: Sequence[str]) -> list[str]:
    """Return the options among some names that are given, as they are typed."""
    defaults = {"least_n": 1}
    values = {name: getattr(args, name) for name in names}
    return [
        f"--{name.replace('_', '-')}"
        for name, value in values.items()
        if value is not None and value is not False and value not in ([], defaults.get(name))
    ]


def imported_of(
    args: argparse.Namespace, layout: Layout, config: Config
) -> tuple[str, ImportedCurves]:
    """Return the name and the curves of `--curves`, or of the newest release of AIConfigurator."""
    if args.curves:
        return args.curves.name, curves_from_csv(args.curves, config)
    stream = newest_release(layout)
    return f"aiconfigurator ({stream})", read_curves(layout, stream=stream)


def tolerances_of(args: argparse.Namespace, config: Config) -> list[float]:
    """Return the tolerances of `--epsilon` in rising order, else the config's."""
    tolerances = args.epsilon or [config.site.epsilon]
    return sorted(
        {
            *(tolerance for tolerance in tolerances if tolerance),
            *(config.site.tolerances if None in tolerances else ()),
        }
    )
