"""Say how many positions of a model are near-free on a platform, what limits that, and where.

It prints the boundary by each predictor with its limiter and the rule behind it (file and lines),
T(N) / T(1) with each module's share, and what can be turned. With --positions K it asks the other
way round: at which batch sizes and contexts are K positions near-free, and what do they cost
elsewhere? Unless they are given, b = 1 and L = 4096, with --positions b from 1 to 256 and L from
1024 to 65536; routing is balanced. With --curves FOLDER it writes T(N) of all studies of platforms
into files, one a platform, on which the workflow can then be run without the GPUs: simulated.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from nearfree.cli.common import positive, tokens
from nearfree.cli.deployment_options import (
    add_deployment,
    add_looking,
    answering,
    asked,
    tolerance,
)

if TYPE_CHECKING:
    from nearfree.derive.predict.forecast.forecast import Forecast

from collections import Counter

from nearfree.errors import ConfigError

_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_CONTEXTS = (1024, 4096, 16384, 65536)
"""What the other way round is asked of, unless something else is listed."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    add_deployment(parser, required=False)
    add_looking(parser)
    parser.add_argument(
        "--positions", type=positive, metavar="K", help="ask where K positions are near-free"
    )
    parser.add_argument(
        "--accepted",
        type=tokens,
        metavar="TOKENS",
        help="tokens that a forward yields, as measured: adds accepted / N_max where N_max stands",
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
        from nearfree.cli.predict_ import write_curves

        write_curves(args, args.curves)
        return 0
    from nearfree.config.files import Config
    from nearfree.derive.predict.forecast.expand_deployments import deployments
    from nearfree.derive.predict.forecast.forecast import forecast, positions
    from nearfree.errors import ConfigError

    if not args.model or not args.platform:
        missing = "model" if not args.model else "platform"
        raise ConfigError(f"--{missing} is missing", remedy="Name one, or several: a,b,c")
    config = Config(args.config)
    epsilon = tolerance(args, config)
    grid = positions(max(args.largest, args.positions or 1))
    if args.positions is None:
        wanted = deployments(config, asked(args))
        found = forecast(wanted, answering(args, config, wanted), [epsilon], grid=grid)
    else:
        wanted = deployments(config, asked(args, batch=_BATCHES, context=_CONTEXTS))
        answerer = answering(args, config, wanted)
        found = forecast(wanted, answerer, [epsilon], grid=grid, predictors=["work_model"])
    _SHOWN[args.format](args, found, epsilon)
    return 0


def _text(args: argparse.Namespace, found: "Forecast", epsilon: float) -> None:
    from nearfree.show.text.forecast import report
    from nearfree.show.text.surface import inverse_report

    if args.positions is not None:
        lines = inverse_report(found, args.positions, epsilon, args.accepted)
        print("\n".join(lines))
        return
    for place in range(len(found.deployments)):
        print("\n" * (place > 0) + "\n".join(report(found, place, epsilon, args.accepted)))


def _json(args: argparse.Namespace, found: "Forecast", epsilon: float) -> None:
    import msgspec

    from nearfree.show.text.answer_json import answer, inverse_rows

    said = (
        inverse_rows(found, args.positions, epsilon, args.accepted).to_dicts()
        if args.positions is not None
        else [
            answer(found, place, epsilon, args.accepted) for place in range(len(found.deployments))
        ]
    )
    print(msgspec.json.format(msgspec.json.encode(said), indent=2).decode())


def _csv(args: argparse.Namespace, found: "Forecast", epsilon: float) -> None:
    from nearfree.show.text.answer_json import curve_rows, inverse_rows

    frame = (
        inverse_rows(found, args.positions, epsilon, args.accepted)
        if args.positions is not None
        else curve_rows(found)
    )
    sys.stdout.write(frame.write_csv())


_SHOWN: dict[str, Callable[[argparse.Namespace, "Forecast", float], None]] = {
    "text": _text,
    "json": _json,
    "csv": _csv,
}


_UNUSED = ("model", "attention", "moe", "batch", "context", "routing", "dtype", "epsilon",
           "positions", "accepted")  # fmt: skip


def write_curves(args: argparse.Namespace, folder: Path) -> None:
    """Write the curve file of each platform into a folder, and print what each holds."""
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
                f"--{name} says nothing with --curves: what is asked are the studies of config/",
                remedy="Leave it out, or leave --curves out",
            )
    config = Config(args.config)
    platforms = args.platform or config.site.here
    answerer = Answerer(Layout(args.results), config, offline=not args.online)
    for scope in dict.fromkeys(resolve(config.platforms, each) for each in platforms):
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
