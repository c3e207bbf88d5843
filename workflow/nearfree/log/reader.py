"""Read segments: check every line's hash, its link to the line before, and its type."""

import gc
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from stat import S_ISREG
from typing import Union

import msgspec
from msgspec import Struct

from nearfree.errors import DamageError, LogError, NearfreeError
from nearfree.log.events import ENVELOPES, PAYLOADS, Event, Payload, upcast, versions_of
from nearfree.log.line import GENESIS, REMEDY, SUFFIX, damaged_line, line_head, sequence_text

UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""The exceptions that decoding raises for invalid bytes."""
_decode = msgspec.json.Decoder(Union[ENVELOPES]).decode  # noqa: UP007 (built from a tuple)
LARGEST = 2 * 1024**3
"""Size in bytes of the largest file that is read into memory at once."""
_LINK = slice(-SUFFIX - len(b',"prevhash":""') - len(GENESIS), -SUFFIX)


def decode(line: bytes) -> Event:
    """Return the event of a line, its data in the newest version of its type."""
    return upcast(_decode(line))


@contextmanager
def gc_paused() -> Iterator[None]:
    """Pause the cyclic garbage collector: events hold no cycles, and may number a million."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class Segment(Struct, frozen=True):
    """The whole lines of a segment file, verified, and the size of the file."""

    name: str
    events: tuple[Event, ...]
    ends: tuple[int, ...]
    """For each event the offset of the byte after its line."""
    heads: tuple[str, ...]
    """For each event the SHA-256 of its line."""
    size: int
    """Bytes of the file, including a torn last line."""

    @property
    def torn_bytes(self) -> int:
        """Bytes after the last whole line."""
        return self.size - (self.ends[-1] if self.ends else 0)


@contextmanager
def open_bytes(path: Path) -> Iterator[BufferedReader]:
    """Open a plain file for reading; LogError if it cannot be read.

    Pipes and devices are refused: a pipe may block, and a device may have no end.
    """
    try:
        with open(path, "rb", opener=_unwaiting) as file:
            if not S_ISREG(os.fstat(file.fileno()).st_mode):
                raise LogError(
                    f"{path} is no plain file", remedy="Put a plain file in its place, or remove it"
                )
            yield file
    except OSError as error:
        raise LogError(
            f"{path} cannot be read: {error.strerror}",
            remedy="Check that it is there and that you may read it",
        ) from error


def _unwaiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def read_bytes(path: Path, most: int | None = None) -> bytes:
    """Return a file's bytes; LogError if it cannot be read or is too large.

    Parameters
    ----------
    most
        The largest size in bytes that is accepted (default: `LARGEST`).
    """
    with open_bytes(path) as file:
        refuse_larger(path, os.fstat(file.fileno()).st_size, most)
        return file.read()


def refuse_larger(path: Path, size: int, most: int | None = None) -> None:
    """Raise LogError if a file is too large to be read into memory; see `read_bytes`."""
    limit = LARGEST if most is None else most
    if size > limit:
        raise LogError(
            f"{path} would take {size:,} bytes of memory, and may take {limit:,}",
            remedy="Fetch another copy of it, or remove it",
        )


def read_segment(path: Path, name: str) -> Segment:
    """Return all whole lines of a segment; a last line without its newline counts as torn.

    Raises
    ------
    DamageError
        A whole line does not match its hash, its predecessor, its line number or its segment.
    LogError
        The file cannot be read, or holds an event type or version that this program lacks.
    """
    return parse_segment(read_bytes(path), name, path)


@gc_paused()
def parse_segment(raw: bytes, name: str, path: Path) -> Segment:
    """Return the segment that raw bytes hold; see `read_segment`."""
    lines = raw.split(b"\n")
    events, ends, heads = [], [], []
    head, end = GENESIS, 0
    for number, line in enumerate(lines[:-1], start=1):
        link, head = head, line_head(line) or ""
        if not head:
            raise damaged_line(f"{path} line {number}")
        if line[_LINK] != b',"prevhash":"%b"' % link.encode():
            raise _misplaced(f"{path} line {number}", "does not follow the line before it")
        events.append(_decode_in_place(line, name, path, number))
        end += len(line) + 1
        ends.append(end)
        heads.append(head)
    return Segment(name, tuple(events), tuple(ends), tuple(heads), len(raw))


def decode_lines(
    lines: Iterable[bytes], name: str, path: Path, only: tuple[type[Payload], ...] = PAYLOADS
) -> Iterator[Event]:
    """Yield the events of some types from whole lines whose bytes a seal covers.

    Types, versions and line numbers are checked; hashes are not computed again.
    """
    skipped = tuple(
        b'{"specversion":"1.0","type":"%b"' % version.type_name.encode()
        for kind in PAYLOADS
        if kind not in only
        for version in versions_of(kind)
    )
    for number, line in enumerate(lines, start=1):
        if line.startswith(skipped):
            continue
        yield _decode_in_place(line, name, path, number)


def _decode_in_place(line: bytes, name: str, path: Path, number: int) -> Event:
    """Return the event of a line; DamageError unless it names this segment and line number."""
    try:
        event = decode(line)
    except (*UNREADABLE, NearfreeError) as error:
        raise LogError(
            f"{path} line {number} holds an event that this version refuses: {error}",
            remedy="Read it with the nearfree version that wrote it, or a newer one; where that "
            "refuses it, too, retract the take",
        ) from error
    place = (name, str(number), sequence_text(number))
    if (event.source, event.id, event.sequence) != place:
        raise _misplaced(f"{path} line {number}", f"says it is {event.event_id}")
    return event


def _misplaced(where: str, what: str) -> DamageError:
    return DamageError(f"{where} {what}: lines were dropped, swapped or moved", remedy=REMEDY)
