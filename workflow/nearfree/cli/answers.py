"""The runs of `nearfree predict`, `lookup` and `surface`."""

import argparse
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from msgspec import json

from nearfree.cli.common import config_of, json_text, layout_of
from nearfree.cli.deployment_options import (
    conditions,
    fit,
    loads_of,
    make_answerer,
    make_spec,
    refuse_options,
    tolerance_of,
)
from nearfree.cli.serving_engine import (
    refuse_engine_options,
    use_only_serving_engine,
    use_serving_engine,
)
from nearfree.config.files import BOUNDS, Config, DeploymentSpec
from nearfree.core.predictors import PREDICTORS, WORK_MODEL
from nearfree.derive.predict.answers import Answerer
from nearfree.derive.predict.forecast.alternatives import Alternatives
from nearfree.derive.predict.forecast.deployment import Deployment
from nearfree.derive.predict.forecast.doubts import all_caveats, doubts_by_model
from nearfree.derive.predict.forecast.expand_deployments import expand
from nearfree.derive.predict.forecast.first_answer import FirstAnswer, first_answer
from nearfree.derive.predict.forecast.forecast import LARGEST, Forecast, forecast, positions
from nearfree.derive.predict.forecast.model_query import Unanswered
from nearfree.derive.predict.forecast.surface import surface
from nearfree.errors import ConfigError, Refusal, RefusedError
from nearfree.hardware.platforms import resolve
from nearfree.log.document import replace
from nearfree.show.text.answer_json import answer, curve_rows, inverse_rows, rows_json, with_about
from nearfree.show.text.first_answer import first_block, unknown_block
from nearfree.show.text.forecast import no_forward, report
from nearfree.show.text.memory import unanswered_json, unanswered_lines, warning_lines
from nearfree.show.text.surface import (
    check_points_file,
    inverse_report,
    lookup_report,
    published_report,
    surface_report,
    write_points,
)

_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_CONTEXTS = (1024, 4096, 16384, 65536)
"""Default batch sizes of `surface` and `--positions`, and default contexts of `--positions`."""
_SURFACE_CONTEXTS = (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
_UNUSED = ("engine", "epsilon", "all", "positions", "accepted", "largest", "ignore_memory")
"""Options that `--curves` refuses, besides the model and its conditions."""
_ENGINE = ("engine", "release")
"""Options of `add_serving_engine`."""
_ANSWER = ("epsilon", "largest", "ignore_memory")


def predict(args: argparse.Namespace) -> int:
    """Print what the options of `predict` ask for, and return the exit code."""
    if not args.engine:
        refuse_engine_options(args)
    if args.curves:
        write_curves(args, args.curves)
        return 0
    use_serving_engine(args)
    _refuse_missing(args)
    if not args.engine:
        return _predict_deployments(args)
    from nearfree.cli.forecast_engine import predict_engine

    return predict_engine(args)


def _refuse_missing(args: argparse.Namespace) -> None:
    missing = [f"--{name}" for name in ("model", "platform") if not getattr(args, name)]
    if not missing:
        return
    are = "are" if len(missing) > 1 else "is"
    known = config_of(args).platforms
    names = list(known)
    if args.engine:
        names = [*(n for n in names if known[n].kind == "cpu"), "or an NVIDIA GPU"]
    platforms = f" (platforms: {', '.join(names)})" if "--platform" in missing else ""
    raise ConfigError(
        f"{' and '.join(missing)} {are} missing",
        remedy=f"Name one, or several: a,b,c{platforms}",
    )


def _predict_deployments(args: argparse.Namespace) -> int:
    """Predict the deployments that the options describe, print the answers, return the exit code.

    Raises
    ------
    RefusedError
        A deployment is unanswered, or has no T(N) for a CSV file; all others are printed before.
    """
    inverse, curve = args.positions is not None, args.format == "csv" and args.positions is None
    if curve:
        where = "with --format csv, which is T(N)"
        refuse_options(args, ("accepted", "all"), where, "choose another format")
    if inverse:
        refuse_options(args, ("all",), "with --positions", "leave out --positions")
    config = config_of(args)
    epsilon = tolerance_of(args, config)
    grid = positions(max(args.largest or LARGEST, args.positions or 1))
    spec = make_spec(args, batch=_BATCHES, context=_CONTEXTS) if inverse else make_spec(args)
    loads = loads_of(args)
    queries, unanswered = expand(config, spec, loads)
    short = args.format == "text" and not args.all
    predictors = [WORK_MODEL] if inverse or short else PREDICTORS
    answerer = make_answerer(args, config, queries)
    alternatives = Alternatives(config, spec, answerer, loads)
    unanswered, answers = alternatives.completed(unanswered), None
    if queries:
        answers = alternatives.named(
            forecast(queries, answerer, [epsilon], grid=grid, predictors=predictors, full=not short)
        )
    first_answers = [] if answers is None or inverse else [
        first_answer(answers, index, epsilon, answerer) for index in range(len(queries))
    ]  # fmt: skip
    text = _answer(args, answers, first_answers, unanswered, epsilon)
    if text:
        print(text)
    if args.format != "json":
        refuse(unanswered, _unknown_latency(answers) if curve and answers is not None else ())
    incomplete = unanswered or answers is None or any(answers.total.refusals)
    return 2 if incomplete or not fit(args, queries) else 0


def _answer(
    args: argparse.Namespace,
    forecast: Forecast | None,
    first_answers: Sequence[FirstAnswer | None],
    unanswered: Sequence[Unanswered],
    epsilon: float,
) -> str:
    """Return the answers in the chosen format, with the memory of unanswered deployments."""
    options = epsilon, args.accepted
    if args.positions is None and args.format == "text":
        blocks = [
            _deployment_lines(args, forecast, index, first, epsilon)
            for index, first in enumerate(first_answers)
            if forecast
        ]
        blocks += [unanswered_lines(query) for query in unanswered]
        return "\n\n".join(filter(None, map("\n".join, blocks)))
    inverse = args.positions is not None
    if args.format == "json":
        entries = [
            answer(forecast, index, epsilon, first, args.accepted)
            for index, first in enumerate(first_answers)
            if forecast
        ]
        if inverse and forecast is not None:
            costs = inverse_rows(forecast, args.positions, *options).to_dicts()
            every = forecast.total, forecast.deployments
            entries = [cost | {"caveats": all_caveats(*every, i)} for i, cost in enumerate(costs)]
        return json_text([*entries, *map(unanswered_json, unanswered)])
    if forecast is None:
        return ""
    if args.format == "csv":
        rows = inverse_rows(forecast, args.positions, *options) if inverse else curve_rows(forecast)
        return rows.write_csv().rstrip("\n")
    lines = inverse_report(forecast, args.positions, *options)
    doubted = doubts_by_model(forecast.total, forecast.deployments)
    return "\n".join((*warning_lines(forecast.deployments, doubted), *lines))


def _deployment_lines(
    args: argparse.Namespace,
    forecast: Forecast,
    index: int,
    first: FirstAnswer | None,
    epsilon: float,
) -> Iterator[str]:
    """Yield the text of one deployment: the first answer, and with `--all` the full report."""
    query, refusal = forecast.deployments[index], forecast.total.refusals[index]
    if first is not None:
        end = int(forecast.total.grid[-1])
        yield from first_block(query, first, args.accepted, end=end, assumed=not args.attention)
    elif not args.all:
        yield from unknown_block(query, str(refusal))
    if args.all:
        yield from ("",) if first is not None else ()
        yield from report(forecast, index, epsilon, args.accepted)


def _unknown_latency(forecast: Forecast) -> Iterator[Refusal]:
    """Yield a refusal for each deployment without T(N), which has no rows in a CSV file."""
    for query, reason in zip(forecast.deployments, forecast.total.refusals, strict=True):
        if reason is not None:
            text = f"T(N) of {query.decoder.name} on {query.platform} is not known: {reason}"
            yield Refusal("", "", text, no_forward(query))


def answerable(args: argparse.Namespace, config: Config, spec: DeploymentSpec) -> list[Deployment]:
    """Return the deployments of a query; raise RefusedError with every reason if one is refused."""
    loads = loads_of(args)
    queries, unanswered = expand(config, spec, loads)
    if unanswered:
        answerer = make_answerer(args, config, queries)
        refuse(Alternatives(config, spec, answerer, loads).completed(unanswered))
    return queries


def refuse(unanswered: Sequence[Unanswered], further: Iterable[Refusal] = ()) -> None:
    """Raise RefusedError with the refusals of all unanswered deployments, and further ones.

    With several models a refusal that names no file names its model.
    """
    several_models = len({query.about["model"] for query in unanswered}) > 1
    reasons = [
        reason._replace(file=query.about["model"]) if several_models and not reason.file else reason
        for query in unanswered
        for reason in query.refusals
    ]
    if refusals := [*reasons, *further]:
        raise RefusedError(refusals)


def write_curves(args: argparse.Namespace, folder: Path) -> None:
    """Write the curve file of each platform into a folder, and print a summary of each."""
    from nearfree.derive.predict.curve_files import curve_file

    where = "with --curves, which covers the studies of config/"
    refuse_options(args, ("model", *conditions(), *_UNUSED), where, "--curves")
    config = config_of(args)
    platforms = args.platform or config.site.here
    answerer = Answerer(layout_of(args), config, offline=not args.online)
    for scope in dict.fromkeys(resolve(config.platforms, name) for name in platforms):
        file = curve_file(config, scope, answerer)
        path = replace(folder / f"{scope}.json", json.encode(file, order="deterministic") + b"\n")
        points = sum(len(curve.n) for curve in file.curves)
        print(
            f"{path}: {file.device}, T(N) of {len(file.curves)} modules at {points} points, "
            f"{len(file.forwards)} models"
        )
        reasons = Counter((r.setting.module, r.setting.backend, r.refusal) for r in file.refused)
        for (module, backend, why), count in reasons.items():
            print(f"  refused: {module} on {backend}, {count} settings: {why}")


def lookup(args: argparse.Namespace) -> int:
    """Print the deployment table, and return the exit code."""
    config = config_of(args)
    if args.published:
        unused = ("model", "platform", *conditions(), *_ENGINE, *_ANSWER)
        where = "with --published, which covers the paper's deployments"
        refuse_options(args, unused, where, "--published")
        print(_published(args, config))
        return 0
    return _lookup(args, config)


def _lookup(args: argparse.Namespace, config: Config) -> int:
    epsilon = tolerance_of(args, config)
    specs, loads = _specs(args, config), loads_of(args)
    expanded = [expand(config, spec, loads) for spec in specs]
    queries = [query for known, _ in expanded for query in known]
    answerer = make_answerer(args, config, queries)
    unanswered = [
        query
        for spec, (_, unknown) in zip(specs, expanded, strict=True)
        for query in Alternatives(config, spec, answerer, loads).completed(unknown)
    ]
    if not queries:
        refuse(unanswered)
    answers = forecast(queries, answerer, [epsilon], grid=positions(args.largest or LARGEST))
    rows = answers.answers.drop("calibration")
    if args.format == "json":
        print(json_text(rows_json(queries, rows, answers.total)))
    elif args.format == "csv":
        print(with_about(answers.deployments, rows).write_csv().rstrip("\n"))
    else:
        warnings = warning_lines(queries, doubts_by_model(answers.total, queries))
        print("\n".join((*warnings, *lookup_report(answers, epsilon))))
    refuse(unanswered)
    return 2 if any(answers.total.refusals) or not fit(args, queries) else 0


def _specs(args: argparse.Namespace, config: Config) -> list[DeploymentSpec]:
    if (args.model is None) != (args.platform is None):
        raise ConfigError(
            "--model and --platform must be given together",
            remedy="Give both, or neither for the deployments of deployments.yaml",
        )
    if args.model is not None:
        use_only_serving_engine(args)
        return [make_spec(args, routing=BOUNDS)]
    where = "without --model and --platform, on the deployments of deployments.yaml"
    refuse_options(args, (*conditions(), *_ENGINE), where, "name a model and a platform")
    if not config.deployments:
        raise ConfigError(
            f"{config.folder}/deployments.yaml lists no deployment",
            remedy="Name --model and --platform, or add one",
        )
    return [spec for spec in config.deployments.values() if spec.drawn]


def _published(args: argparse.Namespace, config: Config) -> str:
    from nearfree.derive.outlook.lookup import published_answers
    from nearfree.derive.tables.platforms import PLATFORMS

    no_platforms = PLATFORMS.frame([]).with_columns(row_id=None)
    answers, _ = published_answers(layout_of(args), config.platforms, no_platforms)
    rows = answers.drop("from_ids")
    if args.format == "json":
        return json_text(rows.to_dicts())
    if args.format == "csv":
        return rows.write_csv().rstrip("\n")
    return "\n".join(published_report(rows))


def surface_of(args: argparse.Namespace) -> int:
    """Print N_max over batch sizes and contexts, and return the exit code."""
    if args.output:
        check_points_file(args.output)
    use_only_serving_engine(args)
    config = config_of(args)
    epsilon = tolerance_of(args, config)
    routings = ("balanced", "skewed")
    spec = make_spec(args, batch=_BATCHES, context=_SURFACE_CONTEXTS, routing=routings)
    queries = answerable(args, config, spec)
    points, boundaries, total = surface(
        queries, make_answerer(args, config, queries), positions(args.largest or LARGEST), epsilon
    )
    if args.output:
        write_points(args.output, queries, points)
    if args.format == "json":
        print(json_text(rows_json(queries, boundaries, total)))
    else:
        warnings = warning_lines(queries, doubts_by_model(total, queries))
        print("\n".join((*warnings, *surface_report(queries, boundaries, epsilon))))
    refused = boundaries["refusal"].is_not_null().any()
    return 2 if refused or not fit(args, queries) else 0
