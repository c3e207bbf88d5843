"""Fetch the wanted files of a release from the cache, or else from the package index.

Nothing that is fetched is ever built, imported or run, and nothing is stored before it is verified.
The exceptions are pinned by hash and run in processes of their own: kernel files of one test, and
the kernels that are compiled (envs/kernels.lock); the program that lists kernels
(envs/dumper.lock).
"""

import re
from bisect import bisect
from collections.abc import Callable, Iterator
from functools import partial

from nearfree.errors import SourceError
from nearfree.log.events import SourceFetched
from nearfree.sources.fetching.bundle import fetch_bundled, is_bundled
from nearfree.sources.fetching.cache import (
    Cache,
    Source,
    cached_source,
    member_records,
    missing_file_error,
)
from nearfree.sources.fetching.fork import FORKS, commit_name, pinned_commit, read_commit
from nearfree.sources.fetching.index import Artefact, releases
from nearfree.sources.fetching.sdist import read_sdist
from nearfree.sources.fetching.wheel import read_wheel
from nearfree.sources.packages import plain_version

SDISTS = {
    "vllm-linear": "vllm",
    "llama-cpp": "llama-cpp-python",
    "llama-cpp-cuda": "llama-cpp-python",
}
"""Packages that are read from another package's sdist only: the wheels hold binaries of the text.


"""
PARTS = SDISTS | {"vllm-triton": "vllm", "vllm-graphs": "vllm", "sglang-graphs": "sglang"}
"""Packages that are read from another package's releases, and have that package's versions."""
Reader = Callable[[Artefact, re.Pattern[str]], dict[str, bytes]]


def fetch(
    package: str,
    version: str,
    wanted: str,
    *,
    cache: Cache,
    offline: bool = False,
    limit: int | None = None,
) -> Source:
    """Return the files of a release whose path inside the artefact fully matches a pattern.

    The cache comes first. Else one wheel is read, then the sdist; a yanked release is accepted,
    since the caller names its version. For a fork, the commit is read that the release pins; for a
    bundled package, the bundle.

    Parameters
    ----------
    package, version
        The release, in any spelling that packaging accepts.
    wanted
        A regular expression over paths; in an sdist they start below its top folder.
    limit
        Limit of one file in bytes, if a wheel's files may exceed `members.MEMBER_LIMIT`.

    Raises
    ------
    SourceError
        There is no such release, it has no such file, or its content fails a check.
    """
    from packaging.utils import canonicalize_name

    package, version = canonicalize_name(package), plain_version(package, version)
    source = cached_source(package, version, wanted, cache, offline=offline)
    if source is not None:
        return source
    if is_bundled(package, version):
        return fetch_bundled(package, version, wanted, cache=cache)
    if package in FORKS:
        return _forked(package, version, wanted, cache)
    return _fetched(package, version, wanted, cache, limit)


def _fetched(package: str, version: str, wanted: str, cache: Cache, limit: int | None) -> Source:
    pattern = re.compile(wanted)
    for artefact, read in _artefacts(package, version, limit):
        files = read(artefact, pattern)
        if files:
            record = SourceFetched(
                package=package,
                version=version,
                artefact=artefact.filename,
                artefact_sha256=artefact.sha256,
                verified="member" if artefact.kind == "wheel" else "artefact",
                members=member_records(files),
            )
            return cache.keep(wanted, record, files)
    raise missing_file_error(package, version, wanted)


def _forked(package: str, version: str, wanted: str, cache: Cache) -> Source:
    """Return a fork's files at the pinned commit, else at its stand-in."""
    fork = FORKS[package]
    sdist = fetch(fork.package, version, fork.pin, cache=cache)
    ((path, _),) = sdist.files.items()
    url, commit = pinned_commit(sdist.text(path), f"{fork.package} {version}: {path}")
    stand_in = fork.stand_ins.get(commit)
    try:
        files, name = read_commit(url, commit, re.compile(wanted)), commit_name(url, commit)
        stand_in = None
    except SourceError:
        if stand_in is None:
            raise
        files = read_commit(url, stand_in, re.compile(wanted))
        name = f"{commit_name(url, stand_in)}, for {commit}, which was not to be had"
    if not files:
        raise missing_file_error(package, version, wanted)
    record = SourceFetched(
        package=package,
        version=version,
        artefact=name,
        artefact_sha256=sdist.record.artefact_sha256,
        verified="stand_in" if stand_in else "commit",
        members=member_records(files),
    )
    return cache.keep(wanted, record, files)


def _artefacts(package: str, version: str, limit: int | None) -> Iterator[tuple[Artefact, Reader]]:
    """Yield the artefacts to read, in order, with their reader: the best wheel, then the sdist.

    Packages of `SDISTS` have no wheel to read.
    """
    index_name = PARTS.get(package, package)
    artefacts_by_version = releases(index_name)
    if version not in artefacts_by_version:
        raise _unknown_version(index_name, version, list(artefacts_by_version))
    files = artefacts_by_version[version]
    wheels = [file for file in files if file.kind == "wheel"]
    sdists = [file for file in files if file.kind == "sdist"]
    if wheels and package not in SDISTS:
        yield max(wheels, key=_wheel_rank), partial(read_wheel, limit=limit)
    if sdists:
        yield max(sdists, key=lambda file: file.filename.endswith(".tar.gz")), read_sdist


def _wheel_rank(wheel: Artefact) -> tuple[int, tuple[int, str] | tuple[()], str]:
    """Return the sort key of wheels: any platform, Linux on x86-64, others; then the build."""
    from packaging.utils import InvalidWheelFilename, parse_wheel_filename

    try:
        _, _, build, tags = parse_wheel_filename(wheel.filename)
    except InvalidWheelFilename:
        return -1, (), wheel.filename
    platforms = {tag.platform for tag in tags}
    linux = any(re.fullmatch(r"(many)?linux.*_x86_64", platform) for platform in platforms)
    return 2 if "any" in platforms else int(linux), build, wheel.filename


def _unknown_version(package: str, version: str, known: list[str]) -> SourceError:
    from packaging.version import Version

    if not known:
        return SourceError(
            f"{package} has no wheel or sdist with a SHA-256", remedy="Check PIP_INDEX_URL"
        )
    position = bisect([Version(number) for number in known], Version(version))
    near = dict.fromkeys([*known[max(0, position - 1) : position + 1], known[-1]])
    return SourceError(
        f"{package} has no version {version}",
        remedy=f"Known near it, and newest: {', '.join(near)}",
    )
