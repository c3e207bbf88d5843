"""How far apart the CPUs of a forward are: the time of a value from one to another and back.

Threads of a forward wait for each other at every operation. On a virtual machine the host moves its
CPUs: for some seconds they lie under one L3 cache, for the next ones under two, where a value takes
six times as long from one to the other, and every wait with it. On such a machine of two CPUs T(5)
of a small model was 11.3 ms in one place and 15.0 ms in the other, T(1) 8.8 and 10.7 ms, while
forwards of one thread took the same time in both. The guest's kernel reports nothing of it.
"""

import os
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")
_PEER = Path(__file__).with_name("handover_peer.py")
_MOST_CPUS = 16
"""Each CPU gets a process."""
_NEAR_NS, APART_NS = 100, 120
"""CPUs under one L3 cache take some 40 to 100 ns, those of two caches or sockets 200 and more."""
_ANSWER_S, _LOOK_S, _FIRST_S = 2.0, 0.03, 15.0
_PATIENCE_S, _PATIENCE_SHARE = 10.0, 0.25


class Handover:
    """Watches some CPUs, and waits until they are as close as they were before.

    Close is within 120 ns of the shortest round trip so far. At the start it waits up to 15 seconds
    for one as short as under one L3 cache. Later waits last at most ten seconds and a quarter of
    the time since then, together. After that nothing waits, and the recorded round trips tell where
    the CPUs were.

    Attributes
    ----------
    threads
        The threads that fill these CPUs: of fewer it is unknown which CPUs they run on.
    waited_s
        Seconds spent in waits so far.
    """

    def __init__(self, cpus: Sequence[int]) -> None:
        self.threads = len(cpus)
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_PEER), *map(str, cpus)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,
        )
        self._shortest_ns = float("inf")
        start_s = time.monotonic()
        while self.look() is not None and self._shortest_ns > _NEAR_NS + APART_NS:
            if time.monotonic() > start_s + _FIRST_S:
                break
            time.sleep(_LOOK_S)
        self._start_s = time.monotonic()
        self.waited_s = 0.0

    def close(self) -> None:
        """End the processes."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        self._process.wait()

    def look(self) -> float | None:
        """Return the longest round trip between CPUs now, in ns; None if a CPU is too busy."""
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None or self._process.poll() is not None:
            return None
        try:
            stdin.write(b".")
        except BrokenPipeError:  # it ended a moment ago
            return None
        ready, _, _ = select.select([stdout], [], [], _ANSWER_S)
        if not ready:  # its answer would be taken for that to the next question
            self._process.kill()
            return None
        trip_ns = float(stdout.readline() or -1)
        if trip_ns < 0:
            return None
        self._shortest_ns = min(trip_ns, self._shortest_ns)
        return trip_ns

    def apart(self, trip_ns: float | None) -> bool:
        """Return whether CPUs with this round trip are further apart than at their closest."""
        return trip_ns is not None and trip_ns > self._shortest_ns + APART_NS

    @property
    def patient(self) -> bool:
        """Whether `settle` would still wait."""
        elapsed_s = time.monotonic() - self._start_s
        return self.waited_s < _PATIENCE_S + _PATIENCE_SHARE * elapsed_s

    def settle(self) -> float | None:
        """Wait until the CPUs are close, while patience lasts; return the last round trip."""
        start_s = time.monotonic()
        waited_s = self.waited_s
        while self.apart(trip_ns := self.look()) and self.patient:
            time.sleep(_LOOK_S)
            self.waited_s = waited_s + time.monotonic() - start_s
        return trip_ns


def longest(*trips_ns: float | None) -> float | None:
    """Return the longest of some round trips, None if none is known."""
    return max((trip_ns for trip_ns in trips_ns if trip_ns is not None), default=None)


def _virtual() -> bool:
    """Return whether Linux tells that this is a virtual machine."""
    text = _CPUINFO.read_text() if _CPUINFO.exists() else ""
    flags = re.search(r"^flags\s*:(.*)", text, re.MULTILINE)
    return flags is not None and "hypervisor" in flags[1].split()


@contextmanager
def watched(threads: int) -> Iterator[Handover | None]:
    """Yield a watch over the CPUs of forwards of `threads` threads.

    It is None for one thread, where threads are fewer than CPUs, since it is unknown then which of
    them a forward runs on, and on a machine that is not known to be virtual: its CPUs stay.
    """
    cpus = sorted(os.sched_getaffinity(0)) if _virtual() else []
    if not 1 < threads == len(cpus) <= _MOST_CPUS:
        yield None
        return
    handover = Handover(cpus)
    try:
        yield handover
    finally:
        handover.close()
