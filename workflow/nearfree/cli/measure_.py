"""Make sure that a study's take is sealed: measure what is missing, or return at once."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from nearfree.cli.common import positive

if TYPE_CHECKING:
    from nearfree.settings import MeasurePlan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument("platform", help="a platform of `here`")
    parser.add_argument("study", help="a study of config/studies.yaml; the stream of its events")
    parser.add_argument(
        "--take", type=positive, help="which take (default: as config/takes.yaml says)"
    )
    parser.add_argument(
        "--plan",
        metavar="FILE",
        help="the plan as `nearfree plan` prints it, - for standard input; then config/ is not "
        "read and only msgspec and torch are needed",
    )
    parser.add_argument(
        "--untested",
        action="store_true",
        help="let adapters run on a GPU of which the log holds no sealed run there",
    )
    parser.add_argument(
        "--wait",
        type=positive,
        default=0,
        metavar="S",
        help="wait up to S seconds for another process that measures the same take (default: 0)",
    )


def run(args: argparse.Namespace) -> int:
    """Measure, and print what was sealed."""
    from nearfree.cli.patience import patiently
    from nearfree.cli.progress import Bar
    from nearfree.cli.torch_ import need_torch
    from nearfree.events.names import Layout, check_part

    if args.plan:
        scope, take, plan = check_part(args.platform), args.take or 1, read_plan(args.plan)
    else:
        from nearfree.cli.common import here
        from nearfree.plans import Plans

        config, scope = here(args)
        take = args.take or config.take(scope, args.study)
        plan = Plans(config, scope).measure(args.study)
    need_torch()
    from nearfree.measure.run import measure

    with Bar(f"{scope}/{args.study}") as bar:
        seal = patiently(
            args.wait,
            lambda: measure(
                Layout(args.results),
                scope,
                check_part(args.study),
                take,
                plan,
                untested=args.untested,
                progress=bar,
            ),
        )
    events = sum(part.events for part in seal.segments)
    print(f"{seal.name}: sealed, {events} events in {len(seal.segments)} attempt(s)")
    return 0


def read_plan(name: str) -> "MeasurePlan":
    """Return the plan in a file, or in standard input for -; ConfigError if it is none."""
    import msgspec

    from nearfree.errors import ConfigError
    from nearfree.settings import MeasurePlan

    try:
        raw = sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
        return msgspec.json.decode(raw, type=MeasurePlan)
    except OSError as error:
        raise ConfigError(
            f"{name} cannot be read: {error.strerror}", remedy="Name a file, or - for a pipe"
        ) from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{name} is not a plan: {error}", remedy="Give what `nearfree plan` prints"
        ) from error
