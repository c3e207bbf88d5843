"""Waiting for another writer of the same take."""

import pytest
from nearfree.cli.patience import patiently
from nearfree.errors import BusyError, EvidenceError


class Maker:
    """Busy some times, then done."""

    def __init__(self, busy: int) -> None:
        self.left = busy

    def __call__(self) -> str:
        """Raise BusyError while another holds it."""
        if self.left:
            self.left -= 1
            raise BusyError("held", remedy="wait")
        return "made"


def test_the_other_writer_is_waited_for(capsys, monkeypatch) -> None:
    """It is tried again until the other is gone, and the user is told once."""
    monkeypatch.setattr("nearfree.cli.patience._PAUSE_S", 0.01)
    assert patiently(60, Maker(3)) == "made"
    assert capsys.readouterr().err == "held; waiting up to 60 s\n"


def test_without_patience_it_fails_at_once(capsys) -> None:
    """Zero seconds mean one try, and no word of waiting."""
    maker = Maker(1)
    with pytest.raises(BusyError):
        patiently(0, maker)
    assert maker() == "made"
    assert capsys.readouterr().err == ""


def test_patience_ends(monkeypatch) -> None:
    """After the time is over, the error stands."""
    monkeypatch.setattr("nearfree.cli.patience._PAUSE_S", 0.01)
    with pytest.raises(BusyError):
        patiently(0.05, Maker(10_000))


def test_other_mistakes_are_not_waited_for() -> None:
    """Only another writer is worth waiting for."""

    def fail() -> None:
        raise EvidenceError("no", remedy="none")

    with pytest.raises(EvidenceError):
        patiently(60, fail)
