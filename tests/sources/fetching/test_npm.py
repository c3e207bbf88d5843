"""npm packages: files of a valid archive with the registry's hash; others are refused."""

import base64
import hashlib
import json
from pathlib import Path

import pytest
from nearfree.errors import SourceError
from nearfree.sources.fetching import members
from nearfree.sources.fetching.cache import Cache
from nearfree.sources.fetching.npm import fetch_npm

from sources.fetching.indexserver import GIB, Odd, Server, bomb_sdist, make_sdist, server

__all__ = ["server"]

NAME, FILE = "@demo/linux-x64", "linux-x64-1.0.0.tgz"
RULE = ("package/bins/rule.txt", b"RULE = 64\n")


def integrity(raw: bytes) -> str:
    """Return the hash of an archive as a page has it."""
    return "sha512-" + base64.b64encode(hashlib.sha512(raw).digest()).decode()


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    """Return an empty cache."""
    return Cache(tmp_path / "cache")


@pytest.fixture
def registry(server: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    """Return a running registry that npm's own variable names."""
    monkeypatch.setenv("npm_config_registry", f"{server.url}/simple")
    server.type = "application/json"
    return server


def put(registry: Server, raw: bytes, **dist: object) -> None:
    """Serve one release of a scoped package."""
    entry = {"tarball": f"/files/{FILE}", "integrity": integrity(raw)} | dist
    versions = {"0.9.0": {}, "1.0.0": {"dist": entry}}
    registry.pages["@demo%2Flinux-x64"] = json.dumps({"versions": versions})
    registry.files[FILE] = raw


def refused(cache: Cache, reason: str, wanted: str = "bins/.*") -> str:
    """Check that a release is refused and nothing is kept; return the message."""
    with pytest.raises(SourceError, match=reason) as caught:
        fetch_npm(NAME, "1.0.0", wanted, cache=cache)
    assert not cache.folder.exists(), "nothing is kept"
    assert "127.0.0.1" not in str(caught.value)
    return str(caught.value)


def test_the_wanted_files_of_a_package(registry: Server, cache: Cache) -> None:
    """A package gives the matching files below its top folder, and their origin."""
    raw = make_sdist(RULE, ("package/other.txt", b""), ("package/link", Odd(b"2", "bins")))
    put(registry, raw)
    source = fetch_npm(NAME, "1.0.0", "bins/.*", cache=cache)
    assert source.files == {"bins/rule.txt": RULE[1]}
    assert source.record.package == f"npm:{NAME}"
    assert source.record.artefact == FILE
    assert source.record.artefact_sha256 == hashlib.sha256(raw).hexdigest()
    assert source.record.verified == "artefact"


def test_the_cache_serves_what_it_has(registry: Server, cache: Cache) -> None:
    """Fetched files are available offline; others are refused by name."""
    put(registry, make_sdist(RULE))
    first = fetch_npm(NAME, "1.0.0", "bins/.*", cache=cache)
    seen = list(registry.seen)
    assert fetch_npm(NAME, "1.0.0", "bins/.*", cache=cache, offline=True) == first
    assert registry.seen == seen
    with pytest.raises(SourceError, match=r"npm:@demo/linux-x64 1\.0\.0 is not in the cache"):
        fetch_npm(NAME, "1.0.0", "other/.*", cache=cache, offline=True)


def test_a_limit_is_raised_for_who_asks(
    registry: Server, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file above the limit is refused unless the call sets a higher one."""
    monkeypatch.setattr(members, "MEMBER_LIMIT", 5)
    put(registry, make_sdist(RULE))
    refused(cache, r"bins/rule\.txt is over 5 bytes")
    assert fetch_npm(NAME, "1.0.0", "bins/.*", cache=cache, limit=10).files


def test_another_hash_is_refused(registry: Server, cache: Cache) -> None:
    """An archive without the registry's SHA-512 is refused and not kept."""
    put(registry, make_sdist(RULE), integrity=integrity(b""))
    refused(cache, r"linux-x64-1\.0\.0\.tgz is refused: its SHA-512 is not")


@pytest.mark.parametrize("name", ["../evil", "package/../../evil", "/etc/evil", "package\\evil"])
def test_a_climbing_path_is_refused(registry: Server, cache: Cache, name: str) -> None:
    """An archive with any name that leads out of it is refused, wanted or not."""
    put(registry, make_sdist(RULE, (name, b"x")))
    refused(cache, "leads out of it")


def test_a_wanted_link_is_refused(registry: Server, cache: Cache) -> None:
    """A wanted member that is a link is refused."""
    put(registry, make_sdist(RULE, ("package/bins/link", Odd(b"2", "/etc/passwd"))))
    refused(cache, "is a link or a device")


@pytest.mark.parametrize("name", ["package/bins/huge", "package/unwanted"])
def test_a_huge_member_is_refused(registry: Server, cache: Cache, name: str) -> None:
    """A small archive with a member of a gigabyte is refused, wanted or not."""
    put(registry, bomb_sdist(name, GIB))
    refused(cache, "bytes")


def test_a_cut_archive_is_refused(registry: Server, cache: Cache) -> None:
    """Half an archive is refused, even where the registry's hash is of the half."""
    raw = make_sdist(RULE)
    put(registry, raw[: len(raw) // 2])
    refused(cache, "no whole archive")


ODD_DISTS = [
    {"integrity": "sha512-!!"},
    {"integrity": "sha1-2jmj7l5rSw0yVb/vlWAYkK/YBwk="},
    {"integrity": "sha512-AAAA"},
    {"integrity": 3},
    {"tarball": "file:///etc/passwd"},
    {"tarball": None},
]


@pytest.mark.parametrize("dist", ODD_DISTS)
def test_a_page_without_a_hash_is_refused(
    registry: Server, cache: Cache, dist: dict[str, object]
) -> None:
    """A release of which the page says no SHA-512, or no place to have it from, is refused."""
    put(registry, make_sdist(RULE), **dist)
    refused(cache, "no page of the known form")


@pytest.mark.parametrize("page", ["<html>", "[]", '{"versions": 3}', '{"versions": {"1.0.0": 4}}'])
def test_an_odd_page_is_refused(registry: Server, cache: Cache, page: str) -> None:
    """Another text under a page's name is refused."""
    registry.pages["@demo%2Flinux-x64"] = page
    refused(cache, "no page of the known form")


def test_an_unknown_release_is_named(registry: Server, cache: Cache) -> None:
    """A version or a package that is not there is refused with what to check."""
    put(registry, make_sdist(RULE))
    with pytest.raises(SourceError, match=r"(?s)has no version 2\.0\.0.*0\.9\.0, 1\.0\.0"):
        fetch_npm(NAME, "2.0.0", ".*", cache=cache)
    with pytest.raises(SourceError, match=r"(?s)npm:@demo/other is unknown.*npm_config_registry"):
        fetch_npm("@demo/other", "1.0.0", ".*", cache=cache)
    with pytest.raises(SourceError, match="holds no file that matches nothing"):
        fetch_npm(NAME, "1.0.0", "nothing", cache=cache)


@pytest.mark.parametrize("name", ["../x", "@a", "A b", "@a/b/c", "", "a?b"])
def test_a_name_that_is_none_is_refused(cache: Cache, name: str) -> None:
    """An invalid npm name is refused before a request."""
    with pytest.raises(SourceError, match="no name of an npm package"):
        fetch_npm(name, "1.0.0", ".*", cache=cache)
    with pytest.raises(SourceError, match="no version of npm:a"):
        fetch_npm("a", "1/0", ".*", cache=cache)


@pytest.mark.slow
def test_the_prebuilt_library_comes_from_the_registry(source_cache: Cache) -> None:
    """The real registry gives the licence of the prebuilt library of llama.cpp."""
    source = fetch_npm("@node-llama-cpp/linux-x64", "3.22.1", "LICENSE", cache=source_cache)
    assert "MIT License" in source.text("LICENSE")
