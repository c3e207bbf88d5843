"""Forks: the commit that a release pins is read with git, or one that may stand in is named."""

import re
import subprocess
from pathlib import Path

import pytest
from nearfree.errors import SourceError
from nearfree.sources.fetching.cache import Cache
from nearfree.sources.fetching.fetch import fetch
from nearfree.sources.fetching.fork import FORKS, Fork, pinned, read_commit

from sources.fetching.indexserver import Server
from sources.fetching.test_archives import make_sdist

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
    """A repository of one commit, which git finds where the URL would be."""
    folder = tmp_path / "repository"
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "rule.h").write_text("int rows = 64;\n")
    (folder / "other.h").write_text("no\n")
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
    """Files are those of the commit whose paths match; another commit is refused by name."""
    assert read_commit(URL, commit, re.compile(WANTED)) == {"src/rule.h": b"int rows = 64;\n"}
    with pytest.raises(SourceError, match=f"{URL} at {'0' * 40} is not to be had"):
        read_commit(URL, "0" * 40, re.compile(WANTED))


def test_a_pin_is_one_commit_by_its_hash() -> None:
    """A branch's name, or two commits, pins nothing."""
    text = f"GIT_REPOSITORY {URL}.git\n  GIT_TAG {{}}\n"
    assert pinned(text.format("a" * 40), "x") == (URL, "a" * 40)
    for other in (text.format("main"), text.format("a" * 40) * 2, ""):
        with pytest.raises(SourceError, match="commits of a repository"):
            pinned(other, "x")
