"""Forks: the pinned commit is read with git, or a named one stands in."""

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from nearfree.errors import SourceError
from nearfree.sources.fetching import fork
from nearfree.sources.fetching.cache import Cache
from nearfree.sources.fetching.fetch import fetch
from nearfree.sources.fetching.fork import Fork, pinned_commit, read_commit

from sources.fetching.indexserver import Server, make_sdist, server

__all__ = ["server"]

URL = "https://forks.example/demo"
WANTED = r"src/\w+\.h"


def git(folder: Path, *words: str) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@b.example")
    done = subprocess.run(
        ["git", "-C", folder, *who, *words], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.fixture
def commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the one commit of a repository, which git finds where the URL would be."""
    folder = tmp_path / "repository"
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "rule.h").write_text("int rows = 64;\n")
    (folder / "other.h").write_text("no\n")
    (folder / os.fsdecode(b"\xff.h")).write_text("no\n")
    git(folder, "init", "--quiet")
    for name in ("allowFilter", "allowAnySHA1InWant"):
        git(folder, "config", f"uploadpack.{name}", "true")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "one")
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", f"url.{folder}.insteadOf")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", URL)
    return git(folder, "rev-parse", "HEAD")


def test_a_commit_gives_its_wanted_files(commit: str) -> None:
    """The files are the commit's; another commit is refused by name."""
    assert read_commit(URL, commit, re.compile(WANTED)) == {"src/rule.h": b"int rows = 64;\n"}
    with pytest.raises(SourceError, match=f"forks.example/demo at {'0' * 40} is not available"):
        read_commit(URL, "0" * 40, re.compile(WANTED))


def test_a_wanted_name_that_is_no_text_is_refused(commit: str) -> None:
    """A wanted file whose name is no UTF-8 is refused by the commit's name."""
    with pytest.raises(SourceError, match=f"forks.example/demo at {commit}: .* is no plain text"):
        read_commit(URL, commit, re.compile(r".*\.h"))


def test_git_leaves_the_user_s_repository_alone(
    commit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Git's variables of a hook are ignored, and no password is asked for."""
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "mine"))
    run, asks = subprocess.run, set()

    def noted(*args: Any, env: dict[str, str], **options: Any) -> Any:
        asks.add(env["GIT_TERMINAL_PROMPT"])
        return run(*args, env=env, **options)

    monkeypatch.setattr("nearfree.sources.fetching.fork.subprocess.run", noted)
    assert read_commit(URL, commit, re.compile(WANTED)) == {"src/rule.h": b"int rows = 64;\n"}
    assert not (tmp_path / "mine").exists()
    assert asks == {"0"}


def test_a_pin_is_one_commit_by_its_hash() -> None:
    """A branch's name, or two commits, is no pin."""
    text = f"GIT_REPOSITORY {URL}.git\n  GIT_TAG {{}}\n"
    assert pinned_commit(text.format("a" * 40), "x") == (URL, "a" * 40)
    for other in (text.format("main"), text.format("a" * 40) * 2, ""):
        with pytest.raises(SourceError, match="commits of a repository"):
            pinned_commit(other, "x")


@pytest.mark.parametrize("lost", [False, True])
def test_a_release_is_read_at_its_pin_or_at_a_named_stand_in(
    server: Server, tmp_path: Path, commit: str, monkeypatch: pytest.MonkeyPatch, *, lost: bool
) -> None:
    """The record says which commit was read, and for which one it stands in; else it refuses."""
    pin = "f" * 40 if lost else commit
    text = f"GIT_REPOSITORY {URL}.git GIT_TAG {pin}".encode()
    digest = server.put("demo-1.0.tar.gz", make_sdist(("demo-1.0/pin.cmake", text)))
    plain = Fork(package="demo", pin=r"pin\.cmake", stand_ins={})
    monkeypatch.setitem(fork.FORKS, "demo-fork", plain._replace(stand_ins={"f" * 40: commit}))
    monkeypatch.setitem(fork.FORKS, "bare-fork", plain)
    cache = Cache(tmp_path / "cache")
    source = fetch("demo-fork", "1.0", WANTED, cache=cache)
    assert source.files == {"src/rule.h": b"int rows = 64;\n"}
    assert source.record.artefact_sha256 == digest
    assert source.record.verified == ("stand_in" if lost else "commit")
    assert source.record.artefact.startswith(f"forks.example/demo at {commit}")
    assert (pin in source.record.artefact, "not to be had" in source.record.artefact) == (
        True,
        lost,
    )
    assert fetch("demo-fork", "1.0", WANTED, cache=cache, offline=True) == source
    if lost:
        with pytest.raises(SourceError, match=f"at {pin} is not available"):
            fetch("bare-fork", "1.0", WANTED, cache=cache)
