"""SIGTERM, which a batch system sends before it takes a job away."""

import os
import signal
import subprocess
import sys
from random import Random

import pytest
from conftest import make_plan
from msgspec import structs
from nearfree.core.protocols import Adaptive, Interleaved, Paired, Paper, Timing
from nearfree.errors import StoppedError
from nearfree.log.events import LatencyMeasured
from nearfree.log.names import Layout
from nearfree.log.reader import read_segment
from nearfree.measure.visits import stoppable

from measure.machines import TICK, FakeKernel, FakeTimer, take


def test_a_round_that_runs_is_finished_first() -> None:
    """After SIGTERM the next durable round ends the take; before it, nothing happens."""
    seen: list[float] = []
    with stoppable(seen.append) as stop:
        stop(0.2)
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(StoppedError, match="SIGTERM"):
            stop(0.4)
    assert seen == [0.2, 0.4]


@pytest.mark.parametrize(
    ("protocol", "rounds"),
    [
        (Interleaved(rounds=3, forwards=1), 1),
        (Paper(rounds=3, forwards=1, warmup=0), 1),
        (Paired(rounds=3, look_every=3, forwards=1), 1),
        (Adaptive(rounds=3, looks=(4,)), 1),
        (Adaptive(rounds=3, looks=(4,)), 5),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_every_protocol_ends_after_the_round_that_runs(
    layout: Layout, protocol: Timing, rounds: int
) -> None:
    """A take stopped amid a round completes this round and begins no other."""
    plan = structs.replace(make_plan(positions=(1, 2, 4)), protocol=protocol)
    progress: list[float] = []

    def strike(share: float) -> None:
        progress.append(share)
        if len(progress) == rounds:
            os.kill(os.getpid(), signal.SIGTERM)

    noise = Random(1)  # noqa: S311 (noise, no secret)
    timer = FakeTimer(lambda _n: TICK * noise.uniform(0.8, 1.6))
    with stoppable(strike) as told_or_stopped, pytest.raises(StoppedError):
        take(layout, plan, FakeKernel(), timer, told_or_stopped)
    (name,) = layout.takes("cpu", sealed=False)
    segment = read_segment(layout.segment(name, 1), name.segment(1))
    rounds_kept = {e.data.round for e in segment.events if isinstance(e.data, LatencyMeasured)}
    assert rounds_kept == set(range(rounds))
    assert progress == sorted(progress)
    assert progress[-1] < 1


def test_the_last_round_is_sealed_all_the_same() -> None:
    """A take that is complete is not thrown away for a signal."""
    with stoppable(lambda _share: None) as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        stop(1.0)


def test_the_handler_of_before_is_back_afterwards() -> None:
    """Outside of a take, SIGTERM does what it did."""
    before = signal.getsignal(signal.SIGTERM)
    with stoppable(lambda _share: None):
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_second_signal_ends_the_program() -> None:
    """Who insists is obeyed at once."""
    code = (
        "import os, signal\n"
        "from nearfree.measure.visits import stoppable\n"
        "with stoppable(lambda share: None):\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    print('still here')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (-signal.SIGTERM, b"")


def test_a_signal_is_handed_on_to_who_noted_it_before() -> None:
    """A signal during a take that is sealed anyway reaches the enclosing handler."""
    with stoppable(lambda _share: None) as around:
        with stoppable(lambda _share: None) as stop:
            os.kill(os.getpid(), signal.SIGTERM)
            stop(1.0)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        with pytest.raises(StoppedError, match="SIGTERM"):
            around(0.5)
