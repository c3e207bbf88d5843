"""Measure and seal a study's take; return at once if it is sealed."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from nearfree.cli.common import positive

if TYPE_CHECKING:
    from nearfree.core.plan import MeasurePlan, ProfilePlan
    from nearfree.log.names import Layout
    from nearfree.log.seal import Seal


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument("platform", help="a platform of `here`")
    parser.add_argument("study", help="a study of config/studies.yaml; the stream of its events")
    parser.add_argument(
        "--take", type=positive, help="the take's number (default: that of config/takes.yaml)"
    )
    parser.add_argument(
        "--plan",
        metavar="FILE",
        help="a plan printed by `nearfree plan`, - for standard input; config/ is not read, and "
        "only msgspec and torch are needed",
    )
    parser.add_argument(
        "--curves",
        type=Path,
        metavar="FILE",
        help="the curve file of a simulated platform (default: that of config.yaml); neither "
        "torch nor a backend is needed",
    )
    parser.add_argument(
        "--untested",
        action="store_true",
        help="allow adapters on a GPU on which the log holds no sealed run of theirs",
    )
    parser.add_argument(
        "--wait",
        type=positive,
        default=0,
        metavar="S",
        help="wait up to S seconds for another process that measures the same take",
    )


def run(args: argparse.Namespace) -> int:
    """Measure, and print the seal."""
    from nearfree.cli.waiting import Bar, patiently
    from nearfree.log.names import check_part

    if args.plan:
        scope, take, plan = check_part(args.platform), args.take or 1, read_plan(args.plan)
        curves = args.curves
    else:
        from nearfree.cli.common import here
        from nearfree.config.plans import Plans

        config, scope = here(args)
        take = args.take or config.take(scope, args.study)
        plan = Plans(config, scope).measure(args.study)
        curves = args.curves or config.curves(scope)
    made = _simulated(args, scope, take, plan, curves) if curves else _real(args, scope, take, plan)
    with Bar(f"{scope}/{args.study}") as bar:
        seal = patiently(args.wait, lambda: made(bar))
    events = sum(part.events for part in seal.segments)
    print(f"{seal.name}: sealed, {events} events in {len(seal.segments)} attempt(s)")
    return 0


Make = Callable[[Callable[[float], None]], "Seal"]
"""A function that makes a take and reports its progress, from 0 to 1."""


def _real(args: argparse.Namespace, scope: str, take: int, plan: "MeasurePlan") -> Make:
    from nearfree.cli.common import need_torch
    from nearfree.log.names import Layout, check_part

    layout, stream = Layout(args.results), check_part(args.study)
    if not plan.curves:
        require_environment(layout, scope, stream, take, plan)
    need_torch()
    from nearfree.measure.run import measure

    return lambda progress: measure(
        layout, scope, stream, take, plan, untested=args.untested, progress=progress
    )


def _simulated(
    args: argparse.Namespace, scope: str, take: int, plan: "MeasurePlan", curves: Path
) -> Make:
    from nearfree.hardware.simulated import read_machine
    from nearfree.log.names import Layout, check_part
    from nearfree.measure.simulated import simulate

    layout, stream, machine = (
        Layout(args.results),
        check_part(args.study),
        read_machine(curves, scope),
    )
    return lambda progress: simulate(
        layout, scope, stream, take, plan, machine=machine, progress=progress
    )


def require_environment(
    layout: "Layout", scope: str, stream: str, take: int, plan: "MeasurePlan | ProfilePlan"
) -> None:
    """Raise LockError if the plan is not sealed and this interpreter is not its environment.

    Without the plan's lock under envs/, nothing is checked.
    """
    from nearfree.backends.environments.lock import FOLDER, require
    from nearfree.log.take import take_name

    sealed = layout.seal(take_name(scope, stream, take, plan)).exists()
    if not sealed and (FOLDER / f"{plan.environment}.lock").exists():
        require(plan.environment)


def read_plan(name: str) -> "MeasurePlan":
    """Return the plan in a file, or in standard input for -; ConfigError if it is not one."""
    import msgspec

    from nearfree.core.plan import MeasurePlan
    from nearfree.errors import ConfigError

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
