"""Retractions: a new event declares an old one invalid."""

import re
from pathlib import Path

import pytest
from conftest import make_plan, write_take
from nearfree.errors import EvidenceError, LogError
from nearfree.log.events import ObservationRetracted
from nearfree.log.evidence import read_scope, read_take
from nearfree.log.names import Layout
from nearfree.log.retract import retract
from nearfree.log.segment import SegmentWriter
from nearfree.log.take import take_name

from log.faults import damage

NAME = take_name("cpu", "dense", 1, make_plan())


@pytest.fixture
def layout(layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Layout:
    """Write a take, and change into a folder outside of any repository."""
    monkeypatch.chdir(tmp_path)
    write_take(layout)
    return layout


def files(layout: Layout) -> dict[Path, bytes]:
    """Return every file of the take's stream."""
    return {path: path.read_bytes() for path in (layout.events / "cpu" / "dense").iterdir()}


@pytest.mark.parametrize("target", [f"{NAME}.1#3", str(NAME)], ids=["event", "take"])
def test_a_retraction_leaves_the_target_out(layout: Layout, target: str) -> None:
    """A retracted event or take is no evidence any more; the bytes that held it stay."""
    before = files(layout)
    seal = retract(layout, target, "the clock was wrong")
    assert files(layout) == before
    left = {event.event_id for take in read_scope(layout, "cpu") for event in take.events}
    assert not any(i == target or i.startswith(f"{target}.") for i in left)
    (data,) = (
        event.data
        for event in read_take(layout, seal.name).events
        if isinstance(event.data, ObservationRetracted)
    )
    assert data == ObservationRetracted(target=target, reason="the clock was wrong")
    assert damage(layout.root) == []


def test_a_private_reason_is_refused_before_anything_is_written(layout: Layout) -> None:
    """A URL in a reason leaves no interrupted take behind: nothing of it would be kept."""
    with pytest.raises(LogError, match=r"the reason would hold '://'.*no URL"):
        retract(layout, str(NAME), "see https://example.org/1")
    assert layout.takes("cpu") == [NAME]
    assert layout.takes("cpu", sealed=False) == []
    assert damage(layout.root) == []


def test_retractions_are_numbered(layout: Layout) -> None:
    """Each retraction of a scope is a take, numbered from one."""
    seals = [retract(layout, f"{NAME}.1#{number}", "noise") for number in (2, 3, 4)]
    assert [(s.scope, s.stream, s.take) for s in seals] == [
        ("cpu", "retracted", number) for number in (1, 2, 3)
    ]
    events = next(t for t in read_scope(layout, "cpu") if t.name == NAME).events
    assert [event.id for event in events] == ["1", "5", "6", "7", "8", "9", "10", "11"]


@pytest.mark.parametrize("first", [f"{NAME}.1#3", str(NAME)], ids=["event", "take"])
def test_what_is_retracted_is_not_retracted_again(layout: Layout, first: str) -> None:
    """The second retraction of an event or a take, or of an event of the take, seals nothing."""
    retract(layout, first, "noise")
    takes = layout.takes()
    for again in {first, f"{NAME}.1#3"}:
        with pytest.raises(EvidenceError, match=f"{re.escape(first)} is retracted already"):
            retract(layout, again, "another reason")
    assert layout.takes() == takes
    if first != str(NAME):
        retract(layout, str(NAME), "the clock was wrong, too")


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("cpu/dense/2-0123abcd", "no sealed take"),
        ("cpu/dense/2-0123abcd.1#2", "no sealed take"),
        (f"{NAME}.1#99", "holds no event"),
        (f"{NAME}.2#2", "holds no event"),
        (f"{NAME}.1#02", "holds no event"),
        (f"{NAME}.1#", "holds no event"),
        (f"{NAME}#", "holds no event"),
        (f"{NAME}.1#1", "is bookkeeping"),
        (f"{NAME}.1#11", "is bookkeeping"),
    ],
)
def test_what_is_no_observation_is_refused(layout: Layout, target: str, message: str) -> None:
    """A target that does not exist, or that nothing is derived from, is refused without a trace."""
    with pytest.raises(EvidenceError, match=message):
        retract(layout, target, "a mistake")
    assert layout.takes() == [NAME]
    assert not (layout.events / "cpu" / "retracted").exists()


def test_a_retraction_is_not_retracted(layout: Layout) -> None:
    """Neither a retraction nor its event can be retracted."""
    seal = retract(layout, f"{NAME}.1#3", "noise")
    for target in (str(seal.name), f"{seal.name}.1#2"):
        with pytest.raises(EvidenceError):
            retract(layout, target, "I take it back")
    assert len(layout.takes()) == 2


def test_an_unsealed_take_cannot_be_retracted(layout: Layout) -> None:
    """What is not sealed is no evidence yet, so there is nothing to retract."""
    SegmentWriter(layout, take_name("cpu", "dense", 2, make_plan()), 1).close()
    with pytest.raises(EvidenceError, match="no sealed take"):
        retract(layout, str(take_name("cpu", "dense", 2, make_plan())), "noise")


@pytest.mark.parametrize("target", ["", "cpu", "cpu/dense", "#", f"{NAME}.1", "cpu/dense/x#1"])
def test_a_target_of_another_form_is_refused(layout: Layout, target: str) -> None:
    """Text that names neither a take nor an event gives a LogError with the right form."""
    with pytest.raises(LogError, match="is not the name of a take"):
        retract(layout, target, "noise")


def test_a_reason_that_is_no_text_is_refused(layout: Layout) -> None:
    """Bytes of a terminal in another encoding than UTF-8 are refused before anything is written."""
    with pytest.raises(LogError, match="which is no UTF-8"):
        retract(layout, f"{NAME}.1#3", "le caf\udce9")
    assert layout.takes(sealed=False) == []
    assert len(read_scope(layout, "cpu")[0].events) == 11


def test_the_reason_is_no_place_for_private_text(layout: Layout) -> None:
    """A reason with a URL is refused, and the observation stays."""
    with pytest.raises(LogError, match="no home folder and no URL"):
        retract(layout, f"{NAME}.1#3", "see https://host/issue")
    assert layout.takes() == [NAME]
    assert len(read_scope(layout, "cpu")[0].events) == 11
