"""Killed processes: nothing that was acknowledged is lost, and the next attempt goes on."""

import secrets
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import latencies, measure_rounds, write_take
from nearfree.core.plan import MeasurePlan
from nearfree.log.events import LatencyMeasured, SegmentRecovered
from nearfree.log.evidence import read_take
from nearfree.log.names import Layout
from nearfree.log.seal import Seal
from nearfree.log.take import OpenTake, take_name
from once import one_in

from log.child import LONG
from log.crash import PLAN
from log.faults import HERE, PATHS, damage, notices, start_child

pytestmark = pytest.mark.slow

NAME = take_name("cpu", "dense", 1, PLAN)
Points = set[tuple[int, int]]


def grid(plan: MeasurePlan) -> list[tuple[int, int]]:
    """Return every (round, n) of a plan, in the order of the work."""
    return [(r, n) for r in range(plan.protocol.rounds) for n in plan.sweeps[0].positions]


def complete_points(points: Points, plan: MeasurePlan) -> Points:
    """Return the points of the rounds that are there in full."""
    size = len(plan.sweeps[0].positions)
    seen = [r for r, _ in points]
    return {(r, n) for r, n in points if seen.count(r) == size}


def pairs(text: str) -> Points:
    """Return the events that a child acknowledged; a last line may be cut."""
    lines = (line.split() for line in text.splitlines(keepends=True) if line.endswith("\n"))
    return {(int(number), int(n)) for number, n in lines}


def kill_at_random(root: Path) -> Points:
    """Run a measuring child, kill it at a random moment, and return what it acknowledged."""
    with start_child("measure", root) as child:
        assert child.stdout is not None
        seen = [child.stdout.readline() for _ in range(secrets.randbelow(60))]
        time.sleep(secrets.randbelow(2000) / 1e6)
        child.kill()
        return pairs("".join(seen) + child.stdout.read())


def go_on(root: Path, plan: MeasurePlan, acknowledged: Points) -> Seal:
    """Resume a killed take, check what it kept, and check the take that it seals."""
    layout = Layout(root)

    def work(take: OpenTake) -> float:
        latencies_before = latencies(take)
        assert latencies_before == grid(plan)[: len(latencies_before)]
        assert len(latencies_before) % len(plan.sweeps[0].positions) == 0
        assert complete_points(acknowledged, plan) <= set(latencies_before)
        return measure_rounds(take)

    seal = write_take(layout, plan=plan, work=work)
    events = read_take(layout, seal.name).events
    places = [(e.data.round, e.data.n) for e in events if isinstance(e.data, LatencyMeasured)]
    assert places == grid(plan)
    assert damage(root) == []
    return seal


def kill_and_go_on(root: Path, kills: int) -> None:
    """Kill one take several times in a row, then let it end."""
    acknowledged: Points = set()
    for _ in range(kills):
        acknowledged |= kill_at_random(root)
    seal = go_on(root, LONG, acknowledged)
    attempts = Layout(root).attempts(take_name("cpu", "dense", 1, LONG))
    assert [part.attempt for part in seal.segments] == attempts


@pytest.mark.parametrize("kills", [1, 2, 3])
def test_acknowledged_rounds_outlive_a_kill(tmp_path: Path, kills: int) -> None:
    """Every round acknowledged before a SIGKILL is kept by the next attempt, which then ends."""
    kill_and_go_on(tmp_path, kills)


@pytest.mark.slow
def test_acknowledged_rounds_outlive_many_kills(tmp_path: Path) -> None:
    """However often a take is killed, no complete acknowledged round is lost."""
    for turn in range(20)[one_in(3)]:
        kill_and_go_on(tmp_path / str(turn), 3)


def crash(folder: Path, *interrupted: Path) -> list[Path]:
    """Return the logs that a kill at each system call leaves; the last holds the complete take."""
    subprocess.run(
        [sys.executable, HERE / "crash.py", folder, *interrupted],
        check=True,
        env={"PYTHONPATH": PATHS, "HOME": str(folder)},
    )
    return sorted((p for p in folder.iterdir() if p.is_dir()), key=lambda p: int(p.name))


def recover(root: Path) -> None:
    """Check that a crashed log of `PLAN` can go on to a sound seal."""
    acks = root.with_suffix(".acks")
    go_on(root, PLAN, pairs(acks.read_text()) if acks.exists() else set())


def test_every_call_may_be_the_last(tmp_path: Path) -> None:
    """A kill at any system call, half a write included, leaves a log that the next attempt ends."""
    crashed = crash(tmp_path / "crashed")
    assert len(crashed) > 2 * PLAN.protocol.rounds * PLAN.points_a_round
    for root in crashed:
        recover(root)


@pytest.mark.slow
def test_recovery_may_be_killed_too(tmp_path: Path) -> None:
    """A kill at any system call of a recovery leaves a log that the next attempt ends."""
    interrupted_at = crash(tmp_path / "first")[:-1:3]
    for number, interrupted in enumerate(interrupted_at[one_in(4, "recovery")]):
        for root in crash(tmp_path / str(number), interrupted):
            recover(root)


def test_a_kill_between_the_end_and_the_seal(tmp_path: Path) -> None:
    """A take that ended but got no seal keeps all its rounds; the next attempt only seals it."""
    ended = [
        root
        for root in crash(tmp_path / "crashed")
        if any(b"nearfree.run.finished" in p.read_bytes() for p in root.glob("events/*/*/*.jsonl"))
        and not Layout(root).takes()
        and "2 2" in root.with_suffix(".acks").read_text()
    ]
    assert len(ended) >= 3
    for root in ended:
        layout = Layout(root)
        done: list[int] = []
        seal = write_take(layout, plan=PLAN, work=lambda take, d=done: d.append(len(take.events)))
        assert done == [7]
        last = read_take(layout, seal.name).events
        assert [type(e.data) for e in last].count(SegmentRecovered) == 1
        assert damage(root) == []


def test_a_kill_between_the_seal_and_the_receipt(tmp_path: Path) -> None:
    """A sealed take without its receipt gets it from the next call, which measures nothing."""
    crashed = crash(tmp_path / "crashed")
    sealed = [
        root
        for root in crashed[:-1]
        if Layout(root).takes() and not Layout(root).receipt(NAME).exists()
    ]
    assert len(sealed) >= 2
    for root in sealed:
        write_take(Layout(root), plan=PLAN, work=lambda _: pytest.fail("measured again"))
        assert Layout(root).receipt(NAME).exists()
        assert damage(root) == []
        assert all("interrupted write" in finding.message for finding in notices(root))
