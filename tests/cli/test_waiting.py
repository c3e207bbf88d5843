"""Waiting: the bar shows the share and the time left; another writer is waited for."""

import sys

import pytest
from nearfree.cli.waiting import ProgressBar, retry_while_busy
from nearfree.errors import BusyError, EvidenceError


class Maker:
    """Raise BusyError a number of times, then return."""

    def __init__(self, busy: int) -> None:
        self.left = busy

    def __call__(self) -> str:
        """Raise BusyError while another holds it."""
        if self.left:
            self.left -= 1
            raise BusyError("held", remedy="wait")
        return "made"


def test_another_writer_is_waited_for(capsys, monkeypatch) -> None:
    """It is tried again until the other writer is gone, and one message is printed."""
    monkeypatch.setattr("nearfree.cli.waiting._PAUSE_S", 0.01)
    assert retry_while_busy(60, Maker(3)) == "made"
    assert capsys.readouterr().err == "held; waiting up to 60 s\n"


def test_without_a_waiting_time_it_fails_at_once(capsys) -> None:
    """Zero seconds mean one try, and no message of waiting."""
    maker = Maker(1)
    with pytest.raises(BusyError):
        retry_while_busy(0, maker)
    assert maker() == "made"
    assert capsys.readouterr().err == ""


def test_waiting_ends_with_the_error(monkeypatch) -> None:
    """After the waiting time, the error is raised."""
    monkeypatch.setattr("nearfree.cli.waiting._PAUSE_S", 0.01)
    with pytest.raises(BusyError):
        retry_while_busy(0.05, Maker(10_000))


def test_other_errors_are_not_waited_for() -> None:
    """Only another writer is waited for."""

    def fail() -> None:
        raise EvidenceError("no", remedy="none")

    with pytest.raises(EvidenceError):
        retry_while_busy(60, fail)


def test_a_bar_shows_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a quarter in ten seconds, thirty are left."""
    times = iter([100.0, 110.0])
    monkeypatch.setattr("nearfree.cli.waiting.time.monotonic", lambda: next(times))
    line = ProgressBar("cpu/dense").line(0.25)
    assert line.startswith("cpu/dense [########---")
    assert line.endswith(" 25%, 30 s left")


def test_no_bar_is_drawn_outside_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Into a file or a pipe no bar is drawn."""
    with ProgressBar("cpu/dense") as bar:
        bar(0.5)
    assert capsys.readouterr() == ("", "")


def test_a_bar_on_a_terminal_is_removed_at_the_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a terminal the bar is drawn in place and gone afterwards; a dumb one has none."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "dumb")
    with ProgressBar("cpu/dense") as bar:
        bar(1.0)
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("TERM", "xterm")
    with ProgressBar("cpu/dense") as bar:
        bar(1.0)
    out, err = capsys.readouterr()
    assert out == ""
    assert "100%, 0 s left" in err
    assert err.endswith("\r\x1b[K")
