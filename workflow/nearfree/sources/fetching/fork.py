"""Forks: repositories that a release's own sdist pins by commit, read with git.

The index's hash verifies the sdist, the sdist names the commit, and git verifies every file against
the commit's hash. A mirror is named in git's own configuration (`url.<mirror>.insteadOf`).
"""

import os
import re
import subprocess
from collections.abc import Mapping
from tempfile import TemporaryDirectory
from typing import NamedTuple

from nearfree.errors import MovedError, SourceError
from nearfree.sources.fetching.members import MEMBER_LIMIT

PIN = re.compile(r"\bGIT_REPOSITORY\s+(https://\S+?)(?:\.git)?\s+GIT_TAG\s+([0-9a-f]{40})\b")
TIMEOUT_S = 600
_REPOSITORY_VARIABLES = {
    *("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_COMMON_DIR"),
    *("GIT_NAMESPACE", "GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES"),
    "GIT_SHALLOW_FILE",
}
"""Variables that name a repository: git sets them for its hooks, to the user's repository."""


class Fork(NamedTuple):
    """A fork: the package whose sdist pins it, the file with the pin, and stand-in commits.

    `stand_ins` maps a pinned commit to an earlier one, for users who cannot get the pinned one. The
    kernels that the release's binary names are those that the earlier one builds.
    """

    package: str
    pin: str
    stand_ins: Mapping[str, str]


FORKS = {
    "vllm-fa3": Fork(
        package="vllm",
        pin=r"cmake/external_projects/vllm_flash_attn\.cmake",
        # vLLM 0.33.0's pin, and the newest commit of the public copy that was read. Its files with
        # rules, except flash_api.cpp, are the same as at vLLM 0.20.2's pin, f5bc33cf. In both
        # releases `_vllm_fa3_C` holds tiles of 64 rows at head dimensions 64 and 128, and of 192 or
        # 128 rows as the text has them.
        stand_ins={
            "b273a02621d3c94bc747df67204f591b67f38fae": "617264c1c7955c9e84817654ebeedff069f3c5f1"
        },
    )
}
"""Forks by the package name of their rules; the versions are the pinning package's."""


STANDS_IN = "an earlier commit stands in for the pinned one, whose thresholds were not read"
"""The note on rules that were read from a stand-in."""


def pinned_commit(text: str, label: str) -> tuple[str, str]:
    """Return the repository and the commit that a CMake file pins; raise SourceError if not one."""
    pins = PIN.findall(text)
    if len(pins) != 1:
        raise MovedError(f"{label} pins {len(pins)} commits of a repository")
    url, commit = pins[0]
    return url, commit


def commit_name(url: str, commit: str) -> str:
    """Return the name of a repository's commit without a URL, which events may not contain."""
    return f"{url.partition('://')[2]} at {commit}"


def read_commit(url: str, commit: str, wanted: re.Pattern[str]) -> dict[str, bytes]:
    """Return the files of a commit whose path matches, by path.

    Raises
    ------
    SourceError
        The commit is not available, or a file is too large.
    """
    with TemporaryDirectory() as folder:
        _git(folder, "init", "--quiet", "--bare")
        _git(folder, "remote", "add", "origin", url)
        label = commit_name(url, commit)
        fetch_arguments = ("--quiet", "--depth=1", "--filter=blob:none", "origin", commit)
        _git(folder, "fetch", *fetch_arguments, label=label)
        listing = _git(folder, "ls-tree", "-r", "-z", "--name-only", commit)
        paths = [path for path in os.fsdecode(listing).split("\0") if wanted.fullmatch(path)]
        for path in paths:
            if not path.isprintable():
                raise SourceError(f"{label}: {path!r} is no plain text", remedy="Report it")
        files = {
            path: _git(folder, "cat-file", "blob", f"{commit}:{path}", label=label)
            for path in paths
        }
    for path, raw in files.items():
        if len(raw) > MEMBER_LIMIT:
            raise SourceError(f"{url}: {path} is over {MEMBER_LIMIT} bytes", remedy="Report it")
    return files


def _git(folder: str, *arguments: str, label: str = "a fetched commit") -> bytes:
    """Run git with the user's settings, outside of any repository, and without prompts."""
    environment = {
        name: value for name, value in os.environ.items() if name not in _REPOSITORY_VARIABLES
    }
    try:
        return subprocess.run(
            ["git", "-C", folder, *arguments],
            capture_output=True,
            timeout=TIMEOUT_S,
            check=True,
            env=environment | {"GIT_TERMINAL_PROMPT": "0"},
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise SourceError(
            f"{label} is not available: git fails ({type(error).__name__})",
            remedy="Check the network and that git is installed; a mirror is named in git's own"
            " configuration, url.<mirror>.insteadOf",
        ) from error
