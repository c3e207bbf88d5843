"""Predict how many positions of a model are near-free on a platform, and what limits them.

Prints the boundary of each predictor with its limiter and the rule behind it (file and lines),
T(N) / T(1) with each module's share, and the options that move the limit. With --positions K it
prints at which batch sizes and contexts K positions are near-free, and their cost elsewhere. The
defaults are b = 1 and L = 4096, with --positions b from 1 to 256 and L from 1024 to 65536, and
balanced routing. With --curves FOLDER it writes T(N) of all studies into one file a platform, from
which the workflow can simulate the platform without its GPUs.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from nearfree.cli.common import positive, tokens
from nearfree.cli.deployment_options import (
    add_answer_options,
    add_deployment,
    make_answerer,
    make_spec,
    tolerance,
)
from nearfree.errors import ConfigError

if TYPE_CHECKING:
    from nearfree.derive.predict.forecast.forecast import Forecast

_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_CONTEXTS = (1024, 4096, 16384, 65536)
"""Default batches and contexts of `--positions`."""
_UNUSED = ("model", "attention", "moe", "batch", "context", "routing", "dtype", "epsilon",
           "positions", "accepted")  # fmt: skip
"""Options that `--curves` refuses."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    add_deployment(parser, required=False)
    add_answer_options(parser)
    parser.add_argument(
        "--positions", type=positive, metavar="K", help="print where K positions are near-free"
    )
    parser.add_argument(
        "--accepted",
        type=tokens,
        metavar="TOKENS",
        help="measured tokens that a forward yields: adds accepted / N_max beside N_max",
    )
    parser.add_argument(
        "--curves",
        type=Path,
        metavar="FOLDER",
        help="write FOLDER/PLATFORM.json with T(N) of every study of config/studies.yaml, for each "
        "--platform (default: those of `here`); config.yaml names the folder as `curves`",
    )
    parser.add_argument(
        "--format",
        choices=sorted(_SHOWN),
        default="text",
        help="how to print; csv holds T(N), a row an N (default: text)",
    )


def run(args: argparse.Namespace) -> int:
    """Print the answer."""
    if args.curves:
        write_curves(args, args.curves)
        return 0
    from nearfree.config.files import Config
    from nearfree.derive.predict.forecast.expand_deployments import deployments
    from nearfree.derive.predict.forecast.forecast import forecast, positions

    if not args.model or not args.platform:
        missing = "model" if not args.model else "platform"
        raise ConfigError(f"--{missing} is missing", remedy="Name one, or several: a,b,c")
    config = Config(args.config)
    epsilon = tolerance(args, config)
    grid = positions(max(args.largest, args.positions or 1))
    if args.positions is None:
        queries = deployments(config, make_spec(args))
        answers = forecast(queries, make_answerer(args, config, queries), [epsilon], grid=grid)
    else:
        queries = deployments(config, make_spec(args, batch=_BATCHES, context=_CONTEXTS))
        answerer = make_answerer(args, config, queries)
        answers = forecast(queries, answerer, [epsilon], grid=grid, predictors=["work_model"])
    _SHOWN[args.format](args, answers, epsilon)
    return 0


def _text(args: argparse.Namespace, answers: "Forecast", epsilon: float) -> None:
    from nearfree.show.text.forecast import report
    from nearfree.show.text.surface import inverse_report

    if args.positions is not None:
        lines = inverse_report(answers, args.positions, epsilon, args.accepted)
        print("\n".join(lines))
        return
    for place in range(len(answers.deployments)):
        print("\n" * (place > 0) + "\n".join(report(answers, place, epsilon, args.accepted)))


def _json(args: argparse.Namespace, answers: "Forecast", epsilon: float) -> None:
    import msgspec

    from nearfree.show.text.answer_json import answer, inverse_rows

    document = (
        inverse_rows(answers, args.positions, epsilon, args.accepted).to_dicts()
        if args.positions is not None
        else [
            answer(answers, place, epsilon, args.accepted)
            for place in range(len(answers.deployments))
        ]
    )
    print(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())


def _csv(args: argparse.Namespace, answers: "Forecast", epsilon: float) -> None:
    from nearfree.show.text.answer_json import curve_rows, inverse_rows

    frame = (
        inverse_rows(answers, args.positions, epsilon, args.accepted)
        if args.positions is not None
        else curve_rows(answers)
    )
    sys.stdout.write(frame.write_csv())


_SHOWN: dict[str, Callable[[argparse.Namespace, "Forecast", float], None]] = {
    "text": _text,
    "json": _json,
    "csv": _csv,
}


def write_curves(args: argparse.Namespace, folder: Path) -> None:
    """Write the curve file of each platform into a folder, and print a summary of each."""
    from msgspec import json

    from nearfree.config.files import Config
    from nearfree.derive.predict.answers import Answerer
    from nearfree.derive.predict.curve_files import curve_file
    from nearfree.hardware.platforms import resolve
    from nearfree.log.document import replace
    from nearfree.log.names import Layout

    for name in _UNUSED:
        if getattr(args, name) is not None:
            raise ConfigError(
                f"--{name} has no effect with --curves, which covers the studies of config/",
                remedy=f"Leave out --{name} or --curves",
            )
    config = Config(args.config)
    platforms = args.platform or config.site.here
    answerer = Answerer(Layout(args.results), config, offline=not args.online)
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
