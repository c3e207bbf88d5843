"""Scores that have tables of their own: whole models, collectives, and what regimes answer."""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from nearfree.cli.common import json_text
from nearfree.errors import ConfigError, EvidenceError

if TYPE_CHECKING:
    from nearfree.config.files import Config
    from nearfree.log.names import Layout
    from nearfree.public.curves import ImportedCurves

WHOLE_BY = ("model", "platform", "precision", "engine", "several", "draft")
_OF_WHOLE = (
    *("epsilon", "predictor", "module", "backend", "dtype", "weights", "kv_dtype", "routing"),
    *("regime", "unseen", "own", "leave_one_out", "from_one", "least_n", "tried", "minimum_mb"),
)
"""Options that do not go with steps of whole models."""
_OF_COLLECTIVES = (
    *("epsilon", "predictor", "dtype", "weights", "kv_dtype", "routing", "regime"),
    *("unseen", "own", "leave_one_out", "from_one", "least_n", "tried", "minimum_mb"),
)
"""Options that do not go with collectives."""
_OF_REGIMES = ("predictor", "unseen", "own", "leave_one_out", "from_one", "least_n", "minimum_mb")
"""Options that do not go with regimes."""
_BY_REGIME = ("regime", "module", "dtype", "routing")
_COLLECTIVES = ("family", "kernel", "operation", "gpus")


def validate_whole(args: argparse.Namespace, layout: "Layout", config: "Config") -> int:
    """Print how well published steps of whole models are predicted."""
    from nearfree.derive.predict.answers import Answerer
    from nearfree.derive.score.whole import StepFit, platform_of, whole_score
    from nearfree.derive.score.whole_steps import timed_steps
    from nearfree.public.whole_models import FILE, read_rows
    from nearfree.show.text.whole import TABLES, as_json, lines

    by = tuple(args.by or ())
    said = _given(args, _OF_WHOLE) + [f"--by {name}" for name in by if name not in WHOLE_BY]
    if said:
        raise ConfigError(
            f"{', '.join(said)} says nothing of steps of whole models",
            remedy=f"Leave it out; --by takes {', '.join(WHOLE_BY)}",
        )
    answerer = Answerer(layout, config, offline=args.offline)
    own = config.folder / FILE
    every = timed_steps(read_rows(args.file or own).rows, config, answerer, args.models)
    asked = every
    if args.platform:
        asked = [each for each in every if platform_of(each) in args.platform]
        if not asked:
            raise ConfigError(
                f"no row is of {', '.join(args.platform)}", remedy="Name a GPU of the file's rows"
            )
    if not any(each.deployment for each in asked):
        reasons = dict.fromkeys(each.refusal for each in asked if each.refusal)
        raise EvidenceError(
            f"none of {len(asked)} rows is answered: {'; '.join(reasons)[:600]}",
            remedy="Give rows of engines, GPUs and models that are known, or --models FOLDER",
        )
    others = args.file or args.models
    fitted = timed_steps(read_rows(own).rows, config, answerer) if others else every
    fit = StepFit(fitted, answerer.bandwidths_gb_s)
    score = whole_score(asked, fit)
    if args.format == "json":
        print(json_text(as_json(score, by or WHOLE_BY)))
        return 0
    constants = {engine: known for engine in fit.engines if (known := fit.of(engine))}
    source = (args.file or own).name
    print("\n".join(lines(source, score, constants, [by] if by else TABLES)))
    return 0


def validate_collectives(args: argparse.Namespace, layout: "Layout", config: "Config") -> int:
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
    if said := _given(args, _OF_COLLECTIVES):
        raise ConfigError(
            f"{', '.join(said)} says nothing of collectives, whose T itself is scored",
            remedy="Leave it out; --platform, --backend and --by choose rows",
        )
    by = args.by or _COLLECTIVES
    odd = [name for name in by if name not in COLUMNS]
    if odd:
        raise ConfigError(
            f"collectives cannot be grouped by {', '.join(odd)}",
            remedy=f"Choose from {', '.join(COLUMNS)}",
        )
    source, curves = imported_of(args, layout, config)
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


def validate_regimes(args: argparse.Namespace, layout: "Layout", config: "Config") -> int:
    """Print how each regime answers what it does not know."""
    from nearfree.derive.granularity.facts import datasheet_facts
    from nearfree.derive.granularity.resolve import Resolver
    from nearfree.derive.reference.build import curves_by_form, known_truth, scored_of
    from nearfree.derive.reference.siblings import chips
    from nearfree.derive.score.narrowing import chosen, learnt
    from nearfree.derive.score.regimes import regime_scores
    from nearfree.derive.score.scores import groups
    from nearfree.show.text.regimes import lines
    from nearfree.sources.fetching.cache import Cache, default_cache

    odd = _given(args, _OF_REGIMES)
    if odd or not (args.curves or args.dataset == "aiconfigurator"):
        what = f"--regime and {', '.join(odd)} do not go together" if odd else (
            "regimes are scored on curves")  # fmt: skip
        raise ConfigError(
            what, remedy="Give --regime with --dataset aiconfigurator or --curves FILE alone"
        )
    epsilons = tolerances_of(args, config)
    source, curves = imported_of(args, layout, config)
    filters = {name: getattr(args, name) for name in ("module", "dtype", "weights", "kv_dtype")}
    curves = learnt(curves, filters)
    known = known_truth(curves, config.platforms, config.site.epsilon)
    scored = scored_of(known)
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


def _given(args: argparse.Namespace, names: Sequence[str]) -> list[str]:
    """Return the options of some names that were given, as they are typed."""
    default = {"least_n": 1}
    values = {name: getattr(args, name) for name in names}
    return [
        f"--{name.replace('_', '-')}"
        for name, value in values.items()
        if value is not None and value is not False and value not in ([], default.get(name))
    ]


def imported_of(
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


def tolerances_of(args: argparse.Namespace, config: "Config") -> list[float]:
    """Return the tolerances that are asked for, rising; the config's where none is."""
    tolerances = args.epsilon or [config.site.epsilon]
    return sorted(
        {*(e for e in tolerances if e), *(config.site.tolerances if None in tolerances else ())}
    )
