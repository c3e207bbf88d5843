"""Several processes: one take has one writer, many takes have many."""

import errno
import fcntl
import os
from contextlib import suppress
from pathlib import Path

import pytest
from conftest import make_plan, write_take
from nearfree.errors import BusyError
from nearfree.log import segment
from nearfree.log.events import LatencyMeasured
from nearfree.log.evidence import read_take
from nearfree.log.names import Layout
from nearfree.log.segment import lock
from nearfree.log.take import OpenTake, take_name
from nearfree.log.verify import verify

from log.faults import damage, start_child

PLAN = make_plan()
NAME = take_name("cpu", "dense", 1, PLAN)


def points(layout: Layout, take: int = 1) -> list[tuple[int, int]]:
    """Return the (round, n) of a sealed take."""
    data = [e.data for e in read_take(layout, take_name("cpu", "dense", take, PLAN)).events]
    return [(d.round, d.n) for d in data if isinstance(d, LatencyMeasured)]


WHOLE = [(number, n) for number in range(3) for n in (1, 2, 4)]


def race(layout: Layout, takes: list[int]) -> list[str]:
    """Start one process a take at the same moment; return the outcome that each reported."""
    children = [start_child("append", layout.root, take) for take in takes]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    return [child.communicate()[0].strip() for child in children]


def test_a_take_has_one_writer(layout: Layout) -> None:
    """A take that lives in another process is busy, and free as soon as that process ends."""
    with start_child("hold", layout.root) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "open\n"
        with pytest.raises(BusyError, match="is being written by another process") as caught:
            write_take(layout)
        assert "run the same command again" in caught.value.remedy
        assert layout.attempts(NAME) == [1]
    assert child.returncode == 0
    assert [part.attempt for part in write_take(layout).segments] == [1, 2]


def test_a_killed_writer_leaves_no_lock(layout: Layout) -> None:
    """The lock ends with its process, however that ends."""
    with start_child("hold", layout.root) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "open\n"
        child.kill()
    assert [part.attempt for part in write_take(layout).segments] == [1, 2]


def test_eight_writers_of_one_scope(layout: Layout) -> None:
    """Eight processes that write eight takes of a scope at once lose no event."""
    takes = list(range(1, 9))
    assert race(layout, takes) == ["sealed"] * 8
    for take in takes:
        assert points(layout, take) == WHOLE
    summary = verify(layout.root)
    assert (summary.takes, summary.events, summary.findings) == (8, 8 * 11, ())


def test_eight_writers_of_one_take(layout: Layout) -> None:
    """Of eight processes that want one take, at least one seals it; the others are busy."""
    answers = race(layout, [1] * 8)
    assert "sealed" in answers
    assert set(answers) <= {"sealed", "BusyError"}
    assert points(layout) == WHOLE
    assert damage(layout.root) == []


def test_two_that_open_at_once_are_not_both_let_in(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a second process comes between a first one's open and its lock, one of them is refused."""
    opened: list[OpenTake] = []

    def overtaken(fd: int, name: str) -> None:
        monkeypatch.setattr(segment, "lock", lock)
        with suppress(BusyError):
            opened.append(OpenTake(layout, NAME, PLAN))
        lock(fd, name)

    monkeypatch.setattr(segment, "lock", overtaken)
    with suppress(BusyError):
        opened.append(OpenTake(layout, NAME, PLAN))
    assert [take.attempt for take in opened] in ([1], [2])
    for take in opened:
        take.writer.close()


def test_a_take_goes_on_where_locks_want_a_writable_file(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exclusive lock opens its file for writing, because NFS refuses it otherwise."""
    real = fcntl.flock

    def as_on_nfs(fd: int, operation: int) -> None:
        reads_only = fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
        if operation & fcntl.LOCK_EX and reads_only:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        real(fd, operation)

    OpenTake(layout, NAME, PLAN).writer.close()
    monkeypatch.setattr(fcntl, "flock", as_on_nfs)
    assert [part.attempt for part in write_take(layout).segments] == [1, 2]


def test_a_refused_writer_leaves_no_open_file(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However a take is refused, the files that were tried are closed again."""
    with OpenTake(layout, NAME, PLAN).writer:
        before = len(list(Path("/dev/fd").iterdir()))
        with pytest.raises(BusyError):
            OpenTake(layout, NAME, PLAN)

        def refuse(*_: object) -> None:
            raise BusyError("it is being written", remedy="Wait")

        monkeypatch.setattr(segment, "lock", refuse)
        with pytest.raises(BusyError):
            OpenTake(layout, take_name("cpu", "dense", 2, PLAN), PLAN)
        assert len(list(Path("/dev/fd").iterdir())) == before
