"""Seals: each closes a take and holds its segments' hashes. Receipts are copies of seals."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from msgspec import Struct

from nearfree.errors import DamageError, NearfreeError
from nearfree.log.document import read_document, replace, write_once
from nearfree.log.events import PAYLOADS, Event, Payload, RunStarted
from nearfree.log.line import REMEDY, sha256
from nearfree.log.names import Layout, TakeName
from nearfree.log.reader import (
    Segment,
    decode_lines,
    open_bytes,
    parse_segment,
    read_bytes,
    refuse_larger,
)
from nearfree.log.segment import SegmentWriter


class SealedSegment(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The sealed prefix of a segment: whatever follows the first `bytes` bytes is ignored."""

    attempt: int
    events: int
    bytes: int
    sha256: str
    head: str


class Seal(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A take's segments, oldest attempt first, as they were when the take was closed."""

    version: Literal[1] = 1
    scope: str
    stream: str
    take: int
    plan_digest: str
    outcome: Literal["complete", "partial"]
    segments: tuple[SealedSegment, ...]
    hash: str = ""

    @property
    def name(self) -> TakeName:
        """The take that this seal closes."""
        return TakeName(self.scope, self.stream, self.take, self.plan_digest[:8])


def seal_segment(path: Path, segment: Segment, attempt: int, kept_events: int) -> SealedSegment:
    """Return the seal's entry for the first `kept_events` events of a segment."""
    size = segment.ends[kept_events - 1] if kept_events else 0
    return SealedSegment(
        attempt=attempt,
        events=kept_events,
        bytes=size,
        sha256=sha256(read_bytes(path)[:size]),
        head=segment.heads[kept_events - 1] if kept_events else "",
    )


def seal_written(writer: SegmentWriter, attempt: int) -> SealedSegment:
    """Return the seal's entry for all that a writer wrote; hash the file, decode nothing.

    Raises
    ------
    DamageError
        The file does not hold what was written.
    """
    with open_bytes(writer.path) as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != writer.written.hexdigest():
        raise DamageError(f"{writer.path} does not hold what was written", remedy=REMEDY)
    return SealedSegment(
        attempt=attempt, events=writer.events, bytes=writer.size, sha256=digest, head=writer.head
    )


def write_seal(layout: Layout, seal: Seal) -> Path:
    """Write a seal once; BusyError if the take has one."""
    return write_once(layout.seal(seal.name), seal)


def read_seal(layout: Layout, take: TakeName) -> Seal:
    """Return a take's seal.

    Raises
    ------
    DamageError
        It is damaged, seals another take, or lists its attempts in no order: an attempt that is
        listed twice would count twice.
    """
    path = layout.seal(take)
    seal = read_document(path, Seal)
    if seal.name != take:
        raise DamageError(f"{path} seals {seal.name}", remedy="Put the file back in its own place")
    attempts = [part.attempt for part in seal.segments]
    if not attempts or attempts != sorted(set(attempts)):
        raise DamageError(
            f"{path} lists the attempts {attempts}: a seal lists each of its take once, in order",
            remedy=REMEDY,
        )
    return seal


def iter_sealed(
    layout: Layout, seal: Seal, only: tuple[type[Payload], ...] = PAYLOADS
) -> Iterator[Event]:
    """Yield a sealed take's events, in order: all, or those of some types.

    The hash is known only after the last byte, so a caller must use no event before the iterator
    has ended.

    Raises
    ------
    DamageError
        The bytes differ from the seal, which is known only at the end.
    """
    for part in seal.segments:
        path = layout.segment(seal.name, part.attempt)
        lines = _sealed_lines(path, part)
        try:
            yield from decode_lines(lines, seal.name.segment(part.attempt), path, only)
        except NearfreeError:
            for _ in lines:  # if the bytes differ from the seal, that error takes precedence
                pass
            raise


def check_sealed(layout: Layout, seal: Seal) -> int:
    """Check every hash of a sealed take, and return how many events it holds.

    Raises
    ------
    DamageError
        The bytes differ from the seal, or the seal names another plan than its runs do.
    """
    plans: set[str] = set()
    for part in seal.segments:
        path = layout.segment(seal.name, part.attempt)
        refuse_larger(path, part.bytes)
        raw = b"".join(_sealed_lines(path, part))
        segment = parse_segment(raw, seal.name.segment(part.attempt), path)
        if len(segment.events) != part.events or (part.events and segment.heads[-1] != part.head):
            raise _differs(path, "counts or head")
        plans |= {e.data.plan_digest for e in segment.events if isinstance(e.data, RunStarted)}
    if plans != {seal.plan_digest}:
        raise DamageError(
            f"{layout.seal(seal.name)} names the plan {seal.plan_digest}, and its runs "
            f"{' and '.join(sorted(plans)) or 'none'}",
            remedy=REMEDY,
        )
    return sum(part.events for part in seal.segments)


def _sealed_lines(path: Path, part: SealedSegment) -> Iterator[bytes]:
    digest, bytes_left = hashlib.sha256(), part.bytes
    with open_bytes(path) as file:
        while line := file.readline(bytes_left):
            digest.update(line)
            bytes_left -= len(line)
            yield line
    if bytes_left or digest.hexdigest() != part.sha256:
        raise _differs(path, f"first {part.bytes} bytes")


def _differs(path: Path, part: str) -> DamageError:
    return DamageError(f"{path} is not what its seal says: its {part} differ", remedy=REMEDY)


def write_receipt(layout: Layout, take: TakeName) -> Path:
    """Copy a take's seal to the path where the workflow looks for the receipt."""
    return replace(layout.receipt(take), read_bytes(layout.seal(take)))
