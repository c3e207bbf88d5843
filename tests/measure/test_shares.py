"""Time shares: what a take of a model holds of its modules, and what an interruption leaves."""

import inspect
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import nearfree
import pytest
import torch
from conftest import make_plan, read_sealed
from nearfree.decoders.ranks.modules import (
    ATTENTION,
    BETWEEN,
    HEAD,
    MOE,
    OUTPUT,
    QKV,
    ROUTER,
    SHARED,
)
from nearfree.decoders.ranks.modules import DENSE as FFN
from nearfree.errors import HardwareError
from nearfree.log.events import LatencyMeasured, Payload, RunFinished, SharesMeasured
from nearfree.log.names import Layout
from nearfree.log.reader import read_segment
from nearfree.log.seal import Seal
from nearfree.log.take import OpenTake, take_name
from nearfree.measure import shares
from nearfree.measure.run import measure
from whole_models import DENSE, LING

from measure import watched
from measure.watched import POINTS

pytestmark = pytest.mark.slow

Place = tuple[int, int]
TESTS = Path(__file__).parents[1]
ROLES = {
    DENSE: [BETWEEN, QKV, ATTENTION, OUTPUT, FFN, HEAD],
    LING: [BETWEEN, QKV, ATTENTION, OUTPUT, FFN, ROUTER, MOE, SHARED, HEAD],
}


@pytest.fixture
def known(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> Layout:
    """Return a log that knows this machine, whose clock finds no forward too short."""
    monkeypatch.setattr("nearfree.hardware.clocks.CpuClock.check", lambda _self, _us: None)
    return watched.known(layout)


def of(layout: Layout, seal: Seal, kind: type[Payload]) -> list[Payload]:
    """Return the payloads of one type of a sealed take."""
    return [event.data for event in read_sealed(layout, seal) if isinstance(event.data, kind)]


def places(layout: Layout, seal: Seal) -> list[Place]:
    """Return round and N of each share of a take."""
    return [(event.round, event.n) for event in of(layout, seal, SharesMeasured)]  # type: ignore[attr-defined]


EVERY = [(number, n) for number in range(shares.ROUNDS) for n in (1, 2, 4, 8)]


@pytest.mark.parametrize("kind", ROLES)
def test_each_point_of_a_model_is_watched(known: Layout, kind: str) -> None:
    """After its latencies a take has a share of every point a round, whose parts are positive."""
    plan = watched.plan(kind)
    seal = watched.take(known, plan)
    assert sorted(places(known, seal)) == EVERY
    (setting,) = {sweep.setting for sweep in plan.sweeps}
    for event in of(known, seal, SharesMeasured):
        assert isinstance(event, SharesMeasured)
        assert (event.setting, event.timer) == (setting, "cpu")
        assert list(event.part_us) == ROLES[kind]
        assert all(us > 0 for us in event.part_us.values())
    kinds = [type(event.data) for event in read_sealed(known, seal)]
    assert kinds.index(SharesMeasured) > len(kinds) - 1 - kinds[::-1].index(LatencyMeasured)


def test_watching_is_in_the_timed_seconds(known: Layout) -> None:
    """The seconds inside forwards hold those that were watched, and fit into the run's."""
    seal = watched.take(known, watched.plan())
    parts = [sum(event.part_us.values()) for event in of(known, seal, SharesMeasured)]  # type: ignore[attr-defined]
    (end,) = of(known, seal, RunFinished)
    assert isinstance(end, RunFinished)
    assert end.timed_s is not None
    assert sum(parts) / 1e6 < end.timed_s <= end.wall_s


def test_a_module_is_not_watched(known: Layout) -> None:
    """The take of a module's study has no shares."""
    plan = make_plan(backend="torch", positions=(1, 2))
    assert of(known, measure(known, "cpu", "dense", 1, plan), SharesMeasured) == []


def test_rounds_have_orders_of_their_own(known: Layout) -> None:
    """The points of a round come in an order that its number decides, not always the same."""
    order = places(known, watched.take(known, watched.plan()))
    orders = [
        tuple(n for number, n in order if number == round_number)
        for round_number in range(shares.ROUNDS)
    ]
    assert len(set(orders)) > 1


def test_a_gpu_waits_until_its_host_is_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait is enqueued before the first event, and belongs to no module."""
    queued: list[str] = []

    class Event:
        def __init__(self, enable_timing: bool = False) -> None:  # noqa: FBT001, FBT002 (as torch's)
            assert enable_timing

        def record(self) -> None:
            queued.append("event")
            self.ms = float(len(queued))

        def elapsed_time(self, end: "Event") -> float:
            return end.ms - self.ms

    real = torch.cuda._sleep

    def sleep(*args: object) -> None:
        inspect.signature(real).bind(*args)
        queued.append("wait")

    monkeypatch.setattr(torch.cuda, "_sleep", sleep)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: queued.append("end"))
    laps = shares._CudaLaps()
    for role in (QKV, ATTENTION, QKV):
        laps.lap(role)
    assert laps.parts() == ({QKV: 2000.0, ATTENTION: 1000.0}, False)
    assert queued == ["wait", *["event"] * 4, "end"]


def check_resumed(layout: Layout, seal: Seal, counts: tuple[int, int]) -> None:
    """Assert that a take has all its events once, after an attempt that appended some shares.

    `counts` are the least and the most that are kept of the first attempt.
    """
    assert sorted(places(layout, seal)) == EVERY
    timed = Counter((event.round, event.n) for event in of(layout, seal, LatencyMeasured))  # type: ignore[attr-defined]
    assert set(timed.values()) == {1}
    assert len(timed) == 3 * POINTS
    name = take_name("cpu", "small", 1, watched.plan())
    first, second = (
        [
            (event.data.round, event.data.n)
            for event in read_segment(layout.segment(name, number), name.segment(number)).events
            if isinstance(event.data, SharesMeasured)
        ]
        for number in (1, 2)
    )
    shares_kept = len(EVERY) - len(second)
    assert counts[0] <= shares_kept <= counts[1]
    assert sorted(first[:shares_kept] + second) == EVERY


@pytest.mark.parametrize("count", [1, POINTS, POINTS + 1, 2 * POINTS, 3 * POINTS])
def test_a_failure_repeats_no_share(
    known: Layout, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """Where a take fails among its shares, the next attempt goes on with the one after."""
    append, seen = OpenTake.append, []

    def failing(self: OpenTake, data: Payload, *, sync: bool = True) -> str:
        event_id = append(self, data, sync=sync)
        seen.extend([data] if isinstance(data, SharesMeasured) else [])
        if len(seen) == count:
            seen.clear()
            raise HardwareError("stopped", remedy="Go on")
        return event_id

    with monkeypatch.context() as patched:
        patched.setattr(OpenTake, "append", failing)
        with pytest.raises(HardwareError, match="stopped"):
            watched.take(known, watched.plan())
    check_resumed(known, watched.take(known, watched.plan()), (count, count))


def test_each_round_is_made_durable(known: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shares are synced to disk once a round, so no reported round is lost."""
    append, sync = OpenTake.append, OpenTake.sync
    seen: list[Payload] = []
    durable = []

    def watched_append(self: OpenTake, data: Payload, *, sync: bool = True) -> str:
        seen.extend([data] if isinstance(data, SharesMeasured) else [])
        return append(self, data, sync=sync)

    def watched_sync(self: OpenTake) -> None:
        sync(self)
        durable.append(len(seen))

    monkeypatch.setattr(OpenTake, "append", watched_append)
    monkeypatch.setattr(OpenTake, "sync", watched_sync)
    watched.take(known, watched.plan())
    assert [count for count in durable if count] == [POINTS, 2 * POINTS, 3 * POINTS]


def test_a_killed_process_loses_no_round_of_shares(known: Layout) -> None:
    """What was made durable before a kill is kept, and neither it nor a latency is repeated."""
    count = POINTS + 2
    environment = {
        "PYTHONPATH": os.pathsep.join((str(Path(nearfree.__file__).parents[1]), str(TESTS)))
    }
    done = subprocess.run(
        [sys.executable, "-m", "measure.watched", str(known.root), str(count)],
        env=os.environ | environment,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    check_resumed(known, watched.take(known, watched.plan()), (POINTS, count))


def test_shares_go_on_more_than_once(known: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shares of an attempt that measured nothing else are kept by the next attempt."""
    append = OpenTake.append

    def failing(self: OpenTake, data: Payload, *, sync: bool = True) -> str:
        event_id = append(self, data, sync=sync)
        if isinstance(data, SharesMeasured):
            raise HardwareError("stopped", remedy="Go on")
        return event_id

    with monkeypatch.context() as patched:
        patched.setattr(OpenTake, "append", failing)
        for _ in EVERY:
            with pytest.raises(HardwareError, match="stopped"):
                watched.take(known, watched.plan())
    seal = watched.take(known, watched.plan())
    assert sorted(places(known, seal)) == EVERY
    assert len(of(known, seal, LatencyMeasured)) == 3 * POINTS
