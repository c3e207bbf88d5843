"""`nearfree predict`: N_max of a model, or the settings in which K positions are near-free."""

import argparse
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from nearfree.cli.common import (
    argument,
    command,
    config_of,
    flag,
    in_one_thread,
    json_text,
    layout_of,
    output_format,
    positive,
    tokens,
)
from nearfree.cli.deployment_options import (
    LARGEST,
    add_answer_options,
    add_deployment,
    conditions,
    fit,
    loads_of,
    make_answerer,
    make_spec,
    refuse_options,
    tolerance_of,
)
from nearfree.cli.serving_engine import (
    add_engine_options,
    refuse_engine_options,
    use_serving_engine,
)
from nearfree.errors import ConfigError, Refusal, RefusedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from nearfree.config.files import Config, DeploymentSpec
    from nearfree.derive.predict.forecast.deployment import Deployment
    from nearfree.derive.predict.forecast.first_answer import FirstAnswer
    from nearfree.derive.predict.forecast.forecast import Forecast
    from nearfree.derive.predict.forecast.model_query import Unanswered


BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_CONTEXTS = (1024, 4096, 16384, 65536)
"""Default batch sizes of `surface` and `--positions`, and default contexts of `--positions`."""
_UNUSED = ("engine", "epsilon", "all", "positions", "accepted", "largest", "ignore_memory")
"""Options that `--curves` refuses, besides the model and its conditions."""


@command(
    "predict",
    partial(add_deployment, required=False),
    add_engine_options,
    add_answer_options,
    flag("--all", "also print every predictor, T(N), the modules and the constants", default=None),
    argument(
        "--positions",
        type=positive,
        metavar="K",
        help="print the batch sizes and contexts at which K positions are near-free",
    ),
    argument(
        "--accepted",
        type=tokens,
        metavar="TOKENS",
        help="measured tokens per forward, from 1 up; adds accepted / N_max to the answer",
    ),
    argument(
        "--curves",
        type=Path,
        metavar="FOLDER",
        help="write FOLDER/PLATFORM.json with T(N) of every study of config/studies.yaml, for each "
        "--platform (default: those of `here`); config.yaml names the folder as `curves`",
    ),
    output_format("csv", "json", "text", default="text", note="; csv holds T(N), one row per N"),
    answers=True,
)
def run_predict(args: argparse.Namespace) -> int:
    """Predict how many positions of a model are near-free on a platform, and what limits them.

    Prints six lines: the deployment, N_max, the module that limits it with its rule's file and
    lines, T(1) with the cost of 2 to 16 positions, memory, and the evidence. With --all it also
    prints the boundary by each predictor, T(N) / T(1) with each module's share, and the options
    that move the limit. With --positions K it prints the batch sizes and contexts at which K
    positions are near-free, and T(K) / T(1) at the others. The defaults are b = 1 and L = 4096,
    with --positions b from 1 to 256 and L from 1024 to 65536, and balanced routing. With --curves
    FOLDER it writes T(N) of all studies into one file per platform, from which the workflow can
    simulate the platform without its GPUs.

    With --engine llama_cpp it predicts the forward of a GGUF file on a CPU: N_max by the rules of
    the engine's source, the steps up to 33 rows with file and lines, and T(N) where the results
    root holds curves of the same release, threads and weight types. Only the file's header is
    read. L defaults to 64. On an NVIDIA GPU the rules answer alone.

    Example: nearfree predict --model qwen3_30b_a3b --platform h200 --batch 8 --context 16384
    --tp 2
    """
    in_one_thread()
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
    from nearfree.core.predictors import PREDICTORS, WORK_MODEL
    from nearfree.derive.predict.forecast.alternatives import Alternatives
    from nearfree.derive.predict.forecast.expand_deployments import expand
    from nearfree.derive.predict.forecast.first_answer import first_answer
    from nearfree.derive.predict.forecast.forecast import forecast, positions

    inverse, curve = args.positions is not None, args.format == "csv" and args.positions is None
    if curve:
        where = "with --format csv, which is T(N)"
        refuse_options(args, ("accepted", "all"), where, "choose another format")
    if inverse:
        refuse_options(args, ("all",), "with --positions", "leave out --positions")
    config = config_of(args)
    epsilon = tolerance_of(args, config)
    grid = positions(max(args.largest or LARGEST, args.positions or 1))
    spec = make_spec(args, batch=BATCHES, context=_CONTEXTS) if inverse else make_spec(args)
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
    forecast: "Forecast | None",
    first_answers: "Sequence[FirstAnswer | None]",
    unanswered: "Sequence[Unanswered]",
    epsilon: float,
) -> str:
    """Return the answers in the chosen format, with the memory of unanswered deployments."""
    from nearfree.derive.predict.forecast.doubts import all_caveats, doubts_by_model
    from nearfree.show.text.answer_json import answer, curve_rows, inverse_rows
    from nearfree.show.text.memory import unanswered_json, unanswered_lines, warning_lines
    from nearfree.show.text.surface import inverse_report

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
    forecast: "Forecast",
    index: int,
    first: "FirstAnswer | None",
    epsilon: float,
) -> "Iterator[str]":
    """Yield the text of one deployment: the first answer, and with `--all` the full report."""
    from nearfree.show.text.first_answer import first_block, unknown_block
    from nearfree.show.text.forecast import report

    query, refusal = forecast.deployments[index], forecast.total.refusals[index]
    if first is not None:
        end = int(forecast.total.grid[-1])
        yield from first_block(query, first, args.accepted, end=end, assumed=not args.attention)
    elif not args.all:
        yield from unknown_block(query, str(refusal))
    if args.all:
        yield from ("",) if first is not None else ()
        yield from report(forecast, index, epsilon, args.accepted)


def _unknown_latency(forecast: "Forecast") -> "Iterator[Refusal]":
    """Yield a refusal for each deployment without T(N), which has no rows in a CSV file."""
    from nearfree.show.text.forecast import no_forward

    for query, reason in zip(forecast.deployments, forecast.total.refusals, strict=True):
        if reason is not None:
            text = f"T(N) of {query.decoder.name} on {query.platform} is not known: {reason}"
            yield Refusal("", "", text, no_forward(query))


def answerable(
    args: argparse.Namespace, config: "Config", spec: "DeploymentSpec"
) -> "list[Deployment]":
    """Return the deployments of a query; raise RefusedError with every reason if one is refused."""
    from nearfree.derive.predict.forecast.alternatives import Alternatives
    from nearfree.derive.predict.forecast.expand_deployments import expand

    loads = loads_of(args)
    queries, unanswered = expand(config, spec, loads)
    if unanswered:
        answerer = make_answerer(args, config, queries)
        refuse(Alternatives(config, spec, answerer, loads).completed(unanswered))
    return queries


def refuse(unanswered: "Sequence[Unanswered]", further: "Iterable[Refusal]" = ()) -> None:
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
    from msgspec import json

    from nearfree.derive.predict.answers import Answerer
    from nearfree.derive.predict.curve_files import curve_file
    from nearfree.hardware.platforms import resolve
    from nearfree.log.document import replace

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
