"""Bundles: a repository's files inside an npm package, read with git; nothing of them is run.

The registry's hash verifies the package, and git verifies every file against the commit's hash.
Patches that the package's build applies are recorded next to the files; a release is refused if a
patch changes a file that is read.
"""

import os
import re
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

from nearfree.errors import SourceError
from nearfree.log.events import SourceFetched
from nearfree.sources.fetching.cache import Cache, Source, member_records, missing_file_error
from nearfree.sources.fetching.members import COUNT_LIMIT, MEMBER_LIMIT
from nearfree.sources.fetching.npm import fetch_npm

TIMEOUT_S = 300
_PATCHED_PATHS = re.compile(
    r"^(?:diff --git a/(\S+) b/(\S+)|(?:---|\+\+\+) [ab]/(\S+))", re.MULTILINE
)
_HEAD = re.compile(rb"# v2 git bundle\n([0-9a-f]{40}) HEAD\n\n")


BUNDLED, PACKAGE = ("llama-cpp", "llama-cpp-cuda"), "node-llama-cpp"
"""The package names of the rules that are read from the bundle, and the npm package with it."""
BUNDLE, PATCHES = "llama/gitRelease.bundle", "llama/patches/"
"""The members of the package that hold the bundle and the patches."""
BUNDLE_LIMIT = 64 * 2**20
"""Limit of a bundle, in bytes."""
FIRST_MAJOR = 1
"""The first major version that is read; earlier ones belong to another package."""


def is_bundled(package: str, version: str) -> bool:
    """Return whether a release's files come from a bundle."""
    from packaging.version import Version

    return package in BUNDLED and Version(version).major >= FIRST_MAJOR


def fetch_bundled(package: str, version: str, wanted: str, *, cache: Cache) -> Source:
    """Return the files of a release whose path in its repository fully matches a pattern.

    Raises
    ------
    SourceError
        There is no such release, it has no such file, its content fails a check, or a patch changes
        a wanted file.
    """
    bundle_members = f"{re.escape(BUNDLE)}|{re.escape(PATCHES)}.*"
    source = fetch_npm(PACKAGE, version, bundle_members, cache=cache, limit=BUNDLE_LIMIT)
    pattern = re.compile(wanted)
    patches = {path: raw for path, raw in source.files.items() if path != BUNDLE}
    for path, raw in patches.items():
        matches = _PATCHED_PATHS.findall(raw.decode(errors="replace"))
        names = {name for groups in matches for name in groups if name}
        patched = sorted(name for name in names if pattern.fullmatch(name))
        if patched:
            raise SourceError(
                f"{package} {version}: {path} changes {', '.join(patched)} before it is built",
                remedy="Take another version: what it is built of is not on record",
            )
    commit, files = read_bundle(source.raw(BUNDLE), pattern, f"{package} {version}")
    if not files:
        raise missing_file_error(package, version, wanted)
    files |= patches
    record = SourceFetched(
        package=package,
        version=version,
        artefact=f"{source.record.artefact}: {BUNDLE} at {commit}",
        artefact_sha256=source.record.artefact_sha256,
        verified="artefact",
        members=member_records(files),
    )
    return cache.keep(wanted, record, files)


def read_bundle(raw: bytes, wanted: re.Pattern[str], label: str) -> tuple[str, dict[str, bytes]]:
    """Return a bundle's commit, and its files whose path matches, by path.

    Raises
    ------
    SourceError
        It is no bundle of one complete commit, git refuses it, or a file is a link or too large.
    """
    head = _HEAD.match(raw)
    if head is None:
        raise SourceError(f"{label}: its bundle has an unknown form", remedy="Take another version")
    commit = head[1].decode()
    with TemporaryDirectory() as folder:
        bundle = Path(folder) / "bundle"
        bundle.write_bytes(raw)
        repository = str(Path(folder) / "repository")
        _git(folder, label, "init", "--quiet", "--bare", "--template=", repository)
        _git(
            repository, label, "fetch", "--quiet", "--no-tags", "--no-auto-gc", str(bundle), "HEAD"
        )
        listing = _git(repository, label, "ls-tree", "-r", "-z", "-l", commit)
        entries = os.fsdecode(listing).split("\0")
        if len(entries) > COUNT_LIMIT:
            raise SourceError(f"{label} has over {COUNT_LIMIT} files", remedy="It is not read")
        files = {}
        for entry in filter(None, entries):
            attributes, _, path = entry.partition("\t")
            mode, _, blob, size = attributes.split()
            if not wanted.fullmatch(path):
                continue
            plain = mode in {"100644", "100755"} and path.isprintable()
            if not plain or int(size) > MEMBER_LIMIT:
                raise SourceError(
                    f"{label}: {path!r} is no plain file of at most {MEMBER_LIMIT} bytes",
                    remedy="Take another version",
                )
            files[path] = _git(repository, label, "cat-file", "blob", blob)
    return commit, files


def _git(folder: str, label: str, *arguments: str) -> bytes:
    """Run git without user settings or hooks, and verify all objects that come in."""
    environment = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "HOME": folder}
    environment |= {"GIT_TERMINAL_PROMPT": "0", "GIT_ALLOW_PROTOCOL": "file", "LC_ALL": "C"}
    settings = ["-c", "transfer.fsckObjects=true", "-c", f"core.hooksPath={os.devnull}"]
    try:
        return subprocess.run(
            ["git", "-C", folder, *settings, *arguments],
            capture_output=True,
            timeout=TIMEOUT_S,
            check=True,
            env={"PATH": os.environ.get("PATH", os.defpath), **environment},
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise SourceError(
            f"{label}: git cannot read its bundle ({type(error).__name__})",
            remedy="Check that git is installed; else take another version",
        ) from error
