"""How far apart CPUs are: what is watched, how long something waits, and how processes end."""

import os
import signal
import sys
import time
from ast import Import, ImportFrom, parse, walk
from pathlib import Path

import pytest
from nearfree.hardware import handover
from nearfree.hardware.handover import APART_NS, Handover, longest, watched

from hardware.scripted_handover import Scripted

CPUS = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
two_cpus = pytest.mark.skipif(len(CPUS) < 2, reason="one CPU has nothing to be apart from")


def child_of(pid: int) -> int:
    """Return the only child of a process."""
    (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(child)


def ended(pid: int) -> bool:
    """Return whether a process ends within seconds."""
    for _ in range(200):
        stat = Path(f"/proc/{pid}/stat")
        if not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z":
            return True
        time.sleep(0.05)
    return False


@two_cpus
def test_a_round_trip_is_measured_and_processes_end() -> None:
    """Two real CPUs exchange a value within a millisecond, and both processes end at the close."""
    watch = Handover(CPUS[:2])
    process, child = watch._process, child_of(watch._process.pid)
    trips_ns = [trip_ns for _ in range(50) if (trip_ns := watch.look()) is not None]
    watch.close()
    assert trips_ns, "at each look a CPU was too busy"
    assert all(0 <= trip_ns < 1e6 for trip_ns in trips_ns)
    assert process.returncode == 0
    assert ended(child)


@two_cpus
def test_a_peer_that_was_killed_keeps_nothing_waiting() -> None:
    """Without its process a look is None, at once, and the process's child ends as well."""
    watch = Handover(CPUS[:2])
    process, child = watch._process, child_of(watch._process.pid)
    process.send_signal(signal.SIGKILL)
    process.wait()
    start_s = time.monotonic()
    assert watch.look() is None
    assert watch.settle() is None
    assert time.monotonic() - start_s < 1
    watch.close()
    assert ended(child)


@two_cpus
def test_a_peer_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stopped process is waited for once, then killed: its late answer would mislead."""
    monkeypatch.setattr(handover, "_ANSWER_S", 0.2)
    watch = Handover(CPUS[:2])
    watch._process.send_signal(signal.SIGSTOP)
    assert watch.look() is None
    watch._process.wait()
    assert watch.look() is None
    watch.close()


@two_cpus
def test_a_peer_that_ends_between_two_looks_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe that breaks while it is asked is no error of the measurement."""
    watch = Handover(CPUS[:2])
    watch._process.kill()
    watch._process.wait()
    monkeypatch.setattr(watch._process, "poll", lambda: None)  # as if it still ran
    assert watch.look() is None
    watch.close()


def test_it_waits_until_cpus_are_close() -> None:
    """Round trips far above the shortest are waited out; a CPU too busy to tell ends the wait."""
    assert Scripted([400.0, 390.0, 60.0, 400.0]).settle() == 60.0
    assert Scripted([400.0, None, 60.0]).settle() is None
    assert Scripted([50.0 + APART_NS]).settle() == 50.0 + APART_NS


def test_patience_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """All waits together last ten seconds and a quarter of the time since the start."""
    now_s = [100.0]
    monkeypatch.setattr(handover.time, "monotonic", lambda: now_s[0])
    monkeypatch.setattr(handover.time, "sleep", lambda s: now_s.__setitem__(0, now_s[0] + s))
    watch = Scripted([400.0] * 10_000)
    assert watch.settle() == 400.0
    assert 13.3 < watch.waited_s < 13.4  # w = 10 + w / 4
    assert not watch.patient
    before_s = now_s[0]
    assert watch.settle() == 400.0
    assert now_s[0] == before_s
    now_s[0] += 40.0
    assert watch.patient


@pytest.mark.parametrize(
    ("text", "virtual"),
    [
        ("model name\t: X\nflags\t\t: fpu hypervisor avx2\n", True),
        ("flags\t\t: fpu avx2\nvmx flags\t: hypervisor\n", False),
        ("Features\t: asimd\n", False),
        (None, False),
    ],
)
def test_only_a_virtual_machine_moves_cpus(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    text: str | None,
    virtual: bool,  # noqa: FBT001 (a parameter of the test)
) -> None:
    """CPUs are watched where Linux names a hypervisor."""
    if text is not None:
        (tmp_path / "cpuinfo").write_text(text)
    monkeypatch.setattr(handover, "_CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(handover.os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    monkeypatch.setattr(handover, "Handover", Scripted)
    with watched(2) as watch:
        assert (watch is not None) == virtual


@pytest.mark.parametrize(("threads", "count"), [(1, 1), (1, 2), (2, 4), (64, 64)])
def test_cpus_of_a_forward_must_be_known(
    monkeypatch: pytest.MonkeyPatch, threads: int, count: int
) -> None:
    """Nothing is watched for one thread, for fewer threads than CPUs, or on very many CPUs."""
    monkeypatch.setattr(handover, "_virtual", lambda: True)
    monkeypatch.setattr(
        handover.os, "sched_getaffinity", lambda _: set(range(count)), raising=False
    )
    with watched(threads) as watch:
        assert watch is None


def test_the_longest_of_known_round_trips() -> None:
    """What is unknown does not count; of nothing known there is none."""
    assert longest(None, 40.0, 60.0) == 60.0
    assert longest(None, None) is None


def test_the_peer_needs_nothing_installed() -> None:
    """It imports the standard library alone, since engines' environments start it, too."""
    names = {
        name.split(".")[0]
        for node in walk(parse(handover._PEER.read_text()))
        if isinstance(node, Import | ImportFrom)
        for name in ([a.name for a in node.names] if isinstance(node, Import) else [node.module])
    }
    assert names <= set(sys.stdlib_module_names)
