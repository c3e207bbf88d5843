"""Earlier attempts: locked, read, and kept up to their last whole round."""

import pytest
from conftest import make_latency, make_plan, make_started, write_take
from hypothesis import given
from hypothesis import strategies as st
from nearfree.core.plan import Plan, ProbePlan
from nearfree.errors import BusyError, DamageError, LogError
from nearfree.log.attempts import Attempts, whole_rounds
from nearfree.log.events import (
    ENVELOPES,
    VERSIONS,
    Event,
    Payload,
    RunFailed,
    RunFinished,
    SegmentRecovered,
)
from nearfree.log.line import sequence_text
from nearfree.log.names import Layout
from nearfree.log.reader import Segment
from nearfree.log.segment import SegmentWriter
from nearfree.log.take import OpenTake, take_name

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


@given(
    points=st.integers(1, 5),
    done=st.integers(0, 17),
    recovered=st.integers(0, 3),
    failed=st.booleans(),
)
def test_whole_rounds_are_kept(*, points: int, done: int, recovered: int, failed: bool) -> None:
    """The header and the whole rounds count; a started round and what follows it do not."""
    plan = make_plan(positions=tuple(range(1, points + 1)))
    header = [make_started(plan), *[RECOVERED] * recovered]
    rounds = [make_latency(index // points) for index in range(done)]
    kept = whole_rounds(segment(*header, *rounds, *[FAILED] * failed), plan)
    assert kept == len(header) + done // points * points


@pytest.mark.parametrize("plan", [PLAN, ProbePlan(dtypes=("float32",))], ids=["measure", "probe"])
def test_bookkeeping_after_the_observations_is_not_kept(plan: Plan) -> None:
    """An end or a failure is no part of what the next attempt goes on from."""
    for last in (FAILED, RunFinished(outcome="complete", wall_s=1.0)):
        assert whole_rounds(segment(make_started(plan), last), plan) == 1
    assert whole_rounds(segment(), plan) == 0


def test_only_the_head_of_an_attempt_is_its_header() -> None:
    """A start or a record amid a round does not make the round whole."""
    started = make_started(PLAN)
    for late in (started, RECOVERED):
        assert whole_rounds(segment(started, make_latency(), late), PLAN) == 1


def test_observations_without_rounds_are_not_kept() -> None:
    """A plan that has no rounds is done anew, so only its header is kept."""
    plan = ProbePlan(dtypes=("float32",))
    started = make_started(plan)
    assert whole_rounds(segment(started, make_latency(), make_latency(1)), plan) == 1


def test_a_round_says_itself_how_many_points_make_it_whole() -> None:
    """Where events name the points of their round, these count, not the plan's."""
    started = make_started(PLAN)
    pair = [make_latency(3, n, round_points=2, paired=True) for n in (1, 4)]
    rounds = [make_latency(0, n, round_points=3) for n in (1, 2, 4)]
    assert whole_rounds(segment(started, *rounds, *pair), PLAN) == 6
    assert whole_rounds(segment(started, *rounds, pair[0]), PLAN) == 4


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
    """If another process seals the take first, this one is told to look again."""
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
    """When one attempt cannot be read, none stays locked."""
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
    """The first attempt that says what the plan is decides; without one there is no plan."""
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
