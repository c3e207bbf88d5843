"""Earlier attempts of a take: locked, read, and kept up to their last complete round."""

import pytest
from conftest import make_latency, make_plan, make_started, write_take
from nearfree.errors import BusyError, DamageError, LogError
from nearfree.log.events import (
    ENVELOPES,
    VERSIONS,
    Event,
    Payload,
    RunFailed,
    SegmentRecovered,
)
from nearfree.log.line import sequence_text
from nearfree.log.names import Layout
from nearfree.log.reader import Segment
from nearfree.log.segment import SegmentWriter
from nearfree.log.take import Attempts, OpenTake, header, take_name

from log.faults import edit_line

PLAN = make_plan()
NAME = take_name("cpu", "dense", 1, PLAN)
RECOVERED = SegmentRecovered(
    segment="s", kept_events=1, kept_bytes=9, ignored_bytes=0, head="", torn=False
)
FAILED = RunFailed(error="e", remedy="r")


def segment(*payloads: Payload) -> Segment:
    """Return a segment in memory; of its lines only the events matter here."""
    kinds = dict(zip(VERSIONS, ENVELOPES, strict=True))
    events: list[Event] = [
        kinds[type(data)](
            specversion="1.0",
            id=str(number),
            source="s",
            time="",
            datacontenttype="application/json",
            data=data,
            sequence=sequence_text(number),
            prevhash="",
            hash="",
        )
        for number, data in enumerate(payloads, start=1)
    ]
    return Segment("s", tuple(events), (0,) * len(events), ("",) * len(events), 0)


@pytest.mark.parametrize("recovered", [0, 1, 3])
def test_the_header_is_a_start_and_what_it_recovered(recovered: int) -> None:
    """Without rounds, the next attempt keeps only the header of the earlier one."""
    head = [make_started(PLAN), *[RECOVERED] * recovered]
    late = [make_latency(), RECOVERED, make_started(PLAN), FAILED]
    assert header(segment(*head), PLAN) == header(segment(*head, *late), PLAN) == len(head)
    assert header(segment(), PLAN) == header(segment(FAILED), PLAN) == 0


def test_attempts_are_locked_until_they_are_released(layout: Layout) -> None:
    """While a process looks at the attempts of a take, no other can go on with it."""
    OpenTake(layout, NAME, PLAN).writer.close()
    attempts = Attempts(layout, NAME)
    assert (attempts.numbers, attempts.next) == ([1], 2)
    with pytest.raises(BusyError):
        OpenTake(layout, NAME, PLAN)
    attempts.release()
    attempts.release()
    OpenTake(layout, NAME, PLAN).writer.close()
    assert layout.attempts(NAME) == [1, 2]


def test_a_take_that_was_sealed_meanwhile_is_busy(layout: Layout) -> None:
    """If another process seals the take first, this attempt is refused as busy."""
    write_take(layout)
    with pytest.raises(BusyError, match="was sealed meanwhile") as caught:
        Attempts(layout, NAME)
    assert "returns at once" in caught.value.remedy
    with pytest.raises(BusyError):
        OpenTake(layout, NAME, PLAN)
    assert layout.attempts(NAME) == [1]


def test_an_attempt_that_cannot_be_opened_is_a_clean_error(layout: Layout) -> None:
    """Something else in a segment's place gives a LogError with its path."""
    layout.segment(NAME, 1).mkdir(parents=True)
    with pytest.raises(LogError, match=r"\.1\.jsonl cannot be opened"):
        Attempts(layout, NAME)


def test_a_damaged_attempt_frees_the_locks_of_the_others(layout: Layout) -> None:
    """When one attempt cannot be read, the locks of all attempts are released."""
    OpenTake(layout, NAME, PLAN).writer.close()
    second = OpenTake(layout, NAME, PLAN)
    second.start(make_started(PLAN, 2))
    second.writer.close()
    path = layout.segment(NAME, 2)
    sound = path.read_bytes()
    edit_line(path, 1, lambda body: body.replace(b'"attempt":2', b'"attempt":7'))
    with pytest.raises(DamageError):
        Attempts(layout, NAME)
    path.write_bytes(sound)
    Attempts(layout, NAME).release()


def test_the_plan_is_that_of_any_attempt(layout: Layout) -> None:
    """The plan is taken from the first attempt that holds one; without one there is no plan."""
    with SegmentWriter(layout, NAME, 1) as first:
        first.append(make_latency())
    attempts = Attempts(layout, NAME)
    attempts.release()
    assert attempts.plan() is None
    with SegmentWriter(layout, NAME, 2) as second:
        second.append(FAILED)
        second.append(make_started(PLAN, 2))
    attempts = Attempts(layout, NAME)
    attempts.release()
    assert attempts.plan() == PLAN
