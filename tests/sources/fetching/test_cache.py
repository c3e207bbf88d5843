"""The cache returns what was kept, or an error."""

from pathlib import Path

import pytest
from msgspec import Struct
from nearfree.errors import SourceError
from nearfree.log.events import SourceFetched, SourceMember
from nearfree.log.line import sha256
from nearfree.sources.fetching.cache import Cache, default_cache

FILES = {"demo/a.py": b"A = 1\n", "demo/b.py": b"B = 2\n"}
RECORD = SourceFetched(
    package="demo",
    version="1.0+cpu",
    artefact="demo-1.0.tar.gz",
    artefact_sha256="0" * 64,
    verified="artefact",
    members=tuple(
        SourceMember(path=path, sha256=sha256(raw), size=len(raw)) for path, raw in FILES.items()
    ),
)


class Result(Struct, frozen=True, kw_only=True):
    """A result that somebody keeps."""

    value: int
    hash: str = ""


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    """Return a cache that holds one release."""
    cache = Cache(tmp_path / "cache")
    cache.keep("demo/.*", RECORD, FILES)
    return cache


def blob(cache: Cache, raw: bytes) -> Path:
    """Return the documented path of some bytes."""
    return cache.folder / "blobs" / sha256(raw)[:2] / sha256(raw)


def test_what_is_kept_comes_back(cache: Cache) -> None:
    """A release's record and its files come back as they were."""
    assert cache.find("demo", "1.0+cpu", "demo/.*") == RECORD
    assert [cache.read(member.sha256) for member in RECORD.members] == list(FILES.values())
    assert blob(cache, b"A = 1\n").read_bytes() == b"A = 1\n"


@pytest.mark.parametrize(
    "key",
    [("demo", "1.0", "demo/.*"), ("other", "1.0+cpu", "demo/.*"), ("demo", "1.0+cpu", "demo/a.*")],
)
def test_another_key_finds_nothing(cache: Cache, key: tuple[str, str, str]) -> None:
    """Package, version and pattern must all match."""
    assert cache.find(*key) is None


def test_reading_makes_no_folder(tmp_path: Path) -> None:
    """Reading does not create the cache's folder."""
    cache = Cache(tmp_path / "cache")
    assert cache.find("demo", "1.0", "x") is None
    assert cache.load("demo", Result) is None
    assert list(tmp_path.iterdir()) == []


def test_equal_files_are_kept_once(cache: Cache) -> None:
    """Equal bytes of two releases are stored once."""
    before = sorted((cache.folder / "blobs").rglob("*"))
    cache.keep("other", RECORD, {"elsewhere.py": b"A = 1\n"})
    assert sorted((cache.folder / "blobs").rglob("*")) == before


def test_a_damaged_file_is_seen_and_kept_anew(cache: Cache) -> None:
    """A damaged file is an error by name until it is kept again."""
    path = blob(cache, b"A = 1\n")
    path.write_bytes(b"A = 2\n")
    with pytest.raises(SourceError, match="damaged") as caught:
        cache.read(sha256(b"A = 1\n"))
    assert path.name in caught.value.what
    assert "Delete it" in caught.value.remedy
    cache.keep("demo/.*", RECORD, FILES)
    assert cache.read(sha256(b"A = 1\n")) == b"A = 1\n"


def test_a_missing_file_is_an_error(cache: Cache) -> None:
    """A deleted file is an error without a traceback."""
    blob(cache, b"A = 1\n").unlink()
    with pytest.raises(SourceError, match="cannot be read"):
        cache.read(sha256(b"A = 1\n"))


def test_a_damaged_record_is_an_error(cache: Cache) -> None:
    """A record with a flipped bit is an error."""
    (path,) = (cache.folder / "releases").rglob("*.json")
    path.write_bytes(path.read_bytes().replace(b"demo/a.py", b"demo/c.py"))
    with pytest.raises(SourceError, match=r"demo 1\.0\+cpu: .* damaged"):
        cache.find("demo", "1.0+cpu", "demo/.*")


def test_a_moved_record_is_an_error(cache: Cache) -> None:
    """A valid record of another release is an error."""
    (path,) = (cache.folder / "releases").rglob("*.json")
    path.rename(path.with_name(path.name.replace("1.0+cpu", "2.0")))
    with pytest.raises(SourceError, match="is the record of another release"):
        cache.find("demo", "2.0", "demo/.*")


def test_results_come_back(cache: Cache) -> None:
    """A result is read by its name; a later one replaces it."""
    cache.store("rule-1.0+cpu", Result(value=1))
    path = cache.store("rule-1.0+cpu", Result(value=2))
    assert path == cache.folder / "results" / "rule-1.0+cpu.json"
    loaded = cache.load("rule-1.0+cpu", Result)
    assert loaded is not None
    assert loaded.value == 2
    assert cache.load("other", Result) is None


def test_a_damaged_result_is_no_result(cache: Cache) -> None:
    """A damaged result, or one of another form, counts as missing."""
    path = cache.store("a", Result(value=1))
    assert cache.load("a", type("Other", (Struct,), {"__annotations__": {"x": int}})) is None
    path.write_bytes(path.read_bytes().replace(b"1", b"2", 1))
    assert cache.load("a", Result) is None


@pytest.mark.parametrize("name", ["", "..", ".", "a/b", "../a", "a\\b", "a\0", "a\n", "é"])
def test_a_name_cannot_lead_elsewhere(cache: Cache, name: str) -> None:
    """A result's name has letters, digits and _ . + - only."""
    before = sorted(cache.folder.parent.rglob("*"))
    with pytest.raises(SourceError, match="cannot be a name in the cache"):
        cache.store(name, Result(value=1))
    with pytest.raises(SourceError, match="cannot be a name in the cache"):
        cache.load(name, Result)
    assert sorted(cache.folder.parent.rglob("*")) == before


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """$NEARFREE_CACHE comes before $XDG_CACHE_HOME and ~/.cache; empty means unset."""
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.setenv("NEARFREE_CACHE", "/a/b")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert default_cache() == Path("/a/b")
    monkeypatch.setenv("NEARFREE_CACHE", "")
    assert default_cache() == Path("/x/nearfree")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_cache() == Path("/home/someone/.cache/nearfree")
