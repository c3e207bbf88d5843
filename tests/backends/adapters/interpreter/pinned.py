"""Only fetched files that envs/kernels.lock pins by hash may be executed."""

import re
from collections.abc import Mapping
from pathlib import Path

from msgspec import json
from nearfree.errors import SourceError
from nearfree.log.line import sha256
from nearfree.sources.fetching.cache import Cache
from nearfree.sources.fetching.fetch import fetch

Hashes = Mapping[str, str]
"""The SHA-256 of each file, by its path inside the artefact."""
LOCK = Path(__file__).parents[4] / "envs" / "kernels.lock"


def pinned(package: str, version: str) -> Hashes:
    """Return the files of a release that may be executed."""
    releases = json.decode(LOCK.read_bytes(), type=dict[str, dict[str, dict[str, str]]])
    return releases[package][version]


def place(files: Mapping[str, bytes], hashes: Hashes, folder: Path) -> None:
    """Write files where a process can import them, unless one of them is not what is pinned.

    Raises
    ------
    SourceError
        A file is not pinned or differs, or a pinned one is missing; nothing is written.
    """
    digests = {path: sha256(raw) for path, raw in files.items()}
    for path in sorted({*digests, *hashes}):
        if digests.get(path) != hashes.get(path):
            raise SourceError(
                f"{path} is not the file that envs/kernels.lock pins",
                remedy="Do not run it: read what changed, and pin it if it may be executed",
            )
    for path, raw in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(raw)


def fetch_pinned(package: str, version: str, cache: Cache, folder: Path) -> None:
    """Bring a release's pinned files into a folder.

    Raises
    ------
    SourceError
        The release is not to be had, or a file of it is not what is pinned.
    """
    hashes = pinned(package, version)
    pattern = "|".join(re.escape(path) for path in sorted(hashes))
    place(fetch(package, version, pattern, cache=cache).files, hashes, folder)
