"""Write a take, from its first attempt to its seal, over any number of interruptions."""

import os
import time
from collections.abc import Callable, Iterable
from functools import partial
from itertools import takewhile
from typing import Literal

from nearfree.core.plan import Plan, plan_digest
from nearfree.errors import BusyError, EvidenceError, LogError, NearfreeError
from nearfree.log.events import (
    DecodeMeasured,
    Event,
    LatencyMeasured,
    Payload,
    RunFailed,
    RunFinished,
    RunStarted,
    SegmentRecovered,
)
from nearfree.log.line import without_private
from nearfree.log.names import Layout, TakeName
from nearfree.log.reader import Segment, read_segment
from nearfree.log.run import describe_run
from nearfree.log.seal import (
    Seal,
    SealedSegment,
    read_seal,
    seal_segment,
    seal_written,
    write_receipt,
    write_seal,
)
from nearfree.log.segment import SegmentWriter, lock

_SAMPLES = (LatencyMeasured, DecodeMeasured)
Kept = tuple[SealedSegment, SegmentRecovered, tuple[Event, ...]]
Keep = Callable[[Segment, Plan], int]
"""Returns how many leading events of an attempt the next attempt keeps."""


def header(segment: Segment, _plan: Plan) -> int:
    """Return how many events form an attempt's header: its start, and its recovered segments.

    A take whose observations count only as a whole keeps the header alone, and starts anew.
    """
    kinds = (RunStarted, SegmentRecovered)
    return sum(1 for _ in takewhile(lambda e: isinstance(e.data, kinds), segment.events))


class Attempts:
    """The earlier attempts of an unsealed take, locked for the next attempt.

    The locks are held until `release`, so that no process writes an attempt while another process
    continues from it.

    Raises
    ------
    BusyError
        A living process writes an attempt, or the take was sealed meanwhile.
    DamageError
        An attempt holds a whole line that differs from what was written.
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
        """Release the locks."""
        while self.locks:
            os.close(self.locks.pop())

    @property
    def next(self) -> int:
        """The number of the next attempt."""
        return max(self.numbers, default=0) + 1

    def plan(self) -> Plan | None:
        """Return the plan that an attempt recorded; None if no attempt recorded one."""
        for segment in self.segments:
            for event in segment.events:
                if isinstance(event.data, RunStarted):
                    return event.data.plan
        return None

    def kept(self, plan: Plan, keep: Keep) -> list[Kept]:
        """Return for each attempt its kept prefix, the record of it, and the kept events."""
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


def take_name(scope: str, stream: str, take: int, plan: Plan) -> TakeName:
    """Return the name of a take of a plan.

    Raises
    ------
    LogError
        The plan holds text that is not UTF-8, such as a file name in another encoding.
    """
    try:
        return TakeName(scope, stream, take, plan_digest(plan)[:8])
    except UnicodeEncodeError as error:
        raise LogError(
            f"a take of {scope}/{stream} would hold {error.object!r:.80}, which is no UTF-8",
            remedy="Rename the file of that name, or write the text anew in UTF-8",
        ) from error


class OpenTake:
    """A take being written: the kept events of earlier attempts, and the writer of this one."""

    def __init__(self, layout: Layout, name: TakeName, plan: Plan, *, keep: Keep = header) -> None:
        self.layout = layout
        self.name = name
        self.plan = plan
        self.began = time.monotonic()
        attempts = Attempts(layout, name)
        try:
            before = attempts.kept(plan, keep)
            self.kept = [part for part, _, _ in before]
            self.recovered = [record for _, record, _ in before]
            self.events: list[Event] = [event for _, _, events in before for event in events]
            self.attempt = attempts.next
            self.writer = SegmentWriter(layout, name, self.attempt, held=attempts.locks)
        except BaseException:
            attempts.release()
            raise

    def start(self, started: RunStarted) -> None:
        """Record the start of the run, and what it keeps of earlier attempts."""
        self.append(started)
        for record in self.recovered:
            self.append(record)

    def append(self, data: Payload, *, sync: bool = True) -> str:
        """Write one event and return its id."""
        return self.writer.append(data, sync=sync)

    def sync(self) -> None:
        """Make every written event durable."""
        self.writer.sync()

    def fail(self, error: NearfreeError) -> None:
        """Record an error if the disk still allows it, and close the attempt."""
        failed = RunFailed(error=without_private(error.what), remedy=without_private(error.remedy))
        try:
            self.append(failed)
        except NearfreeError:
            pass  # the caller raises the first error; the log kept all that it held
        finally:
            self.writer.close()

    def finish(
        self,
        *,
        outcome: Literal["complete", "partial"] = "complete",
        timed_s: float | None = None,
    ) -> Seal:
        """Record the end of the run, seal the take and write its receipt; return the seal."""
        wall_s = round(time.monotonic() - self.began, 3)
        self.append(RunFinished(outcome=outcome, wall_s=wall_s, timed_s=timed_s))
        last = seal_written(self.writer, self.attempt)
        seal = Seal(
            scope=self.name.scope,
            stream=self.name.stream,
            take=self.name.take,
            plan_digest=plan_digest(self.plan),
            outcome=outcome,
            segments=(*self.kept, last),
        )
        write_seal(self.layout, seal)
        self.writer.close()
        write_receipt(self.layout, self.name)
        return seal


def ensure_sealed(layout: Layout, name: TakeName) -> Seal | None:
    """Return a take's seal and rewrite its receipt; None if the take is not sealed yet."""
    if not layout.seal(name).exists():
        return None
    seal = read_seal(layout, name)
    write_receipt(layout, name)
    return seal


def ensure_take(
    layout: Layout,
    name: TakeName,
    plan: Plan,
    describe: Callable[[int], RunStarted],
    observe: Callable[[OpenTake], float | None],
    *,
    keep: Keep = header,
) -> Seal:
    """Return the seal of a plan's take; observe and seal the take first if it has none.

    Parameters
    ----------
    describe
        Returns the record of the run's start, given the number of the attempt.
    observe
        Appends the observations; returns the seconds inside timed calls, if it times any.
    keep
        Returns how many events of an earlier attempt to keep; its header by default.

    Raises
    ------
    BusyError
        Another process writes the same take.
    EvidenceError
        Earlier attempts' samples were taken with other versions of the packages.
    NearfreeError
        What `observe` raised. The error is recorded, and a later call continues from the events
        that `keep` keeps.
    """
    sealed = ensure_sealed(layout, name)
    if sealed is not None:
        return sealed
    take = OpenTake(layout, name, plan, keep=keep)
    try:
        run = describe(take.attempt)
        _refuse_another_release(take, run)
        take.start(run)
        timed_s = observe(take)
        return take.finish(timed_s=timed_s)
    except NearfreeError as error:
        take.fail(error)
        raise
    finally:
        take.writer.close()


def ensure_events(
    layout: Layout,
    name: TakeName,
    plan: Plan,
    command: str,
    events: Callable[[], Iterable[Payload]],
    *,
    environment: str = "base",
    device: str | None = None,
) -> Seal:
    """Return the seal of a take that is recorded in one piece; record it first if it has none.

    Parameters
    ----------
    command, environment, device
        The command, its environment and its device, for the record: see `describe_run`.
    events
        Returns the observations; called only if there is no seal, once the take is open.

    Raises
    ------
    BusyError
        Another process writes the same take.
    NearfreeError
        What `events` raised; the error is recorded.
    """

    def observe(take: OpenTake) -> None:
        for event in events():
            take.append(event, sync=False)
        take.sync()

    describe = partial(describe_run, command, plan, environment=environment, device=device)
    return ensure_take(layout, name, plan, describe, observe)


def _refuse_another_release(take: OpenTake, run: RunStarted) -> None:
    """Raise EvidenceError if kept samples were taken with other package versions than now."""
    sampled = {event.source for event in take.events if isinstance(event.data, _SAMPLES)}
    for event in take.events:
        earlier = event.data
        if not isinstance(earlier, RunStarted) or event.source not in sampled:
            continue
        for name in sorted((earlier.versions.keys() | run.versions.keys()) - {"nearfree"}):
            old, new = earlier.versions.get(name), run.versions.get(name)
            if old != new:
                raise EvidenceError(
                    f"attempt {earlier.attempt} of {take.name} ran with {name} {old}, "
                    f"this is {new}",
                    remedy="Continue in the earlier environment, or ask for another take: "
                    f"`nearfree retake {take.name.scope} {take.name.stream}`",
                )
