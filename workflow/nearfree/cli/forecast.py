"""Predicted boundaries of models: one answer, or where K positions are near-free."""

import argparse
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from nearfree.cli.common import (
    argument,
    command,
    config_of,
    in_one_thread,
    json_text,
    layout_of,
    positive,
    tokens,
)
from nearfree.cli.deployment_options import (
    CONDITIONS,
    add_answer_options,
    add_deployment,
    fit,
    loads_of,
    make_answerer,
    make_spec,
    refuse_options,
    tolerance_of,
)
from nearfree.cli.forecast_engine import (
    add_engine_options,
    predict_engine,
    refuse_engine_options,
)
from nearfree.errors import ConfigError, Refusal, RefusedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from nearfree.derive.predict.forecast.asked_model import Unanswered
    from nearfree.derive.predict.forecast.first_answer import FirstAnswer
    from nearfree.derive.predict.forecast.forecast import Forecast


BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_CONTEXTS = (1024, 4096, 16384, 65536)
"""Default batches of `surface` and `--positions`, and default contexts of `--positions`."""
_UNUSED = ("model", *CONDITIONS, "engine", "epsilon", "positions", "accepted")
"""Options that `--curves` refuses."""


@command(
    "predict",
    partial(add_deployment, required=False),
    add_engine_options,
    add_answer_options,
    argument("--all", action="store_true", help="print everything that is known behind the answer"),
    argument(
        "--positions", type=positive, metavar="K", help="print where K positions are near-free"
    ),
    argument(
        "--accepted",
        type=tokens,
        metavar="TOKENS",
        help="measured tokens that a forward yields: adds accepted / N_max beside N_max",
    ),
    argument(
        "--curves",
        type=Path,
        metavar="FOLDER",
        help="write FOLDER/PLATFORM.json with T(N) of every study of config/studies.yaml, for each "
        "--platform (default: those of `here`); config.yaml names the folder as `curves`",
    ),
    argument(
        "--format",
        choices=["csv", "json", "text"],
        default="text",
        help="how to print; csv holds T(N), a row an N (default: text)",
    ),
    answers=True,
)
def run_predict(args: argparse.Namespace) -> int:
    """Predict how many positions of a model are near-free on a platform, and what limits them.

    Prints six lines: N_max, what limits it with the rule's file and lines, T(1) and what 2 to 16
    positions cost, memory, and on what the answer stands. With --all the boundary of each predictor
    follows, T(N) / T(1) with each module's share, and the options that move the limit. With
    --positions K it prints at which batch sizes and contexts K positions are near-free, and their
    cost elsewhere. The defaults are b = 1 and L = 4096, with --positions b from 1 to 256 and L from
    1024 to 65536, and balanced routing. With --curves FOLDER it writes T(N) of all studies into one
    file a platform, from which the workflow can simulate the platform without its GPUs.

    With --engine it is the forward of a GGUF file in a real engine on a CPU: N_max by the rules of
    the engine's source, its steps up to 33 rows with file and lines, and T(N) where the results
    root holds curves of the same release, threads and types. Only the file's header is read. L is
    then 64 where none is given.

    Example: nearfree predict --model qwen3_30b_a3b --platform h200 --batch 8 --context 16384
    --tp 2
    """
    in_one_thread()
    if not args.engine:
        refuse_engine_options(args)
    if args.curves:
        write_curves(args, args.curves)
        return 0
    from nearfree.derive.predict.answers import PREDICTORS
    from nearfree.derive.predict.forecast.expand_deployments import asked_about
    from nearfree.derive.predict.forecast.first_answer import first_answer
    from nearfree.derive.predict.forecast.forecast import forecast, positions

    if lacking := [f"--{each}" for each in ("model", "platform") if not getattr(args, each)]:
        are = "are" if len(lacking) > 1 else "is"
        raise ConfigError(
            f"{' and '.join(lacking)} {are} missing", remedy="Name one, or several: a,b,c"
        )
    if args.engine:
        return predict_engine(args)
    inverse, curve = args.positions is not None, args.format == "csv" and args.positions is None
    if curve:
        where = "with --format csv, which is T(N)"
        refuse_options(args, ("accepted",), where, "choose another format")
    config = config_of(args)
    epsilon = tolerance_of(args, config)
    grid = positions(max(args.largest, args.positions or 1))
    spec = make_spec(args, batch=BATCHES, context=_CONTEXTS) if inverse else make_spec(args)
    queries, others = asked_about(config, spec, loads_of(args))
    short = args.format == "text" and not args.all
    predictors = ["work_model"] if inverse or short else PREDICTORS
    answerer = make_answerer(args, config, queries) if queries else None
    answers = (
        forecast(queries, answerer, [epsilon], grid=grid, predictors=predictors, full=not short)
        if answerer
        else None
    )
    firsts = [] if answers is None or answerer is None or inverse else [
        first_answer(answers, place, epsilon, answerer) for place in range(len(queries))
    ]  # fmt: skip
    told = _answer(args, answers, firsts, others, epsilon)
    if told:
        print(told)
    if args.format != "json":
        refuse(others, _unknown(answers) if curve and answers is not None else ())
    unknown = others or answers is None or any(answers.total.refusals)
    return 2 if unknown or not fit(args, queries) else 0


def _answer(
    args: argparse.Namespace,
    answers: "Forecast | None",
    firsts: "Sequence[FirstAnswer | None]",
    others: "Sequence[Unanswered]",
    epsilon: float,
) -> str:
    """Return the answer in the chosen format, with what is known where there is none."""
    from nearfree.show.text.answer_json import answer, curve_rows, inverse_rows
    from nearfree.show.text.memory import unanswered_json, unanswered_lines, warning_lines
    from nearfree.show.text.surface import inverse_report

    used = epsilon, args.accepted
    if args.positions is None and args.format == "text":
        told = [
            _told(args, answers, place, first, epsilon)
            for place, first in enumerate(firsts)
            if answers
        ]
        told += [unanswered_lines(each) for each in others]
        return "\n\n".join(filter(None, map("\n".join, told)))
    inverse = args.positions is not None
    if args.format == "json":
        said = [
            answer(answers, place, epsilon, first, args.accepted)
            for place, first in enumerate(firsts)
            if answers
        ]
        if inverse and answers is not None:
            found = inverse_rows(answers, args.positions, *used).to_dicts()
            every = zip(found, answers.deployments, strict=True)
            said = [row | {"caveats": query.caveats} for row, query in every]
        return json_text([*said, *map(unanswered_json, others)])
    if answers is None:
        return ""
    if args.format == "csv":
        rows = inverse_rows(answers, args.positions, *used) if inverse else curve_rows(answers)
        return rows.write_csv().rstrip("\n")
    lines = inverse_report(answers, args.positions, *used)
    return "\n".join((*warning_lines(answers.deployments), *lines))


def _told(
    args: argparse.Namespace,
    answers: "Forecast",
    place: int,
    first: "FirstAnswer | None",
    epsilon: float,
) -> "Iterator[str]":
    """Yield what is said of one deployment: the answer to act on, with `--all` everything."""
    from nearfree.show.text.first_answer import first_block, unknown_block
    from nearfree.show.text.forecast import report

    query, refusal = answers.deployments[place], answers.total.refusals[place]
    if first is not None:
        end = int(answers.total.grid[-1])
        yield from first_block(query, first, args.accepted, end=end, assumed=not args.attention)
    elif not args.all:
        yield from unknown_block(query, str(refusal))
    if args.all:
        yield from ("",) if first is not None else ()
        yield from report(answers, place, epsilon, args.accepted)


def _unknown(answers: "Forecast") -> "Iterator[Refusal]":
    """Yield why a deployment has no T(N), so that a file of it has no rows."""
    from nearfree.show.text.forecast import no_forward

    for query, reason in zip(answers.deployments, answers.total.refusals, strict=True):
        if reason is not None:
            named = f"T(N) of {query.decoder.name} on {query.platform} is not known: {reason}"
            yield Refusal("", "", named, no_forward(query))


def refuse(others: "Sequence[Unanswered]", more: "Iterable[Refusal]" = ()) -> None:
    """Raise RefusedError with every reason where a deployment's forward is not predicted, and more.

    What stands in no file is said of its model where there are several.
    """
    several = len({each.about["model"] for each in others}) > 1
    reasons = [
        reason._replace(file=each.about["model"]) if several and not reason.file else reason
        for each in others
        for reason in each.refusals
    ]
    if every := [*reasons, *more]:
        raise RefusedError(every)


def write_curves(args: argparse.Namespace, folder: Path) -> None:
    """Write the curve file of each platform into a folder, and print a summary of each."""
    from msgspec import json

    from nearfree.derive.predict.answers import Answerer
    from nearfree.derive.predict.curve_files import curve_file
    from nearfree.hardware.platforms import resolve
    from nearfree.log.document import replace

    where = "with --curves, which covers the studies of config/"
    refuse_options(args, _UNUSED, where, "--curves")
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
