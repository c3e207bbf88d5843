"""Segments: append-only files of hashed lines, each written by one process only."""

import fcntl
import hashlib
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import NoReturn, Self

import msgspec

from nearfree.errors import BusyError, LogError, NearfreeError, WriteError
from nearfree.log.events import Payload
from nearfree.log.line import (
    GENESIS,
    close_line,
    private_patterns,
    refuse_private,
    sequence_text,
    sha256,
)
from nearfree.log.names import Layout, TakeName
from nearfree.log.reader import decode

_encode = msgspec.json.Encoder().encode
_LINE = (
    b'{"specversion":"1.0","type":"%b","id":"%b","source":"%b","time":"%b",'
    b'"datacontenttype":"application/json","data":%b,"sequence":"%b","prevhash":"%b"}'
)


def utc_now() -> str:
    """Return the present as RFC 3339 text with microseconds."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


class SegmentWriter:
    """Writer of one segment: appends hashed lines, makes them durable, closes at a disk error.

    Parameters
    ----------
    layout, take, attempt
        Which segment; it must not exist yet.
    now
        The clock of the events' `time`.
    held
        Locked file descriptors of earlier attempts, closed together with this writer.

    Raises
    ------
    BusyError
        The segment exists, or another process writes it.
    """

    def __init__(
        self,
        layout: Layout,
        take: TakeName,
        attempt: int,
        *,
        now: Callable[[], str] = utc_now,
        held: list[int] | None = None,
    ) -> None:
        self.name = take.segment(attempt)
        self.path = layout.segment(take, attempt)
        self.events = 0
        self.size = 0
        self.head = GENESIS
        self.written = hashlib.sha256()
        self._now = now
        self._held = held if held is not None else []
        self._private = private_patterns()
        self._fd: int | None = None
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
        try:
            make_folder(self.path.parent)
        except OSError as error:
            self._fail(error)
        try:
            self._fd = os.open(self.path, flags, 0o644)
            lock(self._fd, self.name)
            sync_folder(self.path.parent)
        except FileExistsError:
            self.close()
            raise BusyError(
                f"the segment {self.name} exists already",
                remedy="Another job measures the same plan: wait for it, or take the next attempt",
            ) from None
        except OSError as error:
            self._fail(error)
        except BaseException:
            self.close()
            raise

    def append(self, data: Payload, *, sync: bool = True) -> str:
        """Write one event and return its id; with `sync` it is durable when this returns."""
        number = str(self.events + 1)
        try:
            encoded = _encode(data)
        except UnicodeEncodeError as error:
            raise self._unreadable(data) from error
        head = (data.type_name, number, self.name, self._now())
        chain = (sequence_text(self.events + 1), self.head)
        body = _LINE % (*map(str.encode, head), encoded, *map(str.encode, chain))
        line = close_line(body)
        self._check(line, data)
        self._write(line + b"\n")
        self.head = sha256(line)
        self.events += 1
        if sync:
            self.sync()
        return f"{self.name}#{number}"

    def sync(self) -> None:
        """Make everything appended so far durable; WriteError if the disk refuses."""
        try:
            os.fsync(self._open_fd())
        except OSError as error:
            self._fail(error)

    def close(self) -> None:
        """Close the file; a closed writer takes no more events."""
        for fd in (self._fd, *self._held):
            if fd is not None:
                os.close(fd)
        self._fd = None
        self._held.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check(self, line: bytes, data: Payload) -> None:
        """Refuse an event that would not read back equal, such as NaN, or that holds private text.

        Private are paths of the home folder and URLs.
        """
        try:
            same = decode(line).data == data
        except (msgspec.MsgspecError, NearfreeError) as error:
            raise self._unreadable(data, f": {error}") from error
        if not same:
            raise self._unreadable(data)
        refuse_private(line.decode(), f"an event of {self.name}", self._private)

    def _unreadable(self, data: Payload, reason: str = "") -> LogError:
        return LogError(
            f"a {data.type_name} of {self.name} would not read back as it is{reason}",
            remedy="Record finite numbers, text in UTF-8, and values that its type allows",
        )

    def _open_fd(self) -> int:
        if self._fd is None:
            raise LogError(f"the writer of {self.name} is closed", remedy="Open the next attempt")
        return self._fd

    def _write(self, raw: bytes) -> None:
        view = memoryview(raw)
        fd = self._open_fd()
        while view:
            try:
                written = os.write(fd, view)
            except OSError as error:
                self._fail(error)
            view = view[written:]
        self.size += len(raw)
        self.written.update(raw)

    def _fail(self, error: OSError) -> NoReturn:
        self.close()
        raise WriteError(
            f"{self.path} was not written in full: {error.strerror}",
            remedy="Free space, raise the quota, or see that you may write there; then run the "
            "same command again: it goes on from the last durable event",
        ) from error


def lock(fd: int, name: str) -> None:
    """Take the lock of a segment's writer; BusyError if a living process holds it."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise BusyError(
            f"{name} is being written by another process",
            remedy="Wait for it to end, or stop it, then run the same command again",
        ) from None
    except OSError as error:
        raise LogError(
            f"{name} cannot be locked: {error.strerror}",
            remedy="Keep the project on a file system with locks, such as NFS 4, or Lustre "
            "mounted with flock",
        ) from error


def make_folder(folder: Path) -> None:
    """Make a folder and its missing parents, and sync each into the folder above it."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Make a folder's new entries durable."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
