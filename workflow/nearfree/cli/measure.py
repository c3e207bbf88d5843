"""`nearfree measure`, `profile` and `campaign`: the commands that make takes."""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from nearfree.cli.common import (
    PLAN_FILE,
    TAKE,
    UNTESTED,
    argument,
    command,
    config_of,
    layout_of,
    local_scope,
    need_torch,
    positive,
    print_seal,
)
from nearfree.cli.deployment_options import refuse_options
from nearfree.cli.engine_options import ENGINE_OPTIONS, FILE_OPTIONS
from nearfree.cli.waiting import ProgressBar, retry_while_busy
from nearfree.errors import ConfigError, NearfreeError, StoppedError, printable

if TYPE_CHECKING:
    from nearfree.core.plan import DecodePlan, MeasurePlan, Order, ProfilePlan
    from nearfree.log.names import Layout
    from nearfree.log.seal import Seal

PLANS_LIMIT = 64 * 2**20
"""Bytes of a file of plans: a project's has some ten thousand."""


@command(
    "measure",
    argument("platform", help="a platform of `here`"),
    argument(
        "study",
        nargs="?",
        help="a study of config/studies.yaml, which is also the stream of its events (none with "
        "--engine)",
    ),
    TAKE,
    PLAN_FILE,
    *ENGINE_OPTIONS,
    argument(
        "--curves",
        type=Path,
        metavar="FILE",
        help="the curve file of a simulated platform (default: that of config.yaml); neither "
        "torch nor a backend is needed",
    ),
    UNTESTED,
    argument(
        "--wait",
        type=positive,
        metavar="S",
        help="wait up to S seconds for another process that measures the same take (default: 0)",
    ),
)
def run_measure(args: argparse.Namespace) -> int:
    """Measure and seal a study's take; a sealed take is not measured again.

    A study whose backend has an environment of its own is measured there. With --engine and
    --model it measures your own GGUF file in that engine, without a study, and prints T(N) and each
    module's share of a forward's time.

    Example: nearfree measure cpu dense_ffn
    """
    if args.engine or args.model:
        from nearfree.cli.measure_engine import measure_file

        return measure_file(args)
    refuse_options(args, FILE_OPTIONS, "without --engine", "name the engine")
    if args.study is None:
        raise ConfigError(
            "no study is named", remedy="Name one of config/studies.yaml, or --engine and --model"
        )
    scope, take, plan, curves = _plan_of(args, args.study)
    curves = args.curves or curves
    python = None if args.plan or curves else _other_python(args, scope, take, plan)
    if python is not None:
        from nearfree.cli.measure_engine import measure_in_environment

        options = _passed_on(args)
        return measure_in_environment(plan, scope, args.study, take, *options, python=python)
    make = _take_maker(args, scope, take, plan, curves)
    with ProgressBar(f"{scope}/{args.study}") as bar:
        seal = retry_while_busy(args.wait or 0, lambda: make(bar))
    print_seal(seal)
    return 0


def _plan_of(
    args: argparse.Namespace, stream: str
) -> "tuple[str, int, MeasurePlan | DecodePlan, Path | None]":
    """Return scope, take and plan of a study, and the curve file of a simulated platform."""
    if args.plan:
        from nearfree.log.names import check_part

        return check_part(args.platform), args.take or 1, read_plan(args.plan), None
    from nearfree.config.plans import Plans

    config, scope = local_scope(args)
    take = args.take or config.take(scope, stream)
    return scope, take, Plans(config, scope).measure(args.study), config.curves(scope)


def _other_python(
    args: argparse.Namespace, scope: str, take: int, plan: "MeasurePlan | DecodePlan"
) -> str | None:
    """Return the interpreter that a take is to be measured with; None if it is this one.

    It is another one where the plan's environment is not the workflow's and not this interpreter:
    the one that config.yaml names for it, else that of the environment that was made. A sealed take
    needs none.

    Raises
    ------
    LockError
        The environment was not made yet.
    """
    from nearfree.backends.environments.lock import FOLDER, WORKFLOW_ENVIRONMENT, differences

    name = plan.environment
    lock = FOLDER / f"{name}.lock"
    if name == WORKFLOW_ENVIRONMENT or not lock.exists() or not differences(lock):
        return None
    if _sealed(layout_of(args), scope, args.study, take, plan):
        return None
    from nearfree.cli.measure_engine import ready_environment

    return config_of(args).site.python.get(name) or str(ready_environment(name).python)


def _passed_on(args: argparse.Namespace) -> list[str]:
    """Return the options of this command that a process in another environment gets, too."""
    options = ["--results", str(args.results), *(["--untested"] if args.untested else [])]
    for name in ("weights", "draft_weights", "prompts", "wait"):
        value = getattr(args, name)
        if value is not None:
            options += [f"--{name.replace('_', '-')}", str(value)]
    return options


Make = Callable[[Callable[[float], None]], "Seal"]
"""A function that makes a take and reports its progress, from 0 to 1."""


def _take_maker(
    args: argparse.Namespace,
    scope: str,
    take: int,
    plan: "MeasurePlan | DecodePlan",
    curves: Path | None,
) -> Make:
    """Return the function that makes a take: of decodes, of a simulated machine, or of this one."""
    from nearfree.core.plan import MeasurePlan
    from nearfree.log.names import check_part

    where = layout_of(args), scope, check_part(args.study), take
    if not isinstance(plan, MeasurePlan):
        from nearfree.config.prompts import read_prompts, shipped_prompts
        from nearfree.measure.decodes import measure_decodes

        hashes = {part.sha256 for part in plan.prompts}
        texts = read_prompts(args.prompts or shipped_prompts())
        prompts = [prompt for prompt in texts if prompt.part.sha256 in hashes]
        files = weights_by_hash(args.weights) | weights_by_hash(args.draft_weights)
        require_environment(*where, plan)
        return lambda progress: measure_decodes(
            *where, plan, prompts=prompts, files=files, progress=progress
        )
    if curves:
        from nearfree.hardware.simulated import read_machine
        from nearfree.measure.simulated import simulate

        machine = read_machine(curves, scope)
        return lambda progress: simulate(*where, plan, machine=machine, progress=progress)
    if not plan.curves:
        require_environment(*where, plan)
    if not plan.weights:
        need_torch()
    from nearfree.measure.run import measure

    weights, untested = weights_by_hash(args.weights), bool(args.untested)
    return lambda progress: measure(
        *where, plan, untested=untested, files=weights, progress=progress
    )


def weights_by_hash(path: Path | None) -> dict[str, Path]:
    """Return a weights file by its SHA-256, empty for None; ConfigError if it does not exist."""
    from nearfree.gguf.reader import weights_sha256

    return {} if path is None else {weights_sha256(path): path}


def require_environment(
    layout: "Layout",
    scope: str,
    stream: str,
    take: int,
    plan: "MeasurePlan | DecodePlan | ProfilePlan",
) -> None:
    """Raise LockError if the take is not sealed and this interpreter is not its plan's environment.

    Nothing is checked where envs/ has no lock of the environment.
    """
    from nearfree.backends.environments.lock import FOLDER, require

    sealed = _sealed(layout, scope, stream, take, plan)
    if not sealed and (FOLDER / f"{plan.environment}.lock").exists():
        require(plan.environment)


def _sealed(
    layout: "Layout",
    scope: str,
    stream: str,
    take: int,
    plan: "MeasurePlan | DecodePlan | ProfilePlan",
) -> bool:
    from nearfree.log.take import take_name

    return layout.seal(take_name(scope, stream, take, plan)).exists()


def _plan_bytes(name: str) -> bytes:
    """Return the bytes of a file of plans, or of standard input for -."""
    if name == "-":
        raw = sys.stdin.buffer.read(PLANS_LIMIT + 1)
    else:
        with Path(name).open("rb") as file:
            raw = file.read(PLANS_LIMIT + 1)
    if len(raw) > PLANS_LIMIT:
        raise ConfigError(
            f"{name} has more than {PLANS_LIMIT} bytes, as no plan has",
            remedy="Give what `nearfree plan` prints",
        )
    return raw


def read_plan(name: str) -> "MeasurePlan | DecodePlan":
    """Return the plan in a file, or in standard input for -; ConfigError if it is not a plan."""
    import msgspec

    from nearfree.core.plan import DecodePlan, MeasurePlan

    try:
        return msgspec.json.decode(_plan_bytes(name), type=MeasurePlan | DecodePlan)
    except OSError as error:
        raise ConfigError(
            f"{name} cannot be read: {error.strerror}", remedy="Name a file, or - for a pipe"
        ) from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ConfigError) as error:
        raise ConfigError(
            f"{name} is not a plan: {error}", remedy="Give the output of `nearfree plan`"
        ) from error


@command(
    "profile",
    argument("platform", help="a platform of `here` with an NVIDIA GPU"),
    argument("study", help="a study of config/studies.yaml; its stream is STUDY_profile"),
    TAKE,
    argument("--forwards", type=positive, default=1, help="forwards per N (default: 1)"),
    PLAN_FILE,
    argument("--inside", metavar="FILE", type=Path, help="only run forwards; for `ncu` to call"),
)
def run_profile(args: argparse.Namespace) -> int:
    """Profile a study's kernels with Nsight Compute: FLOP, DRAM bytes and utilisation at each N.

    Example: nearfree profile h200 dense_ffn
    """
    need_torch()
    from nearfree.measure.nsight import profile_file, record

    if args.inside:
        profile_file(args.inside)
        return 0
    from nearfree.core.plan import MODULES_SUFFIX, PROFILE_SUFFIX, MeasurePlan, ProfilePlan
    from nearfree.log.names import check_part

    scope, take, plan, _ = _plan_of(args, f"{args.study}{PROFILE_SUFFIX}")
    if not isinstance(plan, MeasurePlan):
        raise ConfigError("a plan of decodes is not profiled", remedy="Give one of forwards")
    if plan.models or plan.weights:
        raise ConfigError(
            f"{args.study} measures a whole model, which has too many kernels to profile",
            remedy=f"Profile its isolated modules, where it has any: {args.study}{MODULES_SUFFIX}",
        )
    profiled = ProfilePlan(sweeps=plan.sweeps, environment=plan.environment, forwards=args.forwards)
    layout, study = layout_of(args), check_part(args.study)
    require_environment(layout, scope, f"{study}{PROFILE_SUFFIX}", take, profiled)
    seal = record(layout, scope, study, take, profiled)
    print_seal(seal)
    return 0


@command(
    "campaign",
    argument("orders", help="the order file, - for standard input"),
    argument(
        "--deadline",
        type=positive,
        metavar="S",
        help="start no take after S seconds (default: no limit)",
    ),
    UNTESTED,
)
def run_campaign(args: argparse.Namespace) -> int:
    """Make every take of an order file, one after the other, on a machine without the workflow.

    `nearfree plan PLATFORM` prints the file elsewhere; this machine needs only msgspec, torch and,
    with a GPU, nvidia-ml-py. Sealed takes are skipped. After a failure, which is reported, the next
    take follows. No take starts after the deadline or SIGTERM. Copy the results root back, and run
    `nearfree adopt PLATFORM` there.

    Example: nearfree campaign orders --deadline 3600
    """
    from nearfree.core.plan import read_orders

    start = time.monotonic()
    orders = read_orders(_plan_bytes(args.orders).decode(errors="replace"), args.orders)
    need_torch()
    from nearfree.measure.visits import no_progress, stoppable

    failed = 0
    with stoppable(no_progress) as go_on:
        for number, order in enumerate(orders):
            go_on(number / len(orders))
            if args.deadline and time.monotonic() - start > args.deadline:
                left = ", ".join(order.stream for order in orders[number:])
                print(f"the deadline of {args.deadline} s is over; left: {left}", flush=True)
                break
            failed |= _run_order(layout_of(args), order, untested=bool(args.untested))
    return failed


def _run_order(layout: "Layout", order: "Order", *, untested: bool) -> int:
    """Make the take of an order and print it, or print its error; return the exit code."""
    try:
        print(_make_order(layout, order, untested=untested), flush=True)
    except StoppedError:
        raise
    except NearfreeError as error:
        text = printable(f"{order.scope}/{order.stream}: {error}")
        print(f"nearfree: error: {text}", file=sys.stderr)
    except Exception:  # noqa: BLE001 (a backend that never ran here may raise anything)
        print(f"nearfree: error: {order.scope}/{order.stream}:", file=sys.stderr)
        import traceback

        traceback.print_exc()
    else:
        return 0
    return 2


def _make_order(layout: "Layout", order: "Order", *, untested: bool) -> str:
    from nearfree.core.plan import ForetellPlan, ProbePlan
    from nearfree.hardware.probe import probe
    from nearfree.measure.run import measure

    if isinstance(order.plan, ProbePlan):
        seal = probe(layout, order.scope, order.device, order.take, order.plan, names=order.names)
    elif isinstance(order.plan, ForetellPlan):
        from nearfree.preregister.record import foretell

        seal = foretell(layout, order.scope, order.stream, order.take, order.plan)
    else:
        with ProgressBar(f"{order.scope}/{order.stream}") as bar:
            take_id = (order.scope, order.stream, order.take)
            seal = measure(layout, *take_id, order.plan, untested=untested, progress=bar)
    return f"{seal.name}: sealed, {sum(part.events for part in seal.segments)} events"
