"""Histories: where rules change, and how a release stands to the lock."""

from pathlib import Path

import pytest
from nearfree.errors import BusyError, ConfigError
from nearfree.log.document import locked_file
from nearfree.sources.fetching.cache import Cache
from nearfree.sources.history import (
    Lock,
    Release,
    changed_rules,
    history,
    known_versions,
    lock_status,
    read_lock,
    renew_lock,
    with_releases,
    write_lock,
)

from sources.fetching.indexserver import Server, make_sdist, server
from sources.moe_release import TEXT, made_release

__all__ = ["server"]


def lock() -> Lock:
    """Return a lock of two releases, the newer as it is made here."""
    return Lock(rules={"vllm": {"1.0": made_release().meanings(), "0.9": {"block_size_m": "0"}}})


def test_a_locked_release_is_as_locked() -> None:
    """The same digests for the same version are what the lock says."""
    assert lock_status(lock(), made_release()) == "as locked"


@pytest.mark.slow
def test_a_rewritten_text_with_the_same_rule_is_the_same_rule() -> None:
    """A digest is of what a rule answers: another spelling of it changes nothing."""
    spelled = TEXT.replace("size = 32 if M <= 300 else 128", "size = 128 if M > 300 else 32")
    again = made_release(spelled, version="1.1")
    assert lock_status(lock(), again) == "not in the lock: same rules as 1.0"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "rule"),
    [
        ("M <= 300", "M <= 301", "block_size_m"),
        ("size = 16", "size = 8", "block_size_m"),
        ("factor = 4", "factor = 5", "path"),
        ("CHUNK = 400", "CHUNK = 100000", "config_tokens"),
        ("N = N * 2", "N = N * 4", "tuned_key"),
        ("device_name={device_name}", "device={device_name}", "tuned_name"),
    ],
)
def test_a_changed_number_is_a_new_rule(old: str, new: str, rule: str) -> None:
    """One changed constant shows in the digest of its rule, and in no other."""
    assert TEXT.count(old) == 1
    changed = made_release(TEXT.replace(old, new), version="1.1")
    assert changed_rules(made_release().meanings(), changed.meanings()) == (rule,)
    assert lock_status(lock(), changed) == f"not in the lock: new rule, other than 1.0 in {rule}"


def test_a_lock_reads_back_as_written(tmp_path: Path) -> None:
    """Versions stand in their order, and a release that is refused keeps its reason."""
    path = tmp_path / "rules.lock"
    releases = [
        Release(version="0.10", meanings={"tile": "b"}),
        Release(version="0.9", meanings={"tile": "a"}),
        Release(version="0.11", refused="flash-attn 0.11: no such function"),
    ]
    again = with_releases(lock(), "flash-attn", releases)
    write_lock(path, again)
    assert read_lock(path) == again
    assert again.versions("flash-attn") == ["0.9", "0.10", "0.11"]
    text = path.read_text()
    assert text.index('"0.9": {"tile"') < text.index('"0.10": {"tile"')


def test_releases_that_were_not_read_stay_in_the_lock() -> None:
    """What a history did not cover, or could not have, is locked as it was."""
    old = Lock(
        rules={"vllm": {"0.8": {"tile": "a"}, "0.9": {"tile": "b"}, "1.0": {"tile": "c"}}},
        refused={"vllm": {"0.7": "vllm 0.7: no such function"}},
    )
    releases = [
        Release(version="0.9", refused="vllm 0.9 is not in the cache", had=False),
        Release(version="1.0", meanings={"tile": "d"}),
    ]
    again = with_releases(old, "vllm", releases)
    assert again.rules == {
        "vllm": {"0.8": {"tile": "a"}, "0.9": {"tile": "b"}, "1.0": {"tile": "d"}}
    }
    assert again.refused == old.refused


def test_a_release_is_locked_once() -> None:
    """One that is read loses its refusal, one that is refused its rules; none left is no entry."""
    old = Lock(rules={"vllm": {"1.0": {"tile": "a"}}}, refused={"vllm": {"0.9": "vllm 0.9: odd"}})
    read = Release(version="0.9", meanings={"tile": "a"})
    refused = Release(version="1.0", refused="vllm 1.0: odd")
    again = with_releases(old, "vllm", [read, refused])
    assert again.rules == {"vllm": {"0.9": {"tile": "a"}}}
    assert again.refused == {"vllm": {"1.0": "vllm 1.0: odd"}}
    assert with_releases(old, "vllm", [read]).refused == {}


def test_a_history_begins_where_it_is_told_to() -> None:
    """Without the network, too, releases before the one that is asked for are not covered."""
    assert known_versions("vllm", lock(), offline=True) == ["0.9", "1.0"]
    assert known_versions("vllm", lock(), offline=True, oldest="0.10") == ["1.0"]


def test_only_a_release_itself_says_why_it_is_refused(server: Server, tmp_path: Path) -> None:
    """One without the files is refused for good; of what is not to be had nothing is known."""
    server.put("vllm-1.0.tar.gz", make_sdist(("vllm-1.0/setup.py", b"")))
    server.put("vllm-1.1.tar.gz", b"")
    server.status["vllm-1.1.tar.gz"] = 404
    cache = Cache(tmp_path / "cache")
    lacking, gone = history("vllm", ["1.0", "1.1"], Lock(), cache=cache)
    assert "holds no file that matches" in (lacking.refused or "")
    assert "is unknown to the package index" in (gone.refused or "")
    assert (lacking.had, gone.had) == (True, False)
    (offline,) = history("vllm", ["1.0"], Lock(), cache=cache, offline=True)
    assert (offline.refused, offline.had) == ("vllm 1.0 is not in the cache", False)


@pytest.mark.parametrize(
    "raw", [b"{", b'{"rules":{"\xff":{}}}', b'{"refused":{"vllm":{"newest":"no"}}}']
)
def test_a_damaged_lock_is_refused(tmp_path: Path, raw: bytes) -> None:
    """A file that is no lock is named; a missing one knows no release."""
    (tmp_path / "rules.lock").write_bytes(raw)
    with pytest.raises(ConfigError, match=r"rules\.lock is no lock"):
        read_lock(tmp_path / "rules.lock")
    assert read_lock(tmp_path / "none") == Lock()


def test_what_another_process_wrote_meanwhile_stays(tmp_path: Path) -> None:
    """A lock is read again as it is written, by one process at a time."""
    path = tmp_path / "rules.lock"
    for package in ("vllm", "sglang"):
        renew_lock(path, package, [Release(version="1.0", meanings={"tile": "a"})])
    assert set(read_lock(path).rules) == {"vllm", "sglang"}
    with (
        locked_file(path),
        pytest.raises(BusyError, match=r"rules\.lock is being written by another"),
    ):
        renew_lock(path, "vllm", [])
