"""Model classes of an engine's releases: the lock file, and reading them anew.

`config/classes.lock` holds the releases that were read, and for each class the spans of releases
that have it. So a release that changes nothing only adds its own name.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import groupby
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from nearfree.errors import ConfigError, SourceError
from nearfree.log.document import locked_file, replace
from nearfree.sources.backends.model_classes import WANTED, Classes, model_classes
from nearfree.sources.fetching.cache import Cache

LOCK = "classes.lock"
Span = tuple[str, str | None]
"""The first and the last release of a run of consecutive ones; None stands for the newest read."""
Spans = dict[str, list[Span]]
FETCHERS = 8


class LockedClasses(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The releases of an engine that were read, oldest first, and the spans with each class."""

    releases: list[str]
    own: Spans
    transformers: Spans

    def releases_with(self, *names: str) -> list[str]:
        """Return the releases that run one of some classes, oldest first."""
        spans = [
            span
            for spans_by_class in (self.own, self.transformers)
            for name in names
            for span in spans_by_class.get(name, ())
        ]
        supporting = {release for span in spans for release in self._within(span)}
        return [release for release in self.releases if release in supporting]

    def by_transformers(self, name: str, release: str) -> bool:
        """Return whether a release runs a class through its Transformers backend."""
        return any(release in self._within(span) for span in self.transformers.get(name, ()))

    def _within(self, span: Span) -> list[str]:
        first, last = span
        end = len(self.releases) if last is None else self.releases.index(last) + 1
        return self.releases[self.releases.index(first) : end]


ClassLock = dict[str, LockedClasses]
"""Locked classes by engine."""


def read_class_lock(path: Path) -> ClassLock:
    """Return the lock; an empty one if there is no file.

    Raises
    ------
    ConfigError
        The file is no lock.
    """
    if not path.exists():
        return {}
    try:
        lock = msgspec.json.decode(path.read_bytes(), type=ClassLock)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is no lock: {error}", remedy="Restore it") from error
    for name, engine in lock.items():
        spans = [*engine.own.values(), *engine.transformers.values()]
        ends = {end for spans_of_class in spans for span in spans_of_class for end in span}
        if unknown := ends - {*engine.releases, None}:
            raise ConfigError(
                f"{path} is no lock: {name} has no release {min(map(str, unknown)):.60}",
                remedy="Restore it",
            )
    return lock


def renew_class_lock(path: Path, engine: str, classes: Mapping[str, Classes]) -> None:
    """Write an engine's classes into the lock; entries of other engines stay.

    Raises
    ------
    BusyError
        Another process is writing it.
    """
    with locked_file(path):
        lock = {**read_class_lock(path), engine: locked_entry(classes)}
        content = {name: asdict(entry) for name, entry in sorted(lock.items())}
        replace(path, f"{lock_text(content)}\n".encode())


def locked_entry(classes: Mapping[str, Classes]) -> LockedClasses:
    """Return the lock's entry of an engine from its releases' classes, oldest release first."""
    own, transformers = (
        _spans({release: getattr(kinds, kind) for release, kinds in classes.items()})
        for kind in ("own", "transformers")
    )
    return LockedClasses(releases=list(classes), own=own, transformers=transformers)


def _spans(names_by_release: Mapping[str, frozenset[str]]) -> Spans:
    releases = list(names_by_release)
    return {
        name: spans_of(releases, {each for each in releases if name in names_by_release[each]})
        for name in sorted(frozenset().union(*names_by_release.values()))
    }


def spans_of(releases: Sequence[str], chosen: Collection[str]) -> list[Span]:
    """Return the spans of some releases among all of an engine's, oldest first."""
    runs = [list(group) for is_chosen, group in groupby(releases, chosen.__contains__) if is_chosen]
    return [(run[0], None if run[-1] == releases[-1] else run[-1]) for run in runs]


def lock_text(value: object, depth: int = 3, indent: str = "") -> str:
    """Return the JSON of dictionaries in dictionaries: a line for each entry of the innermost."""
    if not depth or not isinstance(value, dict):
        return json.dumps(value, sort_keys=True)
    entries = (
        f"{indent}  {json.dumps(key)}: {lock_text(entry, depth - 1, f'{indent}  ')}"
        for key, entry in value.items()
    )
    return "{\n" + ",\n".join(entries) + f"\n{indent}}}"


def read_classes(
    engine: str, versions: Sequence[str], *, cache: Cache, offline: bool = False
) -> dict[str, Classes]:
    """Return the classes of an engine's releases in the given order; see `WANTED` for the engines.

    Raises
    ------
    SourceError
        A release is not available, or of an unknown form; the message names it.
    """
    read = partial(_read, engine, cache=cache, offline=offline)
    with ThreadPoolExecutor(FETCHERS) as pool:
        return dict(zip(versions, pool.map(read, versions), strict=True))


def _read(engine: str, version: str, *, cache: Cache, offline: bool) -> Classes:
    from nearfree.sources.fetching.fetch import fetch

    source = fetch(engine, version, WANTED[engine], cache=cache, offline=offline)
    try:
        return model_classes(engine, {path: source.text(path) for path in source.paths()})
    except SourceError as error:
        raise SourceError(f"{engine} {version}: {error.what}", remedy=error.remedy) from error
