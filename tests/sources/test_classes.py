"""The lock of classes: what is written comes back, and says what releases' registries say."""

from pathlib import Path

import pytest
from nearfree.errors import ConfigError
from nearfree.sources.backends.model_classes import Classes
from nearfree.sources.classes import (
    LockedClasses,
    locked_entry,
    read_class_lock,
    read_classes,
    renew_class_lock,
    spans_of,
)
from nearfree.sources.fetching.cache import Cache
from nearfree.sources.history import read_lock
from once import drawn

from workflow import ROOT

LOCK = read_class_lock(ROOT / "config" / "classes.lock")
FOUND = {
    "0.1": Classes(frozenset("AB")),
    "0.2": Classes(frozenset("B"), frozenset("A")),
    "0.3": Classes(frozenset("BC")),
    "0.4": Classes(frozenset("ABC")),
}


def classes(lock: LockedClasses, release: str) -> Classes:
    """Return the classes that a lock gives a release."""
    names = {*lock.own, *lock.transformers}
    backend = frozenset(name for name in names if lock.by_transformers(name, release))
    return Classes(
        frozenset(n for n in names if release in lock.releases_with(n)) - backend, backend
    )


def test_what_is_written_comes_back(tmp_path: Path) -> None:
    """Each release has its own classes again, and other engines stay."""
    path = tmp_path / "classes.lock"
    renew_class_lock(path, "vllm", {"1.0": Classes(frozenset("Z"))})
    renew_class_lock(path, "sglang", FOUND)
    again = read_class_lock(path)
    assert again["sglang"] == locked_entry(FOUND)
    assert {name: classes(again["sglang"], name) for name in FOUND} == FOUND
    assert again["vllm"].releases_with("Z") == ["1.0"]


def test_releases_with_a_class() -> None:
    """They come in order, by whichever backend, of whichever name."""
    lock = locked_entry(FOUND)
    assert lock.releases_with("A") == ["0.1", "0.2", "0.4"]
    assert lock.releases_with("C", "A") == ["0.1", "0.2", "0.3", "0.4"]
    assert lock.releases_with("D") == lock.releases_with() == []
    assert [name for name in FOUND if lock.by_transformers("A", name)] == ["0.2"]
    assert spans_of(lock.releases, lock.releases_with("A")) == [("0.1", "0.2"), ("0.4", None)]


def test_a_release_that_changes_nothing_adds_its_name_alone() -> None:
    """Spans that reach to the newest release do not name it."""
    before = locked_entry(FOUND)
    after = locked_entry(FOUND | {"0.5": FOUND["0.4"]})
    assert (after.own, after.transformers) == (before.own, before.transformers)


@pytest.mark.parametrize(
    "raw",
    [
        b"{",
        b'{"vllm":{}}',
        b'{"vllm":{"releases":["1"],"own":{"A":[["2",null]]},"transformers":{}}}',
        b'{"vllm":{"releases":["1"],"own":{"A":[["1"]]},"transformers":{}}}',
    ],
)
def test_a_damaged_lock_is_refused(tmp_path: Path, raw: bytes) -> None:
    """A file that is no lock is named; a missing one knows nothing."""
    path = tmp_path / "classes.lock"
    path.write_bytes(raw)
    with pytest.raises(ConfigError, match=r"classes\.lock is no lock"):
        read_class_lock(path)
    assert read_class_lock(tmp_path / "none") == {}


def test_the_lock_has_the_releases_whose_rules_are_locked() -> None:
    """Of both engines, and what their release notes say of some classes holds."""
    rules = read_lock(ROOT / "config" / "rules.lock")
    assert {engine: engine_lock.releases for engine, engine_lock in LOCK.items()} == {
        engine: rules.versions(engine) for engine in ("vllm", "sglang")
    }
    first = {
        ("vllm", "GptOssForCausalLM"): "0.10.1",
        ("vllm", "Qwen3NextForCausalLM"): "0.10.2",
        ("vllm", "Qwen3ForCausalLM"): "0.8.4",
        ("sglang", "Llama4ForConditionalGeneration"): "0.4.5",
        ("sglang", "LLaDA2MoeModelLM"): "0.5.6",
    }
    assert {key: LOCK[key[0]].releases_with(key[1])[0] for key in first} == first
    assert LOCK["vllm"].releases_with("Dots1ForCausalLM")[-1] == "0.23.0"


SHARE = 24
"""Of all releases, one in so many is read again."""


@pytest.mark.slow
@pytest.mark.parametrize("engine", sorted(LOCK))
def test_locked_releases_are_read_again(engine: str, source_cache: Cache) -> None:
    """The last release, and those that the commit's hash draws, say what the lock says."""
    lock = LOCK[engine]
    versions = [
        release for release in lock.releases[:-1] if drawn(SHARE, "classes", engine, release)
    ]
    releases = read_classes(engine, [*versions, lock.releases[-1]], cache=source_cache)
    assert releases == {release: classes(lock, release) for release in releases}
