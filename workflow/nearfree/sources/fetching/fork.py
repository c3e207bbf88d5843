"""Forks: repositories that a release's own sdist pins by commit, read with git.

The index vouches for the sdist, the sdist names the commit, and git checks every file against the
commit's hash. Who has a mirror names it in git's own configuration (`url.<mirror>.insteadOf`).
"""

import os
import re
import subprocess
from collections.abc import Mapping
from tempfile import TemporaryDirectory
from typing import NamedTuple

from nearfree.errors import MOVED, SourceError
from nearfree.sources.fetching.members import MEMBER_LIMIT

PIN = re.compile(r"\bGIT_REPOSITORY\s+(https://\S+?)(?:\.git)?\s+GIT_TAG\s+([0-9a-f]{40})\b")
TIMEOUT_S = 600
_ELSEWHERE = {
    *("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_COMMON_DIR"),
    *("GIT_NAMESPACE", "GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES"),
    "GIT_SHALLOW_FILE",
}
"""Variables that name a repository: git sets them for its hooks, where it is the user's own."""


class Fork(NamedTuple):
    """A fork: the package whose sdist pins it, in which file, and which commit may stand in.

    Of `stand_ins`, by pinned commit: an earlier one, for who cannot have the pinned one; the
    kernels that the release's binary names are those that the earlier one builds.
    """

    package: str
    pin: str
    stand_ins: Mapping[str, str]


FORKS = {
    "vllm-fa3": Fork(
        package="vllm",
        pin=r"cmake/external_projects/vllm_flash_attn\.cmake",
        # vLLM 0.33.0's pin, and the newest commit of the public copy that was read. Of the files
        # with rules all but flash_api.cpp are the same there as at vLLM 0.20.2's pin, f5bc33cf.
        # `_vllm_fa3_C` of both releases holds rows of 64 at 64 and 128 dimensions, and of 192 or
        # 128 as the text has them.
        stand_ins={
            "b273a02621d3c94bc747df67204f591b67f38fae": "617264c1c7955c9e84817654ebeedff069f3c5f1"
        },
    )
}
"""By the name that rules of a fork go by; its versions are the pinning package's."""


STANDS_IN = "an earlier commit stands in for the pinned one, whose thresholds were not read"
"""What is said of rules that were read so."""


def pinned(text: str, what: str) -> tuple[str, str]:
    """Return the repository and the commit that a CMake file pins; SourceError if not one."""
    found = PIN.findall(text)
    if len(found) != 1:
        raise SourceError(f"{what} pins {len(found)} commits of a repository", remedy=MOVED)
    url, commit = found[0]
    return url, commit


def named(url: str, commit: str) -> str:
    """Return what a commit of a repository is called: no URL, which events may not hold."""
    return f"{url.partition('://')[2]} at {commit}"


def read_commit(url: str, commit: str, wanted: re.Pattern[str]) -> dict[str, bytes]:
    """Return the files of a commit whose path matches, by path.

    Raises
    ------
    SourceError
        The commit is not to be had, or a file is too long.
    """
    with TemporaryDirectory() as folder:
        _git(folder, "init", "--quiet", "--bare")
        _git(folder, "remote", "add", "origin", url)
        what = named(url, commit)
        asked = ("--quiet", "--depth=1", "--filter=blob:none", "origin", commit)
        _git(folder, "fetch", *asked, what=what)
        listed = _git(folder, "ls-tree", "-r", "-z", "--name-only", commit).decode().split("\0")
        files = {
            path: _git(folder, "cat-file", "blob", f"{commit}:{path}", what=what)
            for path in listed
            if wanted.fullmatch(path)
        }
    for path, raw in files.items():
        if len(raw) > MEMBER_LIMIT:
            raise SourceError(f"{url}: {path} is over {MEMBER_LIMIT} bytes", remedy="Report it")
    return files


def _git(folder: str, *words: str, what: str = "a fetched commit") -> bytes:
    """Run git with the user's settings, in no repository of theirs, and without a question."""
    mine = {name: text for name, text in os.environ.items() if name not in _ELSEWHERE}
    try:
        return subprocess.run(
            ["git", "-C", folder, *words],
            capture_output=True,
            timeout=TIMEOUT_S,
            check=True,
            env=mine | {"GIT_TERMINAL_PROMPT": "0"},
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise SourceError(
            f"{what} is not to be had: git fails ({type(error).__name__})",
            remedy="Check the network and that git is installed; a mirror is named in git's own"
            " configuration, url.<mirror>.insteadOf",
        ) from error
