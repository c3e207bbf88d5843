"""Earlier attempts of a take: locked against their writers, and read up to the last whole round."""

import os

from nearfree.core.plan import MeasurePlan, Plan
from nearfree.errors import BusyError, LogError
from nearfree.log.events import (
    Event,
    LatencyMeasured,
    LaunchFloor,
    RunStarted,
    SegmentRecovered,
    SharesMeasured,
    WorkCounted,
)
from nearfree.log.names import Layout, TakeName
from nearfree.log.reader import Segment, read_segment
from nearfree.log.seal import SealedSegment, seal_segment
from nearfree.log.segment import lock

_HEADER = RunStarted | SegmentRecovered | WorkCounted | LaunchFloor
Kept = tuple[SealedSegment, SegmentRecovered, tuple[Event, ...]]


class Attempts:
    """What the attempts of an unsealed take hold, as the next attempt will use it.

    The locks are held until `release`, so that a process which still writes one, or is about to,
    and a process that goes on from it are never let in together.

    Raises
    ------
    BusyError
        A living process writes one of them, or the take was sealed meanwhile.
    DamageError
        One holds a whole line that is not what was written.
    """

    def __init__(self, layout: Layout, name: TakeName) -> None:
        self.layout = layout
        self.name = name
        self.numbers = layout.attempts(name)
        self.locks: list[int] = []
        try:
            for attempt in self.numbers:
                self._lock(attempt)
            self._refuse_sealed()
            self.segments = [
                read_segment(layout.segment(name, attempt), name.segment(attempt))
                for attempt in self.numbers
            ]
        except BaseException:
            self.release()
            raise

    def _lock(self, attempt: int) -> None:
        path = self.layout.segment(self.name, attempt)
        try:
            fd = os.open(path, os.O_RDWR)  # some file systems lock only what is open for writing
        except OSError as error:
            raise LogError(
                f"{path} cannot be opened: {error.strerror}",
                remedy="Check that you may write it, or ask for another take with retake",
            ) from error
        self.locks.append(fd)
        lock(fd, self.name.segment(attempt))

    def _refuse_sealed(self) -> None:
        if self.layout.seal(self.name).exists():
            raise BusyError(
                f"{self.name} was sealed meanwhile",
                remedy="Run the same command again: it returns at once",
            )

    def release(self) -> None:
        """Give the locks back."""
        while self.locks:
            os.close(self.locks.pop())

    @property
    def next(self) -> int:
        """The number of the next attempt."""
        return max(self.numbers, default=0) + 1

    def plan(self) -> Plan | None:
        """Return the plan that an attempt put on record, None if none came that far."""
        for segment in self.segments:
            for event in segment.events:
                if isinstance(event.data, RunStarted):
                    return event.data.plan
        return None

    def kept(self, plan: Plan) -> list[Kept]:
        """Return for each attempt the prefix that counts, its record, and its events."""
        found = []
        for attempt, segment in zip(self.numbers, self.segments, strict=True):
            count = whole_rounds(segment, plan)
            path = self.layout.segment(self.name, attempt)
            part = seal_segment(path, segment, attempt, count)
            record = SegmentRecovered(
                segment=segment.name,
                kept_events=count,
                kept_bytes=part.bytes,
                ignored_bytes=segment.size - part.bytes,
                head=part.head,
                torn=segment.torn_bytes > 0,
            )
            found.append((part, record, segment.events[:count]))
        return found


def whole_rounds(segment: Segment, plan: Plan) -> int:
    """Return how many leading events to keep: the header, whole rounds, and shares after them.

    Rounds are written one after the other and made durable as a whole, so what follows the last
    whole round was never acknowledged.
    """
    otherwise = plan.points_a_round if isinstance(plan, MeasurePlan) else 0
    kept = written = rounds = 0
    for number, event in enumerate(segment.events, start=1):
        if isinstance(event.data, LatencyMeasured):
            written += 1
            if written == (event.data.round_points or otherwise):
                kept, written, rounds = number, 0, rounds + 1
            continue
        header = isinstance(event.data, _HEADER) and not rounds
        if not written and (header or isinstance(event.data, SharesMeasured)):
            kept = number
    return kept
