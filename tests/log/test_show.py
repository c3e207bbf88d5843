"""Showing the log: takes, the events of a take, one event in full."""

from pathlib import Path

import pytest
from conftest import make_latency, make_plan, write_payloads, write_take
from msgspec import json
from nearfree.errors import EvidenceError, LogError
from nearfree.log.names import Layout
from nearfree.log.retract import retract
from nearfree.log.segment import SegmentWriter
from nearfree.log.show import show
from nearfree.log.take import take_name

PLAN = make_plan()
NAME = take_name("cpu", "dense", 1, PLAN)
OTHER = take_name("cpu", "dense", 2, PLAN)


@pytest.fixture
def layout(layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Layout:
    """Write two takes, and change into a folder outside of any repository."""
    monkeypatch.chdir(tmp_path)
    write_payloads(layout, NAME, PLAN, make_latency(0, 1), make_latency(0, 2))
    write_take(layout, take=2)
    return layout


def test_the_whole_log_is_its_takes(layout: Layout) -> None:
    """Without a name all takes are shown, sealed ones first, and what became of them."""
    write_take(layout, scope="h20")
    SegmentWriter(layout, take_name("cpu", "moe", 1, PLAN), 1).close()
    retraction = retract(layout, str(NAME), "wrong clock").name
    assert list(show(layout)) == [
        f"{NAME}  complete  4 events  1 attempt(s)  RETRACTED",
        f"{OTHER}  complete  11 events  1 attempt(s)",
        f"{retraction}  complete  3 events  1 attempt(s)",
        f"h20/dense/1-{NAME.plan8}  complete  11 events  1 attempt(s)",
        f"cpu/moe/1-{NAME.plan8}  interrupted  attempt(s) [1]",
    ]


def test_a_scope_is_its_takes(layout: Layout) -> None:
    """With a scope only its takes are shown; a scope without takes is reported as empty."""
    write_take(layout, scope="h20")
    assert [line.split()[0] for line in show(layout, "cpu")] == [str(NAME), str(OTHER)]
    assert list(show(layout, "h200")) == ["no sealed takes in h200"]
    assert list(show(Layout(layout.root / "none"))) == ["no sealed takes"]


def test_a_take_is_its_events(layout: Layout) -> None:
    """With a take its events are counted by type and listed, retracted ones marked."""
    retract(layout, f"{NAME}.1#3", "wrong clock")
    lines = list(show(layout, str(NAME)))
    assert [line.split() for line in lines[:3]] == [
        ["2", "nearfree.latency.measured.v1"],
        ["1", "nearfree.run.finished.v1"],
        ["1", "nearfree.run.started.v1"],
    ]
    assert [line.split()[0] for line in lines[3:]] == [f"{NAME}.1#{n}" for n in (1, 2, 3, 4)]
    assert ["RETRACTED" in line for line in lines[3:]] == [False, False, True, False]


def test_a_retracted_take_shows_it(layout: Layout) -> None:
    """Each event of a retracted take is marked as retracted."""
    retract(layout, str(NAME), "wrong clock")
    lines = list(show(layout, str(NAME)))
    assert all("RETRACTED" in line for line in lines[3:])


def test_an_event_is_shown_in_full(layout: Layout) -> None:
    """With an event its raw line is shown, laid out, sealed or not."""
    with SegmentWriter(layout, NAME, 2) as writer:
        writer.append(make_latency(7, 4))
    for event, n in ((f"{NAME}.1#3", 2), (f"{NAME}.2#1", 4)):
        (text,) = show(layout, event)
        shown = json.decode(text)
        assert f"{shown['source']}#{shown['id']}" == event
        assert shown["data"]["n"] == n
        assert len(text.splitlines()) > 20


@pytest.mark.parametrize(
    "name",
    [
        f"{NAME}.1#9",
        f"{NAME}#1",
        f"{NAME}.9#1",
        f"{NAME}.x#1",
        f"{NAME}.1#x",
        "cpu/dense/3-0123abcd",
    ],
)
def test_what_is_not_there_is_refused(layout: Layout, name: str) -> None:
    """An event or a take that does not exist is refused by name."""
    with pytest.raises(EvidenceError, match=r"no (event|sealed take) cpu/dense"):
        list(show(layout, name))


@pytest.mark.parametrize("name", ["CPU", "..", "cpu/dense", "cpu/dense/x#1", "#1", "a/b#1"])
def test_text_of_another_form_is_refused(layout: Layout, name: str) -> None:
    """Text that cannot name an event gives a LogError with the accepted forms."""
    with pytest.raises(LogError, match=r"cannot name a scope|is not the name of a take"):
        list(show(layout, name))


def test_what_a_terminal_would_act_on_is_escaped(layout: Layout) -> None:
    """One event in full is the same JSON, whatever its texts hold."""
    gone = retract(layout, f"{NAME}.1#3", "wrong \u202eclock\x9b31m")
    (shown,) = show(layout, f"{gone.name}.1#2")
    assert "\\u202eclock\\u009b31m" in shown
    assert json.decode(shown)["data"]["reason"] == "wrong \u202eclock\x9b31m"
