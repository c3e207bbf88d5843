"""Paths of an engine's libraries and weights on this machine, each checked before use.

The module that loads libraries is imported only when one is needed: a report needs only paths.
"""

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from nearfree.backends.builds import Build
from nearfree.core.weights import AnyWeights, WeightsFile
from nearfree.errors import EvidenceError
from nearfree.sources.fetching.cache import Cache, default_cache

FETCH = "Run `nearfree fetch`, which needs the network once"


def library_folder(engine: str, release: str, build: Build) -> Path:
    """Return the folder of a build's libraries, after comparing them byte for byte with their lock.

    Raises
    ------
    EvidenceError
        The libraries were not fetched yet.
    LockError
        They were changed, or are not installed in this interpreter.
    """
    from nearfree.engines.library import check_prebuilt, installed_folder

    if not build.prebuilt:
        return installed_folder(build)
    folder = prebuilt_folder(engine, release)
    if not folder.is_dir():
        raise EvidenceError(f"{engine} {release} is not here", remedy=FETCH)
    check_prebuilt(build, folder)
    return folder


def prebuilt_folder(engine: str, release: str) -> Path:
    """Return the folder for the libraries of a prebuilt release."""
    return default_cache().absolute() / "engines" / f"{engine}-{release}"


def put_libraries(engine: str, release: str, build: Build, files: Mapping[str, bytes]) -> Path:
    """Install a prebuilt release's libraries in their folder, all of them or none."""
    from nearfree.engines.library import check_prebuilt

    folder = prebuilt_folder(engine, release)
    folder.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(dir=folder.parent))
    try:
        for path, raw in files.items():
            (staging / Path(path).name).write_bytes(raw)
        check_prebuilt(build, staging)
        staging.chmod(0o755)
        if folder.is_dir():
            shutil.rmtree(folder)
        os.replace(staging, folder)  # noqa: PTH105 (Path.replace says no more)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return folder


def weights_path(weights: AnyWeights, files: Mapping[str, Path]) -> Path:
    """Return the file of some weights, after comparing its bytes with their SHA-256.

    Parameters
    ----------
    files
        Paths of the user's own files, by SHA-256.

    Raises
    ------
    EvidenceError
        The file is missing, or has other bytes.
    """
    if not isinstance(weights, WeightsFile):
        path = random_path(weights.digest)
        if not path.is_file():
            raise EvidenceError(
                f"the random weights {weights.digest} were not made yet",
                remedy="Run `nearfree fetch`",
            )
        return path
    path = files.get(weights.sha256) or cached_weights(weights.sha256)
    if not path.is_file():
        raise EvidenceError(f"the weights {weights.digest} are not here", remedy=FETCH)
    from nearfree.engines.library import sha256_of

    if sha256_of(path) != weights.sha256:
        raise EvidenceError(
            f"{path.name} has other bytes than the weights {weights.digest}",
            remedy="Delete it and fetch it again, or measure it under its own name",
        )
    return path


def cached_weights(sha256: str) -> Path:
    """Return the path of fetched weights in the cache, by their SHA-256."""
    return Cache(default_cache()).path(sha256)


def random_path(digest: str) -> Path:
    """Return the path of random weights, by the digest of their definition."""
    return default_cache().absolute() / "weights" / f"{digest}.gguf"
