"""The progress bar: what it says, and where it keeps still."""

import sys

import pytest
from nearfree.cli.progress import Bar


def test_a_bar_tells_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a quarter in ten seconds, thirty are left."""
    now = iter([100.0, 110.0])
    monkeypatch.setattr("nearfree.cli.progress.time.monotonic", lambda: next(now))
    line = Bar("cpu/dense").line(0.25)
    assert line.startswith("cpu/dense [########---")
    assert line.endswith(" 25%, 30 s left")


def test_nothing_is_drawn_where_nobody_watches(capsys: pytest.CaptureFixture[str]) -> None:
    """Into a file or a pipe no bar is drawn."""
    with Bar("cpu/dense") as bar:
        bar(0.5)
    assert capsys.readouterr() == ("", "")


def test_a_watched_bar_is_wiped_at_the_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a terminal the bar is drawn in place and gone afterwards."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with Bar("cpu/dense") as bar:
        bar(1.0)
    out, err = capsys.readouterr()
    assert out == ""
    assert "100%, 0 s left" in err
    assert err.endswith("\r\x1b[K")
