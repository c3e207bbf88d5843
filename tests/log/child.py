"""A process for the tests to kill, starve and race: `child.py JOB ROOT ...`.

Every durable event is acknowledged on standard output as `round n`.
"""

import os
import resource
import sys
from pathlib import Path

from conftest import latencies, make_latency, make_plan, make_started, measure_rounds, write_take
from nearfree.core.plan import MeasurePlan
from nearfree.errors import LogError, NearfreeError
from nearfree.log.names import Layout
from nearfree.log.take import OpenTake, ensure_take, take_name
from nearfree.measure.rounds import whole_rounds

LONG = make_plan(rounds=40)
"""What `measure` appends: 120 observations."""


def say(*words: object) -> None:
    """Print one line at once."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def acknowledged(take: OpenTake) -> float:
    """Append what a plan still lacks; acknowledge each event when it is durable."""
    assert isinstance(take.plan, MeasurePlan)
    positions = take.plan.sweeps[0].positions
    for number in range(len(latencies(take)) // len(positions), take.plan.protocol.rounds):
        for n in positions:
            take.append(make_latency(number, n))
            say(number, n)
    return 0.5


def measure(root: Path) -> None:
    """Make sure that the long plan is sealed."""
    write_take(Layout(root), plan=LONG, work=acknowledged)


def starve(root: Path, limit: str) -> None:
    """Do the same where no file may grow beyond a limit, and try to go on after the refusal."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), resource.RLIM_INFINITY))

    def stubborn(take: OpenTake) -> float:
        try:
            return acknowledged(take)
        except NearfreeError as error:
            say("first", type(error).__name__)
            try:
                take.append(make_latency(99))
            except LogError as again:
                say("then", type(again).__name__)
            raise

    try:
        write_take(Layout(root), plan=LONG, work=stubborn)
    except NearfreeError as error:
        say("ended", type(error).__name__)


def hold(root: Path) -> None:
    """Measure a take and keep it open until the parent closes the pipe."""
    plan = make_plan()
    take = OpenTake(Layout(root), take_name("cpu", "dense", 1, plan), plan, keep=whole_rounds)
    take.start(make_started(plan))
    measure_rounds(take)
    say("open")
    sys.stdin.read()


def append(root: Path, number: str) -> None:
    """Write a take for each line the parent sends, and acknowledge each that is sealed."""
    say("ready")
    sys.stdin.readline()
    plan = make_plan()
    name = take_name("cpu", "dense", int(number), plan)
    try:
        ensure_take(
            Layout(root),
            name,
            plan,
            lambda n: make_started(plan, n),
            measure_rounds,
            keep=whole_rounds,
        )
    except LogError as error:
        say(type(error).__name__)
    else:
        say("sealed")


if __name__ == "__main__":
    job, root, *rest = sys.argv[1:]
    {"measure": measure, "starve": starve, "hold": hold, "append": append}[job](Path(root), *rest)
