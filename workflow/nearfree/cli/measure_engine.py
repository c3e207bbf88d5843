"""`nearfree measure --engine`: a user's GGUF file, measured in a real engine."""

import argparse
import signal
import subprocess
from typing import TextIO

from msgspec import json

from nearfree.backends.builds import builds, locked
from nearfree.backends.environments.lock import WORKFLOW_ENVIRONMENT, Environment
from nearfree.cli.common import config_of, layout_of, print_seal
from nearfree.cli.deployment_options import refuse_options
from nearfree.cli.engine_options import CONTEXT, ROUNDS, STUDY_OPTIONS
from nearfree.cli.waiting import ProgressBar
from nearfree.core.plan import DecodePlan, MeasurePlan
from nearfree.core.protocols import Paired
from nearfree.engines.threads import refuse_threads
from nearfree.errors import ConfigError, LockError
from nearfree.hardware.identity import known_probe
from nearfree.hardware.platforms import resolve
from nearfree.log.curves import curves
from nearfree.log.evidence import read_take
from nearfree.log.take import take_name
from nearfree.measure.engine_files import ensure_library
from nearfree.measure.own_file import own_file
from nearfree.measure.run import measure
from nearfree.measure.visits import on_sigterm, stop_error
from nearfree.show.text.engine import engine_text

_SECONDS_MAX = 300.0
"""Time in the forwards of one setting, after which the pairs so far must do."""


def measure_file(args: argparse.Namespace) -> int:
    """Measure a file in an engine; print T(N) and each module's share of the time."""
    _check(args)

    config = config_of(args)
    scope = resolve(config.platforms, args.platform)
    own = own_file(
        args.engine,
        args.model,
        scope=scope,
        release=args.release,
        batch=args.batch or (1,),
        context=args.context or (CONTEXT,),
        threads=args.threads or (1,),
        repack=(not args.no_repack,),
        kv_dtype=args.kv_dtype,
        positions=args.positions,
        protocol=Paired(rounds=args.rounds or ROUNDS, retries=0, seconds_max=_SECONDS_MAX),
    )
    layout, take = layout_of(args), args.take or 1
    name = take_name(scope, own.stream, take, own.plan)
    if not layout.seal(name).exists():
        refuse_threads(args.threads or (1,))
        release = next(sweep.setting.release or "" for sweep in own.plan.sweeps)
        ensure_library(args.engine, release)
        ensure_probe(args, scope)
    if own.plan.environment == WORKFLOW_ENVIRONMENT or layout.seal(name).exists():
        with ProgressBar(f"{scope}/{own.stream}") as bar:
            seal = measure(layout, scope, own.stream, take, own.plan, files=own.files, progress=bar)
        print_seal(seal)
    elif code := measure_in_environment(
        *(own.plan, scope, own.stream, take, "--results", str(args.results)),
        *("--weights", str(args.model)),
    ):
        return code
    sealed = read_take(layout, name)
    for line in engine_text(sealed, curves([sealed]), config.site.epsilon):
        print(line)
    return 0


def measure_in_environment(
    plan: MeasurePlan | DecodePlan,
    scope: str,
    stream: str,
    take: int,
    *options: str,
    out: TextIO | None = None,
    python: str | None = None,
) -> int:
    """Run `nearfree measure` in a plan's environment, and return its exit code.

    SIGTERM is forwarded, so that the process ends after a complete round, as it would here.

    Parameters
    ----------
    options
        Options of `nearfree measure` other than the plan and its take.
    out
        The standard output of the process (default: that of this program).
    python
        The environment's interpreter (default: that of the environment that was made).

    Raises
    ------
    ConfigError, LockError
        As in `ready_environment`.
    StoppedError
        SIGTERM killed the process before it could report.
    """
    interpreter = python or str(ready_environment(plan.environment).python)
    command = [interpreter, "-m", "nearfree", "measure", scope, stream]
    command += ["--take", str(take), "--plan", "-", *options]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=out) as process:
        try:
            with on_sigterm(process.send_signal):
                process.communicate(json.encode(plan))
        except BaseException:
            process.kill()
            raise
    if process.returncode == -signal.SIGTERM:
        raise stop_error()
    return process.returncode


def ready_environment(name: str) -> Environment:
    """Return an environment by its name, if it is installed.

    Raises
    ------
    ConfigError
        No lock has this name, or this folder has no locks.
    LockError
        The environment was not made yet.
    """
    environment = Environment(name)
    if not environment.complete:
        raise LockError(
            f"the environment {name} of this release is not installed",
            remedy=f"Run `nearfree environment make {name}` once; it takes minutes",
        )
    return environment


def _check(args: argparse.Namespace) -> None:
    """Raise ConfigError for options that exclude each other, or an unknown engine."""
    missing = [f"--{name}" for name in ("engine", "model") if not getattr(args, name)]
    if missing:
        raise ConfigError(
            f"{' and '.join(missing)} is missing",
            remedy="Give both, as in: --engine llama_cpp --model FILE.gguf",
        )
    if args.study or args.plan or args.curves:
        raise ConfigError(
            "--engine measures your own file, and a study, plan or curve file is given, too",
            remedy="Leave out one of them",
        )
    refuse_options(args, STUDY_OPTIONS, "with --engine", "measure a study")
    if not builds(args.engine):
        raise ConfigError(
            f"{args.engine!r:.60} is not an engine that nearfree runs",
            remedy=f"Choose {' or '.join(locked())}",
        )


def ensure_probe(args: argparse.Namespace, scope: str) -> None:
    """Probe the platform unless it was probed before: every take needs its machine's facts."""
    if known_probe(layout_of(args), scope) is None:
        from nearfree.cli.machine import run_probe

        print(f"{scope} was not probed yet: it is probed first", flush=True)
        probe_args = argparse.Namespace(**{**vars(args), "take": None})
        run_probe(probe_args)
