"""A package index on this host: pages, files with ranges, and faults."""

import base64
import gzip
import hashlib
import io
import re
import socket
import struct
import tarfile
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

import pytest
from nearfree.sources.fetching import index

GIB = 2**30


@dataclass
class Server:
    """The index's content and faults; `seen` lists its requests."""

    url: str = ""
    pages: dict[str, str] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    status: dict[str, int] = field(default_factory=dict)
    cut: set[str] = field(default_factory=set)
    type: str = "text/html"
    ranges: bool = True
    shift: int = 0
    short: bool = False
    seen: list[str] = field(default_factory=list)
    sockets: list[socket.socket] = field(default_factory=list)

    def put(self, filename: str, raw: bytes, *, digest: str = "", yanked: bool = False) -> str:
        """Add a file to its package's page; return its SHA-256."""
        package = re.split(r"-\d", filename)[0].replace("_", "-").lower()
        digest = digest or hashlib.sha256(raw).hexdigest()
        mark = ' data-yanked="broken"' if yanked else ""
        link = f'<a href="/files/{filename}#sha256={digest}"{mark}>{filename}</a>\n'
        self.pages[package] = self.pages.get(package, "<!DOCTYPE html>\n") + link
        self.files[filename] = raw
        return digest


class Handler(BaseHTTPRequestHandler):
    """Answers GET with a page, a file, or a part of a file."""

    protocol_version = "HTTP/1.1"
    state: Server

    def setup(self) -> None:
        super().setup()
        self.state.sockets.append(self.connection)

    def do_GET(self) -> None:
        kind, name = self.path.strip("/").split("/")
        self.state.seen.append(name)
        pages = {package: page.encode() for package, page in self.state.pages.items()}
        raw = (pages if kind == "simple" else self.state.files).get(name)
        if raw is None or name in self.state.status:
            self.send_error(self.state.status.get(name, 404))
            return
        low, high, total = 0, len(raw), len(raw)
        byte_range = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        partial = byte_range is not None and self.state.ranges and kind == "files"
        if byte_range and partial:
            low = int(byte_range[1]) if byte_range[1] else max(0, total - int(byte_range[2]))
            high = min(int(byte_range[2]) + 1, total) if byte_range[1] and byte_range[2] else total
            low, high = low + self.state.shift, high + self.state.shift
        self.send_response(206 if partial else 200)
        if partial:
            self.send_header("Content-Range", f"bytes {low}-{high - 1}/{total}")
            high -= self.state.short
        self.send_header("Content-Type", self.state.type if kind == "simple" else "binary/x")
        self.send_header("Content-Length", str(high - low))
        self.end_headers()
        body = raw[low:high]
        if name in self.state.cut:
            body, self.close_connection = body[: len(body) // 2], True
        with suppress(ConnectionError):  # whoever refuses an archive hangs up on it
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@contextmanager
def serving() -> Iterator[Server]:
    """Run an empty index until the end of the block."""
    state = Server()
    handler = type("Bound", (Handler,), {"state": state})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = False
        state.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield state
        finally:
            index.close()
            server.shutdown()
            thread.join()
            for connection in state.sockets:
                with suppress(OSError):  # the other side keeps it while an error is looked at
                    connection.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """Return a running index that PIP_INDEX_URL names, in a working folder of its own."""
    monkeypatch.chdir(tmp_path)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with serving() as state:
        monkeypatch.setenv("PIP_INDEX_URL", f"{state.url}/simple")
        yield state


class Entry(NamedTuple):
    """A zip member to be written, valid or not."""

    name: str
    raw: bytes
    packed: bytes | None = None
    size: int | None = None
    mode: int = 0o100644
    offset: int | None = None
    method: int = zlib.DEFLATED


def deflate(raw: bytes) -> bytes:
    """Return bytes as a raw deflate stream."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return packer.compress(raw) + packer.flush()


def zeros(size: int) -> bytes:
    """Return a deflate stream of zeros, made from one repeated piece."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    piece = packer.compress(bytes(2**20)) + packer.flush(zlib.Z_FULL_FLUSH)
    return piece * (size // 2**20) + deflate(b"")


def make_zip(*entries: Entry) -> bytes:
    """Return a zip file of exactly these members, valid or not."""
    body = directory = b""
    for name, raw, packed, claimed, mode, offset, method in entries:
        data = deflate(raw) if packed is None else packed
        name_raw = name.encode()
        size = len(raw) if claimed is None else claimed
        fields = (20, 0x800, method, 0, 0x21, zlib.crc32(raw), len(data), size, len(name_raw), 0)
        place = len(body) if offset is None else offset
        directory += struct.pack(
            "<IHHHHHHIIIHHHHHII", 0x02014B50, 20 | 3 << 8, *fields, 0, 0, 0, mode << 16, place
        )
        directory += name_raw
        if offset is None:
            body += struct.pack("<IHHHHHIIIHH", 0x04034B50, *fields) + name_raw + data
    count = len(entries)
    end = (0x06054B50, 0, 0, count, count, len(directory), len(body), 0)
    return body + directory + struct.pack("<IHHHHIIH", *end)


def record(*entries: Entry) -> Entry:
    """Return a RECORD of some members with their true hashes."""
    lines = []
    for entry in entries:
        digest = base64.urlsafe_b64encode(hashlib.sha256(entry.raw).digest()).decode().rstrip("=")
        name = f'"{entry.name}"' if "," in entry.name else entry.name
        lines.append(f"{name},sha256={digest},{len(entry.raw)}\n")
    text = "".join(lines) + "demo-1.0.dist-info/RECORD,,\n"
    return Entry("demo-1.0.dist-info/RECORD", text.encode())


def make_wheel(*entries: Entry) -> bytes:
    """Return a wheel of these members and their RECORD."""
    return make_zip(*entries, record(*entries))


class Odd(NamedTuple):
    """A tar member that is no plain file, or whose size is wrong."""

    type: bytes = tarfile.REGTYPE
    linkname: str = ""
    size: int = 0
    content: bytes = b""


def make_tar(members: list[tuple[str, bytes | Odd]]) -> bytes:
    """Return a tar of these members, in this order, names as they are."""
    tar = b""
    for name, content in members:
        info = tarfile.TarInfo(name)
        if isinstance(content, Odd):
            info.type, info.linkname = content.type, content.linkname
            info.size = content.size or len(content.content)
        else:
            info.size = len(content)
        raw = content.content if isinstance(content, Odd) else content
        tar += info.tobuf(tarfile.GNU_FORMAT) + raw + bytes(-len(raw) % 512)
    return tar


def make_sdist(*members: tuple[str, bytes | Odd]) -> bytes:
    """Return a .tar.gz of these members."""
    file = io.BytesIO()
    with gzip.GzipFile(fileobj=file, mode="wb", mtime=0) as packed:
        packed.write(make_tar(list(members)) + bytes(10240))
    return file.getvalue()


def bomb_sdist(name: str, size: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    """Return a .tar.gz of one member of zeros, a thousandth of its size."""
    head = deflate_open(make_tar([(name, Odd(kind, size=size))]))
    gz_head = b"\x1f\x8b\x08\0\0\0\0\0\0\xff"
    return gz_head + head + zeros(size + 2**20) + bytes(8)


def deflate_open(raw: bytes) -> bytes:
    """Return bytes as the beginning of a deflate stream."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return packer.compress(raw) + packer.flush(zlib.Z_FULL_FLUSH)
