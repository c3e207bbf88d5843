"""Where an engine's libraries and weights lie on this machine, each checked before it is used.

What loads a library is imported where one is asked for: a report asks where they lie alone.
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
    """Return the folder of a build's libraries, compared byte for byte with what pins them.

    Raises
    ------
    EvidenceError
        They were not fetched yet.
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
    """Return where the libraries of a prebuilt release are put."""
    return default_cache().absolute() / "engines" / f"{engine}-{release}"


def put_libraries(engine: str, release: str, build: Build, files: Mapping[str, bytes]) -> Path:
    """Put a prebuilt release's libraries where they are looked for, all of them or none."""
    from nearfree.engines.library import check_prebuilt

    folder = prebuilt_folder(engine, release)
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(dir=folder.parent))
    try:
        for path, raw in files.items():
            (made / Path(path).name).write_bytes(raw)
        check_prebuilt(build, made)
        made.chmod(0o755)
        if folder.is_dir():
            shutil.rmtree(folder)
        os.replace(made, folder)  # noqa: PTH105 (Path.replace says no more)
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return folder


def weights_path(weights: AnyWeights, files: Mapping[str, Path]) -> Path:
    """Return the file of some weights, its bytes compared with their SHA-256.

    Parameters
    ----------
    files
        Files that lie where their user has them, by SHA-256.

    Raises
    ------
    EvidenceError
        It is not here, or has other bytes.
    """
    if not isinstance(weights, WeightsFile):
        return _made(weights.digest)
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
    """Return where weights of a SHA-256 are kept that were fetched."""
    return Cache(default_cache()).path(sha256)


def _made(digest: str) -> Path:
    path = random_path(digest)
    if not path.is_file():
        raise EvidenceError(
            f"the random weights {digest} were not made yet", remedy="Run `nearfree fetch`"
        )
    return path


def random_path(digest: str) -> Path:
    """Return where random weights are kept, by the digest of what makes them."""
    return default_cache().absolute() / "weights" / f"{digest}.gguf"
