"""Wheels: only the wanted members, by range requests, each verified by the wheel's RECORD."""

import base64
import csv
import hashlib
import io
import re
import stat
import zipfile
from itertools import pairwise
from typing import TYPE_CHECKING

from nearfree.errors import SourceError
from nearfree.sources.fetching.index import Artefact, meter, open_url
from nearfree.sources.fetching.members import (
    check_count,
    check_file,
    check_name,
    check_size,
    readable,
    refusal,
)

if TYPE_CHECKING:
    from requests import Response

DIRECTORY_LIMIT = 16 * 2**20
"""Limit of the bytes at a wheel's end that are read to find its directory."""
TAIL = 2**16
"""Bytes at a wheel's end that are read first: they give the position of its directory."""
GAP = 2**17
"""Bytes between two wanted members that are cheaper to read than another request."""


def read_wheel(
    artefact: Artefact, wanted: re.Pattern[str], *, limit: int | None = None
) -> dict[str, bytes]:
    """Return a wheel's wanted members by path, by a few range requests; empty if it has none.

    Parameters
    ----------
    limit
        Limit of one member in bytes, if it may exceed `members.MEMBER_LIMIT`.

    Raises
    ------
    SourceError
        The wheel is hostile or broken, a member's hash is not RECORD's, or the server supports no
        ranges.
    """
    with readable(artefact), _Ranges(artefact) as file, zipfile.ZipFile(file) as wheel:
        entries = sorted(wheel.infolist(), key=lambda entry: entry.header_offset)
        _check_entries(artefact, entries, wheel.start_dir)
        wanted_entries = [
            entry for entry in entries if wanted.fullmatch(entry.filename) and not entry.is_dir()
        ]
        if not wanted_entries:
            return {}
        records = [
            entry for entry in entries if re.fullmatch(r"[^/]+\.dist-info/RECORD", entry.filename)
        ]
        if len(records) != 1:
            raise refusal(artefact, f"it has {len(records)} RECORD files")
        _check_wanted(artefact, [*wanted_entries, *records], limit)
        file.load(_spans([*wanted_entries, *records], entries, wheel.start_dir))
        hashes = _record_hashes(artefact, _zip_member(wheel, records[0]))
        files = {entry.filename: _zip_member(wheel, entry) for entry in wanted_entries}
    for path, raw in files.items():
        if hashes.get(path) != hashlib.sha256(raw).digest():
            raise refusal(artefact, f"{path} is not what its RECORD says")
    return files


class _Ranges(io.BufferedIOBase):
    """A remote file read in parts: its end as far as needed, and given spans."""

    def __init__(self, artefact: Artefact) -> None:
        self._artefact = artefact
        self._size = 0
        self._position = 0
        self._spans: list[tuple[int, bytes]] | None = None
        self._tail_at, self._tail = self._fetch(f"-{TAIL}", None)

    def load(self, spans: list[tuple[int, int]]) -> None:
        """Fetch spans of bytes; after this, nothing else is fetched."""
        self._spans = []
        for low, high in spans:
            if high > self._tail_at:
                self._extend(low)
            else:
                self._spans.append(self._fetch(f"{low}-{high - 1}", low))

    def read(self, size: int | None = -1, /) -> bytes:
        low = min(self._position, self._size)
        high = self._size if size is None or size < 0 else min(low + size, self._size)
        if low < self._tail_at and self._spans is None:
            # RECORD is the last member, before the directory, and about half as long: one request
            # gets both.
            low_record = max(0, low - (high - low) // 2)
            if self._size - low_record > DIRECTORY_LIMIT:
                raise refusal(self._artefact, f"its directory is over {DIRECTORY_LIMIT} bytes")
            self._extend(low_record)
        self._position = high
        parts: list[tuple[int, bytes]] = [*(self._spans or ()), (self._tail_at, self._tail)]
        for start, raw in parts:
            if start <= low and high <= start + len(raw):
                return raw[low - start : high - start]
        raise refusal(self._artefact, "a member lies outside its span")

    def seek(self, offset: int, whence: int = 0, /) -> int:
        self._position = offset + {0: 0, 1: self._position, 2: self._size}[whence]
        if self._position < 0:
            raise ValueError("a position before the file")
        return self._position

    def tell(self) -> int:
        return self._position

    def seekable(self) -> bool:
        return True

    def _extend(self, low: int) -> None:
        """Make the tail begin at `low`, if it begins later."""
        if low < self._tail_at:
            _, raw = self._fetch(f"{low}-{self._tail_at - 1}", low)
            self._tail_at, self._tail = low, raw + self._tail

    def _fetch(self, byte_range: str, low: int | None) -> tuple[int, bytes]:
        """Return where the sent bytes begin, and the bytes; refuse any other range."""
        artefact = self._artefact
        with open_url(artefact.url, str(artefact), {"Range": f"bytes={byte_range}"}) as response:
            start, end, size = _content_range(artefact, response)
            tail = (max(0, size - TAIL), size - 1)
            expected = tail if low is None else (low, int(byte_range.partition("-")[2]))
            if (start, end) != expected or self._size not in {0, size}:
                raise refusal(artefact, "the server sends other parts of it than requested")
            self._size = size
            raw = meter.read(response, end - start + 1)
        if len(raw) != end - start + 1:
            raise refusal(artefact, "it ends too early")
        return start, raw


def _content_range(artefact: Artefact, response: "Response") -> tuple[int, int, int]:
    header = response.headers.get("Content-Range", "")
    match = re.fullmatch(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})", header)
    if response.status_code != 206 or match is None:
        raise SourceError(
            f"{artefact} is not available in parts: the server supports no range requests",
            remedy="Set PIP_INDEX_URL to an index whose files can be read by ranges",
        )
    start, end, size = map(int, match.groups())
    return start, end, size


def _check_entries(artefact: Artefact, entries: list[zipfile.ZipInfo], end: int) -> None:
    """Refuse a wheel with a hostile name, or with two members that share bytes."""
    check_count(artefact, len(entries))
    for entry in entries:
        check_name(artefact, entry.orig_filename)
    spans = [
        (entry.header_offset, entry.header_offset + _HEADER_BYTES + entry.compress_size)
        for entry in entries
    ]
    if any(span[1] > following[0] for span, following in pairwise([*spans, (end, end)])):
        raise refusal(artefact, "its members overlap")


def _check_wanted(
    artefact: Artefact, wanted_entries: list[zipfile.ZipInfo], limit: int | None
) -> None:
    """Refuse wanted members that are not plain files of acceptable size, before the fetch."""
    total = 0
    paths: set[str] = set()
    for entry in wanted_entries:
        kind = stat.S_IFMT(entry.external_attr >> 16)
        check_file(artefact, entry.filename, paths, plain=kind in {0, stat.S_IFREG})
        if entry.compress_type not in {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
            # Other methods unpack a whole block at once, however large it is.
            raise refusal(artefact, f"{entry.filename} is packed in a way that wheels do not use")
        size = max(entry.file_size, entry.compress_size)
        total = check_size(artefact, entry.filename, size, total, limit=limit)


_HEADER_BYTES = 30
"""Bytes of a zip member's own header without its name and extra field."""
_VARIABLE_BYTES = 2 * 0xFFFF + 24
"""Limit of the bytes of a name, an extra field, and the sizes that may follow the data."""


def _spans(
    wanted_entries: list[zipfile.ZipInfo], entries: list[zipfile.ZipInfo], end: int
) -> list[tuple[int, int]]:
    """Return the byte spans that hold some members, merged across small gaps."""
    starts = [*(entry.header_offset for entry in entries), end]
    next_start = dict(pairwise(starts))
    spans: list[tuple[int, int]] = []
    for entry in sorted(wanted_entries, key=lambda entry: entry.header_offset):
        low = entry.header_offset
        high = min(next_start[low], low + _HEADER_BYTES + entry.compress_size + _VARIABLE_BYTES)
        if spans and low - spans[-1][1] < GAP:
            spans[-1] = (spans[-1][0], high)
        else:
            spans.append((low, high))
    return spans


def _zip_member(wheel: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    """Return a member's bytes; the explicit length bounds what a false header unpacks to."""
    with wheel.open(entry) as file:
        return file.read(entry.file_size + 1)


def _record_hashes(artefact: Artefact, raw: bytes) -> dict[str, bytes]:
    """Return the SHA-256 of each file that RECORD gives one for."""
    hashes: dict[str, bytes] = {}
    for row in csv.reader(io.StringIO(raw.decode(), newline="")):
        algorithm, _, text = (row[1] if len(row) > 1 else "").partition("=")
        if algorithm == "sha256":
            if row[0] in hashes:
                raise refusal(artefact, f"its RECORD names {row[0]} twice")
            hashes[row[0]] = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    return hashes
