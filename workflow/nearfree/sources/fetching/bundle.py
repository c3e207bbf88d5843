"""Bundles: a repository's files inside of an npm package, read with git; nothing of them is run.

The registry vouches for the package, and git checks every file against the commit's hash. Patches
that the package's build applies are on record beside them; one that touches a file which is read
refuses the release.
"""

import os
import re
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

from nearfree.errors import SourceError
from nearfree.log.events import SourceFetched
from nearfree.sources.fetching.cache import Cache
from nearfree.sources.fetching.members import COUNT_LIMIT, MEMBER_LIMIT
from nearfree.sources.fetching.npm import fetch_npm
from nearfree.sources.fetching.source import Source, lacking, members_of

TIMEOUT_S = 300
_TOUCHED = re.compile(r"^(?:diff --git a/(\S+) b/(\S+)|(?:---|\+\+\+) [ab]/(\S+))", re.MULTILINE)
_HEAD = re.compile(rb"# v2 git bundle\n([0-9a-f]{40}) HEAD\n\n")


BUNDLED, PACKAGE = "llama-cpp", "node-llama-cpp"
"""The name that the rules of bundled text go by, and the npm package that has the bundle."""
BUNDLE, PATCHES = "llama/gitRelease.bundle", "llama/patches/"
"""The package's members that hold the bundle and the patches."""
BUNDLE_LIMIT = 64 * 2**20
"""Bytes of a bundle."""
SINCE = 1
"""The first number of the versions that the package has; earlier ones are another package's."""


def bundled(package: str, version: str) -> bool:
    """Return whether a release's text comes in a bundle."""
    from packaging.version import Version

    return package == BUNDLED and Version(version).major >= SINCE


def fetch_bundled(version: str, wanted: str, *, cache: Cache) -> Source:
    """Return the files of a release whose path in its repository matches a pattern as a whole.

    Raises
    ------
    SourceError
        There is no such release, it has no such file, what is there cannot be believed, or a patch
        changes a file that is wanted.
    """
    held = f"{re.escape(BUNDLE)}|{re.escape(PATCHES)}.*"
    source = fetch_npm(PACKAGE, version, held, cache=cache, limit=BUNDLE_LIMIT)
    pattern = re.compile(wanted)
    patches = {path: raw for path, raw in source.files.items() if path != BUNDLE}
    for path, raw in patches.items():
        touched = sorted(each for each in _touched(raw) if pattern.fullmatch(each))
        if touched:
            raise SourceError(
                f"{BUNDLED} {version}: {path} changes {', '.join(touched)} before it is built",
                remedy="Take another version: what it is built of is not on record",
            )
    commit, files = read_bundle(source.raw(BUNDLE), pattern, f"{BUNDLED} {version}")
    if not files:
        raise lacking(BUNDLED, version, wanted)
    files |= patches
    record = SourceFetched(
        package=BUNDLED,
        version=version,
        artefact=f"{source.record.artefact}: {BUNDLE} at {commit}",
        artefact_sha256=source.record.artefact_sha256,
        verified="artefact",
        members=members_of(files),
    )
    cache.keep(wanted, record, files)
    return Source(record, files)


def _touched(raw: bytes) -> set[str]:
    found = _TOUCHED.findall(raw.decode(errors="replace"))
    return {path for groups in found for path in groups if path}


def read_bundle(raw: bytes, wanted: re.Pattern[str], what: str) -> tuple[str, dict[str, bytes]]:
    """Return a bundle's commit, and its files whose path matches, by path.

    Raises
    ------
    SourceError
        It is no bundle of one whole commit, git refuses it, or a file is a link or too long.
    """
    head = _HEAD.match(raw)
    if head is None:
        raise SourceError(f"{what}: its bundle is of no known form", remedy="Take another version")
    commit = head[1].decode()
    with TemporaryDirectory() as folder:
        bundle = Path(folder) / "bundle"
        bundle.write_bytes(raw)
        repository = str(Path(folder) / "repository")
        _git(folder, what, "init", "--quiet", "--bare", "--template=", repository)
        _git(repository, what, "fetch", "--quiet", "--no-tags", "--no-auto-gc", str(bundle), "HEAD")
        listed = _git(repository, what, "ls-tree", "-r", "-z", "-l", commit).decode().split("\0")
        if len(listed) > COUNT_LIMIT:
            raise SourceError(f"{what} has over {COUNT_LIMIT} files", remedy="It is not read")
        files = {}
        for line in filter(None, listed):
            about, _, path = line.partition("\t")
            mode, _, blob, size = about.split()
            if not wanted.fullmatch(path):
                continue
            if mode not in {"100644", "100755"} or int(size) > MEMBER_LIMIT:
                raise SourceError(
                    f"{what}: {path!r} is no plain file of at most {MEMBER_LIMIT} bytes",
                    remedy="Take another version",
                )
            files[path] = _git(repository, what, "cat-file", "blob", blob)
    return commit, files


def _git(folder: str, what: str, *words: str) -> bytes:
    """Run git without anybody's settings or hooks, and check all that comes in."""
    alone = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "HOME": folder}
    alone |= {"GIT_TERMINAL_PROMPT": "0", "GIT_ALLOW_PROTOCOL": "file", "LC_ALL": "C"}
    settings = ["-c", "transfer.fsckObjects=true", "-c", f"core.hooksPath={os.devnull}"]
    try:
        return subprocess.run(
            ["git", "-C", folder, *settings, *words],
            capture_output=True,
            timeout=TIMEOUT_S,
            check=True,
            env={"PATH": os.environ.get("PATH", os.defpath), **alone},
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise SourceError(
            f"{what}: git does not read its bundle ({type(error).__name__})",
            remedy="Check that git is installed; else take another version",
        ) from error
