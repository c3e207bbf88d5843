"""Fetching: the chosen artefact, its record, and the cache."""

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from nearfree.errors import SourceError
from nearfree.log.events import SourceFetched, SourceMember
from nearfree.log.line import sha256
from nearfree.sources.fetching import index, members
from nearfree.sources.fetching.cache import Cache
from nearfree.sources.fetching.fetch import fetch
from nearfree.sources.fetching.index import meter

from sources.fetching.indexserver import (
    Entry,
    Odd,
    Server,
    make_sdist,
    make_wheel,
    make_zip,
    record,
    server,
)

__all__ = ["server"]

RULE = Entry("demo/rule.py", b"RULE = 64\n")
WANTED = r"demo/.*\.py"
HOSTILE = {
    "parent": make_sdist(("demo-1.0/demo/rule.py", b"x"), ("../evil", b"x")),
    "absolute": make_sdist(("demo-1.0/demo/rule.py", b"x"), ("/tmp/evil", b"x")),  # noqa: S108
    "link": make_sdist(("demo-1.0/demo/rule.py", Odd(b"2", "/etc/passwd"))),
    "large": make_sdist(("demo-1.0/demo/rule.py", Odd(size=2**30))),
    "cut": make_sdist(("demo-1.0/demo/rule.py", b"x"))[:-30],
}


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    """Return an empty cache in the working folder."""
    return Cache(tmp_path / "cache")


def sdist(text: bytes = RULE.raw, version: str = "1.0") -> bytes:
    """Return an sdist of one rule."""
    return make_sdist((f"demo-{version}/demo/rule.py", text))


def put_wheel(server: Server, tag: str, text: str) -> None:
    """Add a wheel of version 1.0 whose rule says `text`."""
    server.put(f"demo-1.0-{tag}.whl", make_wheel(RULE._replace(raw=text.encode())))


def written(cache: Cache) -> list[Path]:
    """Return all files in the working folder, which holds the cache."""
    return [path for path in cache.folder.parent.rglob("*") if path.is_file()]


def test_a_wheel_serves_by_member(server: Server, cache: Cache) -> None:
    """Members of a wheel are each checked, and the record says so."""
    digest = server.put("demo-1.0-py3-none-any.whl", make_wheel(RULE))
    server.put("demo-1.0.tar.gz", sdist(b"other"))
    source = fetch("Demo", "1.0", WANTED, cache=cache)
    assert source.record == SourceFetched(
        package="demo",
        version="1.0",
        artefact="demo-1.0-py3-none-any.whl",
        artefact_sha256=digest,
        verified="member",
        members=(SourceMember(path="demo/rule.py", sha256=sha256(RULE.raw), size=10),),
    )
    assert (source.paths(), source.text("demo/rule.py")) == (["demo/rule.py"], "RULE = 64\n")
    assert source.raw("demo/rule.py") == RULE.raw


def test_an_sdist_serves_as_a_whole(server: Server, cache: Cache) -> None:
    """If no wheel has a wanted file, the sdist is used, checked as a whole."""
    server.put("demo-1.0-py3-none-any.whl", make_wheel(Entry("demo/_C.so", b"x")))
    digest = server.put("demo-1.0.tar.gz", sdist())
    record = fetch("demo", "1.0", WANTED, cache=cache).record
    assert (record.artefact, record.artefact_sha256) == ("demo-1.0.tar.gz", digest)
    assert record.verified == "artefact"


@pytest.mark.parametrize(
    ("tags", "best"),
    [
        (["py3-none-win_amd64", "py3-none-any", "cp39-abi3-manylinux1_x86_64"], 1),
        (["cp39-abi3-manylinux_2_28_aarch64", "cp39-abi3-manylinux_2_28_x86_64"], 1),
        (["1-cp39-abi3-manylinux1_x86_64", "10-cp39-abi3-manylinux1_x86_64"], 1),
        (["9-cp39-abi3-win_amd64", "cp39-abi3-manylinux1_x86_64"], 1),
        (["cp310-cp310-manylinux1_x86_64", "cp311-cp311-manylinux1_x86_64"], 1),
        (["cp39-abi3-win_amd64"], 0),
    ],
)
@pytest.mark.parametrize("turn", [1, -1])
def test_one_wheel_is_chosen(
    server: Server, cache: Cache, tags: list[str], best: int, turn: int
) -> None:
    """The wheel for any platform comes first, then Linux on x86-64, the newest build."""
    for tag in tags[::turn]:
        put_wheel(server, tag, tag)
    assert fetch("demo", "1.0", WANTED, cache=cache).text("demo/rule.py") == tags[best]
    assert len(set(server.seen)) == 2, "no other wheel is asked for"


def test_an_odd_wheel_name_serves_last(server: Server, cache: Cache) -> None:
    """A wheel without a platform in its name comes last."""
    put_wheel(server, "odd-py3-none-any", "odd")
    put_wheel(server, "py3-none-win_amd64", "sound")
    assert fetch("demo", "1.0", WANTED, cache=cache).text("demo/rule.py") == "sound"


def test_the_cache_serves_first(server: Server, cache: Cache) -> None:
    """Cached files are not requested again, in any spelling of the package."""
    server.put("demo-1.0.tar.gz", sdist())
    first = fetch("demo", "1.0", WANTED, cache=cache)
    requests = list(server.seen)
    before = meter.fetched_bytes
    assert fetch("DEMO", "v1.0", WANTED, cache=cache) == first
    assert fetch("demo", "1.0", WANTED, cache=cache, offline=True) == first
    assert (server.seen, meter.fetched_bytes) == (requests, before)


def test_offline_without_the_files_is_an_error(server: Server, cache: Cache) -> None:
    """Offline, missing files are an error that says how to get them."""
    server.put("demo-1.0.tar.gz", sdist())
    with pytest.raises(SourceError, match=r"demo 1\.0 is not in the cache") as caught:
        fetch("demo", "1.0", WANTED, cache=cache, offline=True)
    assert "without --offline" in caught.value.remedy
    assert server.seen == []


@pytest.mark.parametrize("folder", ["blobs", "releases"])
def test_damage_is_fetched_anew(server: Server, cache: Cache, folder: str) -> None:
    """A damaged cached file is an error offline and is replaced online."""
    server.put("demo-1.0.tar.gz", sdist())
    first = fetch("demo", "1.0", WANTED, cache=cache)
    (path,) = (path for path in (cache.folder / folder).rglob("*") if path.is_file())
    path.write_bytes(path.read_bytes().replace(b"6", b"7"))
    with pytest.raises(SourceError, match="damaged") as caught:
        fetch("demo", "1.0", WANTED, cache=cache, offline=True)
    assert "Delete it" in caught.value.remedy
    assert fetch("demo", "1.0", WANTED, cache=cache) == first
    assert fetch("demo", "1.0", WANTED, cache=cache, offline=True) == first


def test_a_yanked_release_serves(server: Server, cache: Cache) -> None:
    """A yanked release is used if its version is named."""
    server.put("demo-1.0.tar.gz", sdist(), yanked=True)
    assert fetch("demo", "1.0", WANTED, cache=cache).paths() == ["demo/rule.py"]


def test_an_unknown_version_names_known_ones(server: Server, cache: Cache) -> None:
    """An unknown version names its neighbours and the newest."""
    for version in ("0.9", "1.0", "1.2", "1.10", "2.0"):
        server.put(f"demo-{version}.tar.gz", sdist(version=version))
    with pytest.raises(SourceError, match=r"demo has no version 1\.1\. .*: 1\.0, 1\.2, 2\.0$"):
        fetch("demo", "1.1", WANTED, cache=cache)
    with pytest.raises(SourceError, match=r"demo has no version 3\. .*: 2\.0$"):
        fetch("demo", "3", WANTED, cache=cache)


def test_a_package_without_a_file_is_an_error(server: Server, cache: Cache) -> None:
    """A package without files is refused."""
    server.pages["demo"] = "<!DOCTYPE html>"
    with pytest.raises(SourceError, match="demo has no wheel or sdist"):
        fetch("demo", "1.0", WANTED, cache=cache)


def test_a_version_must_be_one(server: Server, cache: Cache) -> None:
    """A text that is no version is refused before a request."""
    with pytest.raises(SourceError, match="'latest' is no version of demo"):
        fetch("demo", "latest", WANTED, cache=cache)
    assert server.seen == []


def test_a_release_without_a_wanted_file_is_an_error(server: Server, cache: Cache) -> None:
    """If no artefact has a wanted file, the pattern is named; nothing is kept."""
    server.put("demo-1.0.tar.gz", sdist())
    put_wheel(server, "py3-none-any", "x")
    with pytest.raises(SourceError, match=r"demo 1\.0 holds no file that matches other/\.\*"):
        fetch("demo", "1.0", "other/.*", cache=cache)
    assert written(cache) == []


@pytest.mark.parametrize("fault", HOSTILE)
def test_nothing_of_a_hostile_release_is_kept(server: Server, cache: Cache, fault: str) -> None:
    """A refusal names package, version, file and reason; nothing is written."""
    server.put("demo-1.0.tar.gz", HOSTILE[fault])
    with pytest.raises(SourceError, match=r"demo 1\.0: demo-1\.0\.tar\.gz is refused: .+") as error:
        fetch("demo", "1.0", WANTED, cache=cache)
    assert "take another version" in error.value.remedy
    assert written(cache) == []
    with pytest.raises(SourceError, match="not in the cache"):
        fetch("demo", "1.0", WANTED, cache=cache, offline=True)


def test_a_hostile_wheel_is_not_passed_over(server: Server, cache: Cache) -> None:
    """A wheel that fails its check is refused, even if there is an sdist."""
    raw = make_zip(RULE._replace(raw=b"RULE = 16\n"), record(RULE))
    server.put("demo-1.0-py3-none-any.whl", raw)
    server.put("demo-1.0.tar.gz", sdist())
    with pytest.raises(SourceError, match="not what its RECORD says"):
        fetch("demo", "1.0", WANTED, cache=cache)
    assert written(cache) == []


def test_a_wrong_hash_is_refused(server: Server, cache: Cache) -> None:
    """An sdist with another hash leaves nothing."""
    server.put("demo-1.0.tar.gz", sdist(), digest="1" * 64)
    with pytest.raises(SourceError, match="SHA-256 is not the one that the index says"):
        fetch("demo", "1.0", WANTED, cache=cache)
    assert written(cache) == []


def test_a_file_that_is_no_text_is_refused_when_it_is_read(server: Server, cache: Cache) -> None:
    """Bytes that are not UTF-8 are available raw, and refused as text."""
    server.put("demo-1.0.tar.gz", sdist(b"abc\xff"))
    source = fetch("demo", "1.0", WANTED, cache=cache)
    assert source.raw("demo/rule.py") == b"abc\xff"
    with pytest.raises(SourceError, match=r"demo 1\.0: demo/rule\.py is not UTF-8 at byte 3"):
        source.text("demo/rule.py")


def test_a_path_that_was_not_fetched_is_an_error(server: Server, cache: Cache) -> None:
    """An unknown path is an error with the release and the path."""
    server.put("demo-1.0.tar.gz", sdist())
    with pytest.raises(SourceError, match=r"demo 1\.0 has no demo/other\.py"):
        fetch("demo", "1.0", WANTED, cache=cache).text("demo/other.py")


def test_only_the_cache_is_written(server: Server, cache: Cache) -> None:
    """A fetch writes one file per blob and one record, without partial files."""
    server.put("demo-1.0.tar.gz", sdist())
    fetch("demo", "1.0", WANTED, cache=cache)
    places = [path.relative_to(cache.folder).parts[0] for path in written(cache)]
    assert sorted(places) == ["blobs", "releases"]


def test_threads_fetch_at_once(server: Server, cache: Cache) -> None:
    """Threads share cache and count; the page is requested once."""
    versions = [f"1.{n}" for n in range(16)]
    for version in versions:
        server.put(f"demo-{version}.tar.gz", sdist(version.encode(), version))
    before = meter.fetched_bytes
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda v: fetch("demo", v, WANTED, cache=cache), versions))
    assert [source.text("demo/rule.py") for source in results] == versions
    assert server.seen.count("demo") == 1
    sent = len(server.pages["demo"]) + sum(map(len, server.files.values()))
    assert meter.fetched_bytes - before == sent


@pytest.mark.slow
@pytest.mark.parametrize(
    ("release", "wanted", "verified", "limit"),
    [
        (("vllm", "0.20.2"), r"vllm/model_executor/layers/fused_moe/fused_moe\.py", "member", 3e6),
        (("flash-attn", "2.8.3"), r"csrc/flash_attn/flash_api\.cpp", "artefact", 10e6),
    ],
)
def test_the_real_index(
    tmp_path: Path, release: tuple[str, str], wanted: str, verified: str, limit: float
) -> None:
    """A rule file of a real release is had for few bytes, and then without the network."""
    before = meter.fetched_bytes
    try:
        source = fetch(*release, wanted, cache=Cache(tmp_path))
    finally:
        index.close()
    assert source.record.verified == verified
    assert [bool(re.fullmatch(wanted, path)) for path in source.paths()] == [True]
    assert meter.fetched_bytes - before < limit
    assert fetch(*release, wanted, cache=Cache(tmp_path), offline=True) == source


def test_a_limit_is_raised_for_what_is_asked_alone(
    server: Server, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A higher limit holds for its reader's files only."""
    monkeypatch.setattr(members, "MEMBER_LIMIT", 100)
    monkeypatch.setattr(members, "TOTAL_LIMIT", 1_000)
    long = Entry("demo/_C.so", bytes(5_000))
    server.put("demo-1.0-py3-none-any.whl", make_wheel(RULE._replace(raw=b"R"), long))
    wanted = r"demo/_C\.so"
    with pytest.raises(SourceError, match=r"demo/_C\.so is over 100 bytes"):
        fetch("demo", "1.0", wanted, cache=cache)
    with pytest.raises(SourceError, match=r"demo/_C\.so is over 4999 bytes"):
        fetch("demo", "1.0", wanted, cache=cache, limit=4_999)
    assert written(cache) == []
    assert fetch("demo", "1.0", wanted, cache=cache, limit=5_000).raw("demo/_C.so") == long.raw
