"""The process that times how long a value takes from one CPU to another and back.

    python handover_peer.py CPU CPU ...

It runs on the first CPU, with a child on each other one. For each byte on standard input it passes
numbers to each child through shared memory and back, and prints the longest median round trip in
nanoseconds, or -1 where a CPU was too busy to tell. It ends with its standard input. Only the
standard library is imported, so it starts in milliseconds in any environment.
"""

import mmap
import os
import sys
import time
from collections.abc import Sequence

TURNS = 200
_LEAST_TURNS = 50
_DEADLINE_NS = 20_000_000
_SPINS = 50_000
"""Reads of a cell before a clock or a parent is looked at."""
_IDLE, _READY, _STOP = 0, 254, 255
_LINE = 128
"""Bytes between two cells, so that no two share a cache line."""


def serve(cpus: Sequence[int]) -> None:
    """Answer each byte on standard input with a line, the longest round trip to any other CPU."""
    cells = memoryview(mmap.mmap(-1, 2 * _LINE * len(cpus)))
    children = [_child(cells, 2 * _LINE * place, cpu) for place, cpu in enumerate(cpus[1:])]
    os.sched_setaffinity(0, cpus[:1])
    own = memoryview(mmap.mmap(-1, _LINE))
    while os.read(0, 1):
        before_ns = _own_ns(own)
        trips = [_round_trip_ns(cells, call, wake) for call, wake in children]
        own_ns = min(before_ns, _own_ns(own))  # the CPU may just have woken up
        longest = max((trip - own_ns if trip else -1 for trip in trips), default=-1)
        known = all(trip is not None for trip in trips)
        print(max(longest, 0) if known else -1, flush=True)


def _child(cells: memoryview, call: int, cpu: int) -> tuple[int, int]:
    """Start the process that answers on a CPU; return its cell and the pipe that wakes it."""
    read_end, write_end = os.pipe()
    parent = os.getpid()
    if os.fork():
        os.close(read_end)
        return call, write_end
    os.close(write_end)
    os.sched_setaffinity(0, [cpu])
    while os.read(read_end, 1):
        _answer(cells, call, parent)
    os._exit(0)


def _answer(cells: memoryview, call: int, parent: int) -> None:
    """Write each number that comes into the cell of answers, until the one that says stop."""
    echo, last, turn = call + _LINE, _IDLE, _IDLE
    cells[echo] = _READY
    while turn != _STOP:
        for _ in range(_SPINS):
            turn = cells[call]
            if turn != last:
                break
        else:
            if os.getppid() != parent:
                os._exit(0)
            continue
        cells[echo] = last = turn


def _round_trip_ns(cells: memoryview, call: int, wake: int) -> int | None:
    """Return the median time of a number to a child and back; None if its CPU is too busy."""
    echo, deadline_ns = call + _LINE, time.perf_counter_ns() + _DEADLINE_NS
    cells[call], cells[echo] = _IDLE, _IDLE
    os.write(wake, b".")
    while cells[echo] != _READY:
        if time.perf_counter_ns() > deadline_ns:
            break
    trips: list[int] = []
    for turn in range(1, TURNS):
        trip_ns = _turn_ns(cells, call, echo, turn)
        if trip_ns is None or time.perf_counter_ns() > deadline_ns:
            break
        trips.append(trip_ns)
    cells[call] = _STOP
    return _median(trips) if len(trips) >= _LEAST_TURNS else None


def _own_ns(own: memoryview) -> int:
    """Return the median time to write a number and to read it back on the same CPU."""
    return _median([_turn_ns(own, 0, 0, turn) or 0 for turn in range(1, TURNS)])


def _turn_ns(cells: memoryview, call: int, echo: int, turn: int) -> int | None:
    """Return the time until a number that is written to a cell stands in the cell of answers."""
    start_ns = time.perf_counter_ns()
    cells[call] = turn
    for _ in range(_SPINS):
        if cells[echo] == turn:
            return time.perf_counter_ns() - start_ns
    return None


def _median(values: list[int]) -> int:
    return sorted(values)[len(values) // 2]


if __name__ == "__main__":
    serve([int(cpu) for cpu in sys.argv[1:]])
