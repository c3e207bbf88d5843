"""Archives: wanted members of a valid one are read; hostile names, links and sizes are refused."""

import stat
import time
import tracemalloc
from collections.abc import Callable

import pytest
from nearfree.sources.fetching import members
from nearfree.sources.fetching import sdist as sdist_reader
from nearfree.sources.fetching.index import meter

from sources.fetching.archives import OTHER, RULE, SDIST, WHEEL, read, refused, sdist
from sources.fetching.indexserver import (
    GIB,
    Entry,
    Odd,
    Server,
    bomb_sdist,
    make_sdist,
    make_wheel,
    server,
    zeros,
)

__all__ = ["server"]


def pax(key: str, value: str) -> list[tuple[str, bytes | Odd]]:
    """Return a pax header with one field of the member after it."""
    field = f" {key}={value}\n".encode()
    length = len(field) + len(str(len(field) + 2))
    raw = str(length).encode() + field
    assert len(raw) == length
    return [("x", Odd(b"x", content=raw))]


def no_lines(size: int) -> bytes:
    """Return an sdist with an endless map of holes: a pax header, then a long member."""
    fields = {"major": "1", "minor": "0", "name": "demo-1.0/demo/a.py", "realsize": "9"}
    headers = b"".join(
        pax(f"GNU.sparse.{key}", value)[0][1].content for key, value in fields.items()
    )
    map_ = b"9" * 3 + b"\n" + b"1" * size
    return make_sdist(("x", Odd(b"x", content=headers)), ("demo-1.0/a", map_))


def test_the_wanted_members_of_a_wheel(server: Server) -> None:
    """A wheel gives the files whose whole path matches."""
    raw = make_wheel(RULE, OTHER, Entry("demo/rule.py.txt", b""), Entry("demo/x.py/", b""))
    assert read(server, WHEEL, raw) == {"demo/rule.py": RULE.raw}


def test_the_wanted_members_of_an_sdist(server: Server) -> None:
    """An sdist gives the files whose path below the top folder matches."""
    raw = make_sdist(
        ("demo-1.0/", Odd(b"5")),
        ("demo-1.0/demo/rule.py", RULE.raw),
        ("demo-1.0/demo/rule.py.txt", b""),
        ("demo-1.0/link.py", Odd(b"2", "demo/rule.py")),
    )
    assert read(server, SDIST, raw) == {"demo/rule.py": RULE.raw}


def test_a_leading_dot_is_no_top_folder(server: Server) -> None:
    """`./demo-1.0/x` is the same path as `demo-1.0/x`."""
    raw = make_sdist(("./demo-1.0/demo/rule.py", RULE.raw))
    assert read(server, SDIST, raw) == {"demo/rule.py": RULE.raw}


@pytest.mark.parametrize(("filename", "make"), [(WHEEL, make_wheel), (SDIST, make_sdist)])
def test_none_is_no_error(server: Server, filename: str, make: Callable[[], bytes]) -> None:
    """An artefact without a wanted member gives an empty dict."""
    assert read(server, filename, make()) == {}


def test_a_wheel_is_read_in_few_requests(server: Server) -> None:
    """Of a large wheel only the end and the parts around wanted members are read."""
    far = [Entry(f"demo/{n}.bin", OTHER.raw, OTHER.raw, method=0) for n in range(20)]
    near = [Entry(f"demo/{n}.py", b"N = %d\n" % n) for n in range(60)]
    raw = make_wheel(*far[:10], *near[:30], *far[10:], *near[30:])
    before = meter.fetched_bytes
    assert read(server, WHEEL, raw) == {entry.name: entry.raw for entry in near}
    assert len(raw) > 20_000_000
    assert meter.fetched_bytes - before < 300_000
    assert server.seen == ["demo", *[WHEEL] * 2], "the page, the end, the first thirty"


def test_a_large_directory_is_found(server: Server) -> None:
    """A directory longer than the first read is read with one more request."""
    many = [Entry(f"demo/{n:05}.txt", b"", method=0, packed=b"") for n in range(4000)]
    raw = make_wheel(RULE, OTHER, *many)
    assert read(server, WHEEL, raw) == {"demo/rule.py": RULE.raw}
    assert server.seen[1:] == [WHEEL] * 3


HOSTILE = [
    "../evil.py",
    "demo/../../evil.py",
    "demo/..",
    "/etc/evil.py",
    "demo\\evil.py",
    "C:evil.py",
    "c:/evil.py",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_refuses_a_wheel(server: Server, name: str) -> None:
    """A wheel with a name that leads out of it is refused, wanted or not."""
    refused(server, WHEEL, make_wheel(RULE, Entry(name, b"x")), "leads out of it", "demo/rule.py")


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_refuses_an_sdist(server: Server, name: str) -> None:
    """An sdist with a name that leads out of it is refused, even after the wanted members."""
    refused(server, SDIST, sdist((name, b"x")), "leads out of it", "demo/rule.py")


def test_a_nul_in_a_name_refuses_a_wheel(server: Server) -> None:
    """A name with a NUL is refused."""
    refused(server, WHEEL, make_wheel(RULE, Entry("demo/a.py\0.txt", b"x")), "leads out of it")


@pytest.mark.parametrize("name", ["demo-1.0/demo/a.py\0.txt", "../evil.py", "/etc/evil.py"])
def test_a_hostile_name_in_an_extension_is_refused(server: Server, name: str) -> None:
    """A hostile name in a pax header is refused."""
    refused(server, SDIST, sdist(*pax("path", name), ("ok", b"x")), "leads out of it")


@pytest.mark.parametrize("size", [GIB, -1, 10**30])
def test_a_size_in_an_extension_is_checked(server: Server, size: int) -> None:
    """A size in a pax header is checked."""
    raw = sdist(*pax("size", str(size)), ("demo-1.0/demo/a.py", b"x"))
    refused(server, SDIST, raw, "bytes long|no whole archive")


@pytest.mark.parametrize("mode", [stat.S_IFLNK | 0o777, stat.S_IFCHR, stat.S_IFIFO])
def test_a_wanted_link_refuses_a_wheel(server: Server, mode: int) -> None:
    """A wanted member of a wheel that is a link or a device is refused."""
    raw = make_wheel(RULE, Entry("demo/link.py", b"/etc/passwd", mode=mode))
    refused(server, WHEEL, raw, r"demo/link\.py' is a link or a device")
    assert read(server, WHEEL, raw, "demo/rule.py") == {"demo/rule.py": RULE.raw}


@pytest.mark.parametrize("kind", [b"1", b"2", b"3", b"4", b"6"])
def test_a_wanted_link_refuses_an_sdist(server: Server, kind: bytes) -> None:
    """A wanted member of an sdist that is a link or a device is refused."""
    raw = sdist(("demo-1.0/demo/link.py", Odd(kind, "/etc/passwd")))
    refused(server, SDIST, raw, r"demo/link\.py' is a link or a device")
    assert read(server, SDIST, raw, "demo/rule.py") == {"demo/rule.py": RULE.raw}


@pytest.mark.parametrize(
    ("filename", "raw"),
    [
        (WHEEL, make_wheel(RULE, Entry("demo/big.py", bytes(GIB // 64), zeros(GIB), GIB))),
        (WHEEL, make_wheel(RULE, Entry("demo/big.py", bytes(1000), zeros(GIB), 999))),
        (SDIST, bomb_sdist("demo-1.0/demo/big.py", GIB)),
        (SDIST, bomb_sdist("demo-1.0/unwanted.bin", GIB)),
    ],
    ids=["wheel", "lying wheel", "sdist", "sdist unwanted"],
)
def test_a_member_of_a_gigabyte_is_refused(server: Server, filename: str, raw: bytes) -> None:
    """A member of 1 GB is refused in seconds and in little memory."""
    assert len(raw) < GIB // 64
    tracemalloc.start()
    begin = time.monotonic()
    refused(server, filename, raw, "bytes|archive")
    assert time.monotonic() - begin < 5
    assert tracemalloc.get_traced_memory()[1] < 48 * 2**20
    tracemalloc.stop()


def test_a_large_member_that_nobody_wants_does_not_matter_in_a_wheel(server: Server) -> None:
    """Large members of a wheel that are not wanted are not read."""
    raw = make_wheel(RULE, Entry("demo/_C.so", bytes(9), zeros(GIB), GIB))
    assert read(server, WHEEL, raw) == {"demo/rule.py": RULE.raw}


@pytest.mark.parametrize(
    ("limit", "reason"),
    [
        ("MEMBER_LIMIT", r"demo/a\.py is over 100 bytes"),
        ("TOTAL_LIMIT", "wanted files are over 100 bytes together"),
        ("COUNT_LIMIT", "over 1 members"),
    ],
)
@pytest.mark.parametrize("filename", [WHEEL, SDIST])
def test_limits_hold(
    server: Server, monkeypatch: pytest.MonkeyPatch, filename: str, limit: str, reason: str
) -> None:
    """The size of a member, of all members, and their number are limited."""
    monkeypatch.setattr(members, limit, 1 if limit == "COUNT_LIMIT" else 100)
    sizes = [101, 1] if limit == "MEMBER_LIMIT" else [50, 51]
    files = [(f"demo/{name}.py", bytes(size)) for name, size in zip("ab", sizes, strict=True)]
    if filename == WHEEL:
        raw = make_wheel(*(Entry(name, data) for name, data in files))
        if limit == "TOTAL_LIMIT":
            monkeypatch.setattr(members, "MEMBER_LIMIT", 10_000)
    else:
        raw = make_sdist(*((f"demo-1.0/{name}", data) for name, data in files))
    refused(server, filename, raw, reason)


@pytest.mark.parametrize("limit", ["PACKED_LIMIT", "UNPACKED_LIMIT"])
def test_an_sdist_ends(server: Server, monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    """An sdist above the limit, packed or unpacked, is refused while it is read."""
    monkeypatch.setattr(sdist_reader, limit, 2**20 if limit == "UNPACKED_LIMIT" else 1000)
    many = [(f"demo-1.0/{n}.bin", bytes(2**19)) for n in range(4)]
    refused(server, SDIST, sdist(*many), r"it is over \d+ bytes")


@pytest.mark.parametrize("kind", [b"x", b"g", b"L", b"K"])
def test_a_long_header_is_refused(server: Server, kind: bytes) -> None:
    """A tar header's extension is limited."""
    raw = bomb_sdist("x", GIB, kind)
    tracemalloc.start()
    refused(server, SDIST, raw, "no whole archive")
    assert tracemalloc.get_traced_memory()[1] < 48 * 2**20
    tracemalloc.stop()


def test_a_map_of_holes_is_refused(server: Server) -> None:
    """A file with holes is refused before its map is read."""
    begin = time.monotonic()
    refused(server, SDIST, no_lines(8 * 2**20), "no whole archive")
    refused(server, SDIST, sdist(("demo-1.0/demo/a.py", Odd(b"S"))), "no whole archive")
    assert time.monotonic() - begin < 5


def test_extensions_of_extensions_end(server: Server) -> None:
    """An endless chain of headers is refused."""
    raw = make_sdist(*[("x", Odd(b"x"))] * 5000)
    refused(server, SDIST, raw, "no whole archive")
