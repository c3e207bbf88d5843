"""What is kept of an interrupted attempt: complete rounds and the shares after them."""

import pytest
from conftest import make_latency, make_plan, make_started
from hypothesis import given
from hypothesis import strategies as st
from log.test_attempts import FAILED, RECOVERED, segment
from nearfree.core.plan import Plan, ProbePlan
from nearfree.log.events import Payload, RunFinished, SharesMeasured
from nearfree.measure.rounds import whole_rounds

PLAN = make_plan(positions=(1, 2, 4))


@given(
    points=st.integers(1, 5),
    done=st.integers(0, 17),
    recovered=st.integers(0, 3),
    failed=st.booleans(),
)
def test_whole_rounds_are_kept(*, points: int, done: int, recovered: int, failed: bool) -> None:
    """The header and complete rounds are kept; an incomplete round and what follows are not."""
    plan = make_plan(positions=tuple(range(1, points + 1)))
    header = [make_started(plan), *[RECOVERED] * recovered]
    rounds = [make_latency(index // points) for index in range(done)]
    rounds_kept = whole_rounds(segment(*header, *rounds, *[FAILED] * failed), plan)
    assert rounds_kept == len(header) + done // points * points


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
    """A plan without rounds is repeated, so only its header is kept."""
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


def shares(number: int) -> SharesMeasured:
    """Return one watched forward."""
    (sweep,) = PLAN.sweeps
    return SharesMeasured(
        setting=sweep.setting, n=1, round=number, part_us={"attention": 1.0}, dirty=False,
        timer="cpu",
    )  # fmt: skip


def rounds(count: int) -> list[Payload]:
    """Return complete rounds of latencies."""
    return [make_latency(number, n) for number in range(count) for n in (1, 2, 4)]


@given(done=st.integers(0, 4), watched=st.integers(0, 9), failed=st.booleans())
def test_shares_after_whole_rounds_are_kept(done: int, watched: int, *, failed: bool) -> None:
    """All shares after complete rounds are kept, even where the attempt has no round itself."""
    events = [make_started(PLAN), *rounds(done), *map(shares, range(watched))]
    events_kept = segment(*events, *([FAILED] if failed else []))
    assert whole_rounds(events_kept, PLAN) == len(events)


@given(st.integers(0, 3), st.integers(1, 2), st.integers(1, 3))
def test_shares_after_a_torn_round_are_not_kept(done: int, torn: int, watched: int) -> None:
    """Events behind an incomplete round were never acknowledged, and are dropped."""
    complete = [make_started(PLAN), *rounds(done)]
    after = [make_latency(done, n) for n in (1, 2, 4)[:torn]]
    interrupted = segment(*complete, *after, *map(shares, range(watched)))
    assert whole_rounds(interrupted, PLAN) == len(complete)
