"""Which releases of an engine have a class of a model: what is locked, and how it is read anew.

`config/classes.lock` holds the releases that were read, and of each class the spans of them that
have it, so that a release that changes nothing adds its own name alone.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import groupby
from pathlib import Path

import msgspec
from msgspec import Struct

from nearfree.errors import ConfigError, SourceError
from nearfree.log.document import alone, replace
from nearfree.sources.backends.model_classes import WANTED, Classes, model_classes
from nearfree.sources.fetching.cache import Cache

LOCK = "classes.lock"
Span = tuple[str, str | None]
"""The first and the last release of several that follow one another; None is the newest read."""
Spans = dict[str, list[Span]]
FETCHERS = 8


class Locked(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The releases of an engine that were read, oldest first, and which of them have a class."""

    releases: list[str]
    own: Spans
    transformers: Spans

    def having(self, *names: str) -> list[str]:
        """Return the releases that run one of some classes, oldest first."""
        spans = [
            span
            for kind in (self.own, self.transformers)
            for name in names
            for span in kind.get(name, ())
        ]
        held = {release for span in spans for release in self._within(span)}
        return [each for each in self.releases if each in held]

    def by_transformers(self, name: str, release: str) -> bool:
        """Return whether a release runs a class by its Transformers backend."""
        return any(release in self._within(each) for each in self.transformers.get(name, ()))

    def _within(self, span: Span) -> list[str]:
        first, last = span
        end = len(self.releases) if last is None else self.releases.index(last) + 1
        return self.releases[self.releases.index(first) : end]


ClassLock = dict[str, Locked]
"""By engine."""


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
        found = msgspec.json.decode(path.read_bytes(), type=ClassLock)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is no lock: {error}", remedy="Restore it") from error
    for name, engine in found.items():
        spans = [*engine.own.values(), *engine.transformers.values()]
        ends = {end for each in spans for span in each for end in span}
        if unknown := ends - {*engine.releases, None}:
            raise ConfigError(
                f"{path} is no lock: {name} has no release {min(map(str, unknown)):.60}",
                remedy="Restore it",
            )
    return found


def renew_class_lock(path: Path, engine: str, found: Mapping[str, Classes]) -> None:
    """Write what an engine's releases have into the lock; other engines stay in it as they are.

    Raises
    ------
    BusyError
        Another process writes it right now.
    """
    with alone(path):
        replace(path, _written({**read_class_lock(path), engine: locked(found)}))


def locked(found: Mapping[str, Classes]) -> Locked:
    """Return an engine's part of a lock from the classes of its releases, oldest first."""
    own = {release: each.own for release, each in found.items()}
    others = {release: each.transformers for release, each in found.items()}
    return Locked(releases=list(found), own=_spans(own), transformers=_spans(others))


def _spans(found: Mapping[str, frozenset[str]]) -> Spans:
    releases, spans = list(found), Spans()
    for name in sorted(frozenset().union(*found.values())):
        spans[name] = spans_of(releases, {each for each in releases if name in found[each]})
    return spans


def spans_of(releases: Sequence[str], held: Collection[str]) -> list[Span]:
    """Return the spans of an engine's releases, oldest first, that lie among those held."""
    runs = [list(group) for there, group in groupby(releases, held.__contains__) if there]
    return [(run[0], None if run[-1] == releases[-1] else run[-1]) for run in runs]


def _written(lock: ClassLock) -> bytes:
    """Return a lock as its file holds it: one line a class, so that a change reads as one."""
    engines = []
    for engine, each in sorted(lock.items()):
        parts = [f'    "releases": {json.dumps(each.releases)}']
        for kind in ("own", "transformers"):
            lines = [
                f"      {json.dumps(name)}: {json.dumps(spans)}"
                for name, spans in getattr(each, kind).items()
            ]
            parts.append(f'    "{kind}": {{\n' + ",\n".join(lines) + "\n    }")
        engines.append(f"  {json.dumps(engine)}: {{\n" + ",\n".join(parts) + "\n  }")
    return ("{\n" + ",\n".join(engines) + "\n}\n").encode()


def read_classes(
    engine: str, versions: Sequence[str], *, cache: Cache, offline: bool = False
) -> dict[str, Classes]:
    """Return the classes of an engine's releases, in the given order; `WANTED` has the engines.

    Raises
    ------
    SourceError
        A release is not to be had, or of an unknown form; the message names it.
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
