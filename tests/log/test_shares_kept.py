"""Shares of an interrupted attempt: what follows whole rounds is kept, and a torn round is not."""

from conftest import make_latency, make_plan, make_started
from hypothesis import given
from hypothesis import strategies as st
from nearfree.log.attempts import whole_rounds
from nearfree.log.events import Payload, RunFailed, SharesMeasured

from log.test_attempts import segment

PLAN = make_plan(positions=(1, 2, 4))
FAILED = RunFailed(error="stopped", remedy="Go on")


def shares(number: int) -> SharesMeasured:
    """Return one watched forward."""
    (sweep,) = PLAN.sweeps
    return SharesMeasured(
        setting=sweep.setting, n=1, round=number, part_us={"attention": 1.0}, dirty=False,
        timer="cpu",
    )  # fmt: skip


def rounds(count: int) -> list[Payload]:
    """Return whole rounds of latencies."""
    return [make_latency(number, n) for number in range(count) for n in (1, 2, 4)]


@given(done=st.integers(0, 4), watched=st.integers(0, 9), failed=st.booleans())
def test_shares_after_whole_rounds_are_kept(done: int, watched: int, *, failed: bool) -> None:
    """All shares count, after as many rounds as an attempt made itself, which may be none."""
    events = [make_started(PLAN), *rounds(done), *map(shares, range(watched))]
    found = segment(*events, *([FAILED] if failed else []))
    assert whole_rounds(found, PLAN) == len(events)


@given(st.integers(0, 3), st.integers(1, 2), st.integers(1, 3))
def test_shares_after_a_torn_round_are_not_kept(done: int, torn: int, watched: int) -> None:
    """What stands behind a round that is not whole was never acknowledged."""
    whole = [make_started(PLAN), *rounds(done)]
    after = [make_latency(done, n) for n in (1, 2, 4)[:torn]]
    found = segment(*whole, *after, *map(shares, range(watched)))
    assert whole_rounds(found, PLAN) == len(whole)
