"""SIGTERM, which a batch system sends before it takes a job away."""

import os
import signal
import subprocess
import sys

import pytest
from nearfree.errors import StoppedError
from nearfree.measure.visits import stoppable


def test_a_round_that_runs_is_finished_first() -> None:
    """After SIGTERM the next durable round ends the take; before it, nothing happens."""
    seen: list[float] = []
    with stoppable(seen.append) as told:
        told(0.2)
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(StoppedError, match="SIGTERM"):
            told(0.4)
    assert seen == [0.2, 0.4]


def test_the_last_round_is_sealed_all_the_same() -> None:
    """A take that is complete is not thrown away for a signal."""
    with stoppable(lambda _share: None) as told:
        os.kill(os.getpid(), signal.SIGTERM)
        told(1.0)


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
    """What a take that was sealed all the same did not tell, the one around it does."""
    with stoppable(lambda _share: None) as around:
        with stoppable(lambda _share: None) as told:
            os.kill(os.getpid(), signal.SIGTERM)
            told(1.0)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        with pytest.raises(StoppedError, match="SIGTERM"):
            around(0.5)
