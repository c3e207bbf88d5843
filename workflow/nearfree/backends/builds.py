"""The builds of an engine that are driven here, as envs/engines.lock pins them.

A build is a release with its files: the libraries by their SHA-256, and what crosses a call of
theirs, which was read from that release's own headers. The lock is written by `nearfree fetch
--lock`. An engine that Python calls by its own binding has neither: its environment's lock pins it.
"""

from collections.abc import Mapping

import msgspec
from msgspec import Struct, field

from nearfree.backends.environments.lock import FOLDER, OWN, pins
from nearfree.backends.records import BY_NAME
from nearfree.core.names import Name
from nearfree.core.weights import Digest
from nearfree.errors import ConfigError, LockError
from nearfree.shipped import shipped

LOCK = FOLDER / "engines.lock"
"""That of a project, or else the one that the package ships."""


class Abi(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What crosses a call: fields of structures, types of functions, as `sources.cpp.header`."""

    headers: dict[str, Digest]
    """The headers that say so, by path."""
    structs: dict[str, list[str]]
    """The fields of each, in order: the code of the type, a blank and the name."""
    functions: dict[str, str]
    """The code of what each returns and, in brackets, those of its parameters."""


class Build(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One release of an engine, ready to be fetched or installed."""

    package: str
    """The package that holds the libraries, as its index spells it."""
    sources: str
    """The package that holds the source text they were compiled from."""
    libraries: dict[str, Digest] = {}
    """Libraries by their path in the package; none where they are compiled when it is installed."""
    environment: Name = OWN
    """The lock under envs/ whose interpreter runs it."""
    abi: Abi = field(default_factory=lambda: Abi(headers={}, structs={}, functions={}))
    """Empty where the engine's own Python binding makes the calls."""
    speculation: dict[str, int] = {}
    """What the release's own programs draft by default, by type and option, as its source says."""

    @property
    def prebuilt(self) -> bool:
        """Whether its libraries are fetched, not compiled on this machine."""
        return bool(self.libraries)


def locked() -> dict[str, dict[str, Build]]:
    """Return all builds by engine and release; LockError if the lock cannot be read."""
    try:
        raw = (LOCK if LOCK.exists() else shipped(str(LOCK))).read_bytes()
        return msgspec.json.decode(raw, type=dict[str, dict[str, Build]])
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise LockError(
            f"{LOCK} cannot be read: {error}", remedy="Restore it from the repository"
        ) from error


def builds(engine: str) -> Mapping[str, Build]:
    """Return the builds of an engine by release; LockError if the lock cannot be read."""
    return locked().get(engine, {})


def build_of(engine: str, release: str) -> Build:
    """Return one build; ConfigError if the lock has none."""
    known = builds(engine)
    if release not in known:
        raise ConfigError(
            f"no build of {engine} {release} is pinned",
            remedy=f"Choose from {', '.join(known) or 'none'}, which {LOCK} describes",
        )
    return known[release]


def engine_environment(engine: str, release: str) -> Name:
    """Return the lock whose interpreter runs a release of an engine.

    It is that of a build, and of a serving engine the one that pins this release of its package.
    Where that lock is neither in the working folder nor shipped, nothing is compared with it.

    Raises
    ------
    ConfigError
        Neither has it, or the lock pins another release.
    """
    backend = BY_NAME[engine]
    if builds(engine) or "engine" not in backend.modules:
        return build_of(engine, release).environment
    name = backend.environment or OWN
    lock = FOLDER / f"{name}.lock"
    lock = lock if lock.is_file() else shipped(str(lock))
    if not lock.is_file():
        return name
    pinned = pins(lock).get(backend.package)
    if pinned != release:
        raise ConfigError(
            f"no environment has {engine} {release}",
            remedy=f"Choose {pinned}, which {FOLDER}/{name}.lock pins",
        )
    return name
