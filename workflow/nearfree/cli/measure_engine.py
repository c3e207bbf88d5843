"""Measuring a GGUF file of the user's in a real engine, and what the take says."""

import argparse
from typing import TYPE_CHECKING

from nearfree.backends.builds import builds, locked
from nearfree.backends.environments.lock import OWN
from nearfree.cli.common import config_of, layout_of, print_seal
from nearfree.cli.deployment_options import refuse_options
from nearfree.cli.engine_options import CONTEXT, OF_A_STUDY, ROUNDS
from nearfree.cli.waiting import Bar
from nearfree.errors import ConfigError

if TYPE_CHECKING:
    from typing import TextIO

    from nearfree.backends.environments.lock import Environment
    from nearfree.core.plan import DecodePlan, MeasurePlan

_SECONDS_MAX = 300.0
"""Inside the forwards of one setting, after which what its first pairs said has to do."""


def run_engine(args: argparse.Namespace) -> int:
    """Measure a file in an engine, and print T(N) and where the time goes."""
    _check(args)
    from nearfree.core.protocols import Paired
    from nearfree.engines.threads import refuse_threads
    from nearfree.hardware.platforms import resolve
    from nearfree.log.curves import curves
    from nearfree.log.evidence import read_take
    from nearfree.log.take import take_name
    from nearfree.measure.engine_files import ensure_library
    from nearfree.measure.own_file import own_file
    from nearfree.measure.run import measure
    from nearfree.show.text.engine import engine_text

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
        positions=args.positions,
        protocol=Paired(rounds=args.rounds or ROUNDS, retries=0, seconds_max=_SECONDS_MAX),
    )
    layout, take = layout_of(args), args.take or 1
    name = take_name(scope, own.stream, take, own.plan)
    if not layout.seal(name).exists():
        refuse_threads(args.threads or (1,))
        release = next(sweep.setting.release or "" for sweep in own.plan.sweeps)
        ensure_library(args.engine, release)
        probed(args, scope)
    if own.plan.environment == OWN or layout.seal(name).exists():
        with Bar(f"{scope}/{own.stream}") as bar:
            seal = measure(layout, scope, own.stream, take, own.plan, files=own.files, progress=bar)
        print_seal(seal)
    elif code := elsewhere(
        *(own.plan, scope, own.stream, take, "--results", str(args.results)),
        *("--weights", str(args.model)),
    ):
        return code
    sealed = read_take(layout, name)
    for line in engine_text(sealed, curves([sealed]), config.site.epsilon):
        print(line)
    return 0


def elsewhere(
    plan: "MeasurePlan | DecodePlan",
    scope: str,
    stream: str,
    take: int,
    *options: str,
    out: "TextIO | None" = None,
) -> int:
    """Measure in the environment that a plan asks for, and return what its command ends with.

    SIGTERM is passed on, so that it ends as it would here: after a whole round.

    Parameters
    ----------
    options
        Of `nearfree measure`, besides those that name the plan and its take.
    out
        Where its output goes, if not to this program's.

    Raises
    ------
    ConfigError, LockError
        As `made_environment`.
    StoppedError
        SIGTERM ended it before it could say so.
    """
    import signal
    import subprocess

    from msgspec import json

    from nearfree.measure.visits import on_sigterm, stopped

    environment = made_environment(plan.environment)
    command = [str(environment.python), "-m", "nearfree", "measure", scope, stream]
    command += ["--take", str(take), "--plan", "-", *options]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=out) as measuring:
        try:
            with on_sigterm(measuring.send_signal):
                measuring.communicate(json.encode(plan))
        except BaseException:
            measuring.kill()
            raise
    if measuring.returncode == -signal.SIGTERM:
        raise stopped()
    return measuring.returncode


def made_environment(name: str) -> "Environment":
    """Return the environment of a name.

    Raises
    ------
    ConfigError
        There is none, or none in this folder.
    LockError
        It was not made yet.
    """
    from nearfree.backends.environments.lock import Environment
    from nearfree.errors import LockError

    environment = Environment(name)
    if not environment.complete:
        raise LockError(
            f"the environment {name} of this release is not made",
            remedy=f"Run `nearfree environment make {name}`: it takes minutes, once",
        )
    return environment


def _check(args: argparse.Namespace) -> None:
    """Raise ConfigError for options that do not go together, or an engine that is not known."""
    lacking = [f"--{name}" for name in ("engine", "model") if not getattr(args, name)]
    if lacking:
        raise ConfigError(
            f"{' and '.join(lacking)} is missing",
            remedy="Give both, as in: --engine llama_cpp --model FILE.gguf",
        )
    if args.study or args.plan or args.curves:
        raise ConfigError(
            "--engine measures a file of yours, and a study, plan or curve file another thing",
            remedy="Leave either out",
        )
    refuse_options(args, OF_A_STUDY, "with --engine", "measure a study")
    if not builds(args.engine):
        raise ConfigError(
            f"{args.engine!r:.60} is no engine that is driven here",
            remedy=f"Choose {' or '.join(locked())}",
        )


def probed(args: argparse.Namespace, scope: str) -> None:
    """Probe the platform if it never was: a take is of a machine that is known."""
    from nearfree.hardware.identity import known_probe

    if known_probe(layout_of(args), scope) is None:
        from nearfree.cli.machine import run_probe

        print(f"{scope} is new: it is probed first", flush=True)
        probing = argparse.Namespace(**{**vars(args), "take": None})
        run_probe(probing)
