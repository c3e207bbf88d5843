"""Archives: wanted members of a valid one are read; others are refused."""

import gzip
import random
import re
import stat
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from nearfree.errors import SourceError
from nearfree.sources.fetching import members
from nearfree.sources.fetching import sdist as sdist_reader
from nearfree.sources.fetching import wheel as wheel_reader
from nearfree.sources.fetching.index import close, meter, releases
from nearfree.sources.fetching.sdist import read_sdist
from nearfree.sources.fetching.wheel import read_wheel

from sources.fetching.indexserver import (
    GIB,
    Entry,
    Odd,
    Server,
    bomb_sdist,
    deflate,
    make_sdist,
    make_tar,
    make_wheel,
    make_zip,
    record,
    server,
    zeros,
)

__all__ = ["server"]

WHEEL = "demo-1.0-py3-none-any.whl"
SDIST = "demo-1.0.tar.gz"
RULE = Entry("demo/rule.py", b"RULE = 64\n")
OTHER = Entry("demo/other.bin", bytes(range(256)) * 4000)


def read(server: Server, filename: str, raw: bytes, wanted: str = r"demo/.*\.py") -> dict:
    """Serve one artefact and return its wanted members."""
    server.pages.clear()
    close()
    server.put(filename, raw)
    (artefact,) = releases("demo")["1.0"]
    reader = read_wheel if artefact.kind == "wheel" else read_sdist
    return reader(artefact, re.compile(wanted))


def refused(server: Server, filename: str, raw: bytes, reason: str, wanted: str = "demo/.*") -> str:
    """Check that an artefact is refused by name and reason; return the message."""
    with pytest.raises(SourceError, match=reason) as caught:
        read(server, filename, raw, wanted)
    assert caught.value.what.startswith(f"demo 1.0: {filename} is ")
    assert list(Path.cwd().iterdir()) == [], "nothing is written"
    return str(caught.value)


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


def sdist(*members: tuple[str, bytes | Odd]) -> bytes:
    """Return an sdist with a rule and further members."""
    return make_sdist(("demo-1.0/demo/rule.py", RULE.raw), *members)


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


def test_a_changed_sdist_is_refused(server: Server) -> None:
    """An sdist without the index's SHA-256 is refused and gives no file."""
    server.put(SDIST, sdist(), digest="0" * 64)
    (artefact,) = releases("demo")["1.0"]
    with pytest.raises(SourceError, match=r"demo 1\.0: demo-1\.0\.tar\.gz .* SHA-256 is not"):
        read_sdist(artefact, re.compile("demo/.*"))


@pytest.mark.parametrize("after", [0, 2**21])
def test_bytes_after_the_end_count(server: Server, after: int) -> None:
    """The hash covers all bytes of an sdist, after its last member, too."""
    noise = random.Random(1).randbytes(after)  # noqa: S311 (bytes that do not pack well)
    tar = make_tar([("demo-1.0/a.py", b"A")]) + bytes(10240)
    server.put(SDIST, gzip.compress(tar + noise))
    (artefact,) = releases("demo")["1.0"]
    assert read_sdist(artefact, re.compile(".*")) == {"a.py": b"A"}
    server.files[SDIST] += bytes(8)
    with pytest.raises(SourceError, match="SHA-256 is not"):
        read_sdist(artefact, re.compile(".*"))


def test_a_changed_member_is_refused(server: Server) -> None:
    """A member that differs from RECORD refuses the wheel."""
    raw = make_zip(RULE, Entry("demo/more.py", b"M = 1\n"), record(RULE._replace(raw=b"RULE = 16")))
    refused(server, WHEEL, raw, r"demo/rule\.py is not what its RECORD says")


def test_a_member_that_record_lacks_is_refused(server: Server) -> None:
    """A member without a hash in RECORD is refused."""
    refused(server, WHEEL, make_zip(RULE, record(OTHER)), r"demo/rule\.py is not what its RECORD")


@pytest.mark.parametrize("count", [0, 2])
def test_a_wheel_has_one_record(server: Server, count: int) -> None:
    """A wheel with no RECORD, or with two, is refused."""
    records = [record(RULE), record(RULE)._replace(name="other-1.0.dist-info/RECORD")]
    refused(server, WHEEL, make_zip(RULE, *records[:count]), f"it has {count} RECORD files")


def test_a_record_that_names_a_file_twice_is_refused(server: Server) -> None:
    """A RECORD that lists a file twice is refused."""
    refused(server, WHEEL, make_zip(RULE, record(RULE, RULE)), "names demo/rule.py twice")


@pytest.mark.parametrize("raw", [b'demo/rule.py,"', b"\xff\xfe", b"demo/rule.py,sha256=!,\n"])
def test_an_odd_record_is_refused(server: Server, raw: bytes) -> None:
    """A RECORD that is no table of hashes is refused."""
    refused(server, WHEEL, make_zip(RULE, Entry("demo-1.0.dist-info/RECORD", raw)), "refused")


def test_two_members_of_one_name_refuse_a_wheel(server: Server) -> None:
    """A wanted path that a wheel holds twice is refused."""
    raw = make_zip(RULE, RULE._replace(raw=b"RULE = 16\n"), record(RULE))
    refused(server, WHEEL, raw, "holds demo/rule.py twice")


def test_two_members_of_one_name_refuse_an_sdist(server: Server) -> None:
    """A wanted path that an sdist holds twice is refused, in another top folder, too."""
    refused(server, SDIST, sdist(("demo-1.0/demo/rule.py", b"RULE = 16\n")), "rule.py twice")
    refused(server, SDIST, sdist(("other/demo/more.py", b"")), "more than one top folder")


def test_overlapping_members_are_refused(server: Server) -> None:
    """A wheel with two members that share bytes is refused."""
    raw = make_zip(RULE, RULE._replace(name="demo/copy.py", offset=0), record(RULE))
    refused(server, WHEEL, raw, "members overlap", "demo/rule.py")
    server.pages.clear()
    late = Entry("demo/late.py", b"", packed=bytes(10**6), offset=0)
    refused(server, WHEEL, make_zip(RULE, record(RULE), late), "members overlap", "demo/rule.py")


def test_a_member_with_another_name_in_its_place_is_refused(server: Server) -> None:
    """A member's header must agree with the directory."""
    raw = make_wheel(RULE).replace(b"demo/rule.py", b"demo/evil.py", 1)
    refused(server, WHEEL, raw, "no whole archive")


@pytest.mark.parametrize("method", [9, 12, 14, 99])
def test_another_packing_is_refused(server: Server, method: int) -> None:
    """A member that is neither stored nor deflated is refused."""
    raw = make_wheel(RULE._replace(method=method))
    refused(server, WHEEL, raw, "packed in a way that wheels do not use")


def test_a_name_that_is_no_text_is_refused(server: Server) -> None:
    """A wanted path with a control character is refused."""
    refused(server, WHEEL, make_wheel(Entry("demo/a\n.py", b"")), "no plain text", "(?s)demo/.*")


@pytest.mark.parametrize("length", [0, 1, 50, 3000, -1])
@pytest.mark.parametrize("filename", [WHEEL, SDIST])
def test_a_part_of_an_archive_is_refused(server: Server, filename: str, length: int) -> None:
    """An archive without its end is refused, whatever its hash is."""
    body = Entry("demo/body.py", b"".join(b"%d\n" % (n * n) for n in range(5000)))
    files = ("demo-1.0/demo/body.py", body.raw)
    raw = make_wheel(body) if filename == WHEEL else make_sdist(files)
    refused(server, filename, raw[:length], "is (refused|not available)")


@pytest.mark.parametrize("filename", [WHEEL, SDIST])
def test_bytes_that_are_no_archive_are_refused(server: Server, filename: str) -> None:
    """Something else under an archive's name is refused."""
    refused(server, filename, b"<html>Sign in</html>" * 100, "no whole archive")


@pytest.mark.parametrize("filename", [WHEEL, SDIST])
def test_a_cut_connection_is_an_error(server: Server, filename: str) -> None:
    """A connection that closes early is an error."""
    server.cut.add(filename)
    raw = make_wheel(RULE) if filename == WHEEL else sdist()
    refused(server, filename, raw, "is (refused|not available)")


@pytest.mark.parametrize("status", [404, 500, 503])
@pytest.mark.parametrize("filename", [WHEEL, SDIST])
def test_a_failing_server_is_an_error(server: Server, filename: str, status: int) -> None:
    """A server's error names the file."""
    server.status[filename] = status
    raw = make_wheel(RULE) if filename == WHEEL else sdist()
    refused(server, filename, raw, "unknown" if status == 404 else f"answers {status}")


def test_a_server_without_ranges_is_refused(server: Server) -> None:
    """A server that would send the whole wheel is refused."""
    server.ranges = False
    before = meter.fetched_bytes
    message = refused(server, WHEEL, make_wheel(RULE, OTHER), "supports no range requests")
    assert "PIP_INDEX_URL" in message
    assert meter.fetched_bytes - before == len(server.pages["demo"])


def test_other_parts_than_asked_for_are_refused(server: Server) -> None:
    """A server that sends another range is refused."""
    server.shift = -1
    raw = make_wheel(RULE, OTHER._replace(packed=OTHER.raw, method=0))
    refused(server, WHEEL, raw, "other parts of it than requested")


def test_fewer_bytes_than_promised_are_refused(server: Server) -> None:
    """A range shorter than its header says is refused."""
    server.short = True
    refused(server, WHEEL, make_wheel(RULE, OTHER), "it ends too early")


def test_a_member_that_reaches_out_of_its_place_is_refused(server: Server) -> None:
    """A member's header cannot move its data into another member."""
    raw = bytearray(make_wheel(RULE, OTHER._replace(packed=OTHER.raw, method=0)))
    raw[28:30] = b"\xff\xff"
    refused(server, WHEEL, bytes(raw), "lies outside its span", r"demo/.*\.py")


def test_a_directory_has_a_limit(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The search for a wheel's directory is limited."""
    monkeypatch.setattr(wheel_reader, "DIRECTORY_LIMIT", 2**17)
    many = [Entry(f"demo/{n:05}.txt", b"", method=0, packed=b"") for n in range(4000)]
    refused(server, WHEEL, make_wheel(RULE, *many), "directory is over 131072 bytes")


@pytest.mark.parametrize("filename", ["demo-1.0.zip", "demo-1.0.tar.bz2"])
def test_another_form_of_sdist_is_refused_by_name(server: Server, filename: str) -> None:
    """An sdist that is no .tar.gz is refused before it is fetched."""
    refused(server, filename, b"", r"only \.tar\.gz is read")
    assert server.seen == ["demo"]


def test_no_flipped_byte_of_a_wanted_member_gets_through(server: Server) -> None:
    """With any packed byte changed a member is refused or unchanged."""
    body = Entry("demo/body.py", b"BODY = 1\n" * 5)
    raw = make_wheel(body)
    begin = raw.index(deflate(body.raw))
    refusals = 0
    for place in range(begin, begin + len(deflate(body.raw))):
        changed = raw[:place] + bytes([raw[place] ^ 1]) + raw[place + 1 :]
        try:
            assert read(server, WHEEL, changed) == {body.name: body.raw}
        except SourceError:
            refusals += 1
    assert refusals > 0
