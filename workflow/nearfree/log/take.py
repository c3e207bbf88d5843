"""A take from its first attempt to its seal, over as many interruptions as it meets."""

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


def take_name(scope: str, stream: str, take: int, plan: Plan) -> TakeName:
    """Return the name of a take of a plan.

    Raises
    ------
    LogError
        The plan holds text that is none, such as a file's name in another encoding than UTF-8.
    """
    try:
        return TakeName(scope, stream, take, plan_digest(plan)[:8])
    except UnicodeEncodeError as error:
        raise LogError(
            f"a take of {scope}/{stream} would hold {error.object!r:.80}, which is no UTF-8",
            remedy="Rename the file that is called so, or write the text anew",
        ) from error


class OpenTake:
    """A take that is being written: earlier attempts' kept events, and the writer of this one."""

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
        """Put the run on record, and what it kept of the attempts before it."""
        self.append(started)
        for record in self.recovered:
            self.append(record)

    def append(self, data: Payload, *, sync: bool = True) -> str:
        """Write one event and return its id."""
        return self.writer.append(data, sync=sync)

    def sync(self) -> None:
        """Make everything that was written durable."""
        self.writer.sync()

    def fail(self, error: NearfreeError) -> None:
        """Put an error on record as far as the disk still allows, and close the attempt."""
        failed = RunFailed(error=without_private(error.what), remedy=without_private(error.remedy))
        try:
            self.append(failed)
        except NearfreeError:
            pass  # the first error is the one to tell; the log lost nothing that it had
        finally:
            self.writer.close()

    def finish(
        self,
        *,
        outcome: Literal["complete", "partial"] = "complete",
        timed_s: float | None = None,
    ) -> Seal:
        """Put the end on record, seal the take and leave its receipt."""
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
    """Return a take's seal and renew its receipt, None if the take is not sealed yet."""
    if not layout.seal(name).exists():
        return None
    seal = read_seal(layout, name)
    write_receipt(layout, name)
    return seal


def ensure_take(
    layout: Layout,
    name: TakeName,
    plan: Plan,
    started: Callable[[int], RunStarted],
    work: Callable[[OpenTake], float | None],
    *,
    keep: Keep = header,
) -> Seal:
    """Make sure that a plan is sealed: return its seal, doing the work only if there is none.

    Parameters
    ----------
    started
        Describes the run, given the number of the attempt.
    work
        Appends the observations; returns the seconds inside timed calls, if it times any.
    keep
        Says how much of an earlier attempt the next one goes on from; only its header by default.

    Raises
    ------
    BusyError
        Another process is at the same take.
    EvidenceError
        Earlier attempts' samples were taken with other versions of the packages.
    NearfreeError
        What `work` raised; it is on record, and a later call goes on from what `keep` keeps.
    """
    sealed = ensure_sealed(layout, name)
    if sealed is not None:
        return sealed
    take = OpenTake(layout, name, plan, keep=keep)
    try:
        run = started(take.attempt)
        _refuse_another_release(take, run)
        take.start(run)
        timed_s = work(take)
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
    """Make sure that what a command reads or computes is sealed, nothing in part.

    Parameters
    ----------
    command, environment, device
        What was called, in which environment, on which device, for the record: see `describe_run`.
    events
        Returns the observations; called only if there is no seal, once the take is open.

    Raises
    ------
    BusyError
        Another process is at the same take.
    NearfreeError
        What `events` raised; it is on record.
    """

    def work(take: OpenTake) -> None:
        for event in events():
            take.append(event, sync=False)
        take.sync()

    started = partial(describe_run, command, plan, environment=environment, device=device)
    return ensure_take(layout, name, plan, started, work)


def _refuse_another_release(take: OpenTake, run: RunStarted) -> None:
    """Raise EvidenceError where kept samples were taken with other packages than these."""
    for event in take.events:
        before = event.data
        if not isinstance(before, RunStarted) or not _sampled(take, event.source):
            continue
        for name in sorted((before.versions.keys() | run.versions.keys()) - {"nearfree"}):
            old, new = before.versions.get(name), run.versions.get(name)
            if old != new:
                raise EvidenceError(
                    f"attempt {before.attempt} of {take.name} ran with {name} {old}, this is {new}",
                    remedy="Go on in the environment of before, or ask for another take: "
                    f"`nearfree retake {take.name.scope} {take.name.stream}`",
                )


def _sampled(take: OpenTake, segment: str) -> bool:
    return any(e.source == segment and isinstance(e.data, _SAMPLES) for e in take.events)
