"""Sdists: read as a stream; the wanted members count only if the whole archive's hash is right."""

import hashlib
import io
import re
import tarfile
from collections.abc import Callable, Iterator
from gzip import GzipFile
from typing import NoReturn

from nearfree.sources.fetching import members as limits
from nearfree.sources.fetching.index import Artefact, meter, open_url
from nearfree.sources.fetching.members import (
    check_count,
    check_file,
    check_name,
    check_size,
    readable,
    refusal,
)

SKIPPED_LIMIT = 256 * 2**20
"""Limit of a skipped member of an sdist, in bytes."""
PACKED_LIMIT = 2 * 2**30
"""Limit of an sdist as it is sent, in bytes."""
UNPACKED_LIMIT = 4 * 2**30
"""Limit of an sdist's unpacked stream, in bytes."""
HEADER_LIMIT = 2**15
"""Limit of a tar header's extension (a long name or pax fields), in bytes; tarfile is slow on
longer ones.
"""
CHUNK = 2**18


def read_sdist(artefact: Artefact, wanted: re.Pattern[str]) -> dict[str, bytes]:
    """Return an sdist's wanted members by path inside its top folder; empty if it has none.

    Raises
    ------
    SourceError
        The sdist is hostile or broken, is no .tar.gz, or does not have the index's SHA-256.
    """
    files, digests = read_packed(artefact, wanted)
    if digests["sha256"].hex() != artefact.sha256:
        raise refusal(artefact, "its SHA-256 is not the one that the index says")
    return files


def read_packed(
    artefact: Artefact,
    wanted: re.Pattern[str],
    *,
    hashes: tuple[str, ...] = ("sha256",),
    limit: int | None = None,
    setting: str = "PIP_INDEX_URL",
) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """Return a .tar.gz's wanted members by path inside its top folder, and its hashes by name.

    The caller must compare the hashes with the index's before it uses a member.

    Parameters
    ----------
    wanted
        A pattern of members' paths below the top folder.
    hashes
        Hashes of the whole archive, by hashlib's names.
    limit
        Limit of one wanted member in bytes, if it may exceed `members.MEMBER_LIMIT`.
    setting
        The variable that names another index.

    Raises
    ------
    SourceError
        The archive is hostile or broken, or no .tar.gz.
    """
    if not artefact.filename.endswith((".tar.gz", ".tgz")):
        raise refusal(artefact, "only .tar.gz is read")
    digests = [hashlib.new(name) for name in hashes]
    with readable(artefact), open_url(artefact.url, str(artefact), setting=setting) as response:

        def read_and_hash(size: int) -> bytes:
            raw = meter.read(response, size)
            for digest in digests:
                digest.update(raw)
            return raw

        packed = _Limited(artefact, read_and_hash, PACKED_LIMIT)
        with GzipFile(mode="rb", fileobj=packed) as gzip:
            unpacked = _Limited(artefact, gzip.read, UNPACKED_LIMIT)
            with tarfile.open(fileobj=unpacked, mode="r|", bufsize=CHUNK, tarinfo=_Header) as tar:
                files = _tar_members(artefact, tar, wanted, limit)
        while packed.read(CHUNK):
            pass
    return files, {digest.name: digest.digest() for digest in digests}


class _Limited(io.BufferedIOBase):
    """A stream that is refused once more bytes are read from it than its limit."""

    def __init__(self, artefact: Artefact, read: Callable[[int], bytes], limit: int) -> None:
        self._artefact, self._read, self._limit, self._left = artefact, read, limit, limit

    def read(self, size: int | None = -1, /) -> bytes:
        raw = self._read(CHUNK if size is None or size < 0 else size)
        self._left -= len(raw)
        if self._left < 0:
            raise refusal(self._artefact, f"it is over {self._limit} bytes")
        return raw


class _Header(tarfile.TarInfo):
    """A tar header of limited length, extensions included, that describes no sparse file.

    tarfile reads extensions and maps of holes completely, however long they are.
    """

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> "_Header":
        header = super().frombuf(buf, encoding, errors)
        if header.size < 0 or (not header.isreg() and header.size > HEADER_LIMIT):
            raise tarfile.ReadError("a header of an implausible size")
        return header

    def _refuse_holes(self, *_: object) -> NoReturn:
        raise tarfile.ReadError("a sparse file")

    _proc_sparse = _proc_gnusparse_10 = _refuse_holes


def _tar_members(
    artefact: Artefact, tar: tarfile.TarFile, wanted: re.Pattern[str], limit: int | None
) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    paths: set[str] = set()
    tops = set()
    total = 0
    for member in _headers(artefact, tar):
        top, _, path = member.name.removeprefix("./").partition("/")
        if not wanted.fullmatch(path) or member.isdir():
            continue
        tops.add(top)
        check_file(artefact, path, paths, plain=member.isreg() and not member.issparse())
        check_size(artefact, path, member.size, total, limit=limit)
        content = tar.extractfile(member)
        files[path] = content.read((limit or limits.MEMBER_LIMIT) + 1) if content else b""
        total = check_size(artefact, path, len(files[path]), total, limit=limit)
    if len(tops) > 1:
        raise refusal(artefact, "it has more than one top folder")
    return files


def _headers(artefact: Artefact, tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Yield an sdist's members in order, each with an acceptable name and size."""
    count = 0
    while (member := tar.next()) is not None:
        count += 1
        check_count(artefact, count)
        check_name(artefact, member.name)
        if not 0 <= member.size <= SKIPPED_LIMIT:
            raise refusal(artefact, f"{member.name} is {member.size} bytes long")
        yield member
        tar.members.clear()  # type: ignore[attr-defined]  # tarfile would keep all of them
