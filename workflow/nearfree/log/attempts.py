"""Earlier attempts of a take: locked against their writers, and read as far as the next keeps."""

import os
from collections.abc import Callable
from itertools import takewhile

from nearfree.core.plan import Plan
from nearfree.errors import BusyError, LogError
from nearfree.log.events import Event, RunStarted, SegmentRecovered
from nearfree.log.names import Layout, TakeName
from nearfree.log.reader import Segment, read_segment
from nearfree.log.seal import SealedSegment, seal_segment
from nearfree.log.segment import lock

Kept = tuple[SealedSegment, SegmentRecovered, tuple[Event, ...]]
Keep = Callable[[Segment, Plan], int]
"""Returns how many leading events of an attempt the next attempt goes on from."""


def header(segment: Segment, _plan: Plan) -> int:
    """Return how many events begin an attempt: its start, and what it recovered of others.

    A take of which no part counts alone keeps these, and does its work anew.
    """
    kinds = (RunStarted, SegmentRecovered)
    return sum(1 for _ in takewhile(lambda e: isinstance(e.data, kinds), segment.events))


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

    def kept(self, plan: Plan, keep: Keep) -> list[Kept]:
        """Return for each attempt the prefix that counts, its record, and its events."""
        kept = []
        for attempt, segment in zip(self.numbers, self.segments, strict=True):
            count = keep(segment, plan)
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
            kept.append((part, record, segment.events[:count]))
        return kept
