"""Archives whose bytes, records or connections are wrong: each is refused by name and reason."""

import gzip
import random
import re

import pytest
from nearfree.errors import SourceError
from nearfree.sources.fetching import wheel as wheel_reader
from nearfree.sources.fetching.index import meter, releases
from nearfree.sources.fetching.sdist import read_sdist

from sources.fetching.archives import OTHER, RULE, SDIST, WHEEL, read, refused, sdist
from sources.fetching.indexserver import (
    Entry,
    Server,
    deflate,
    make_sdist,
    make_tar,
    make_wheel,
    make_zip,
    record,
    server,
)

__all__ = ["server"]


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
