"""The builds of engines that this project drives, as envs/engines.lock pins them.

A build is a release with its files: the libraries by SHA-256, and their ABI, read from that
release's own headers. `nearfree fetch --lock` writes the lock. An engine that is called through its
own Python binding has neither: its environment's lock pins it.
"""

from collections.abc import Mapping

import msgspec
from msgspec import Struct, field

from nearfree.backends.environments.lock import FOLDER, WORKFLOW_ENVIRONMENT, pins
from nearfree.backends.records import BY_NAME
from nearfree.core.names import Name
from nearfree.core.weights import Digest
from nearfree.errors import ConfigError, LockError
from nearfree.shipped import shipped

LOCK = FOLDER / "engines.lock"
"""The lock in a project's folder; without one, the package's copy is read."""


class Abi(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The binary interface: fields of structs and types of functions, by `sources.cpp.header`."""

    headers: dict[str, Digest]
    """The headers that it was read from, by path."""
    structs: dict[str, list[str]]
    """The fields of each struct, in order: the type's code, a blank and the name."""
    functions: dict[str, str]
    """The code of each function's result type and, in brackets, those of its parameters."""


class Build(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One release of an engine, ready to be fetched or installed."""

    package: str
    """The package that holds the libraries, as its index spells it."""
    sources: str
    """The package that holds the source code from which they were compiled."""
    libraries: dict[str, Digest] = {}
    """Libraries by path in the package; empty if installation compiles them."""
    environment: Name = WORKFLOW_ENVIRONMENT
    """The lock under envs/ whose interpreter runs it."""
    abi: Abi = field(default_factory=lambda: Abi(headers={}, structs={}, functions={}))
    """Empty if the engine's own Python binding makes the calls."""
    speculation: dict[str, int] = {}
    """Default draft lengths of the release's own programs, by type and option, from its source."""

    @property
    def prebuilt(self) -> bool:
        """Whether its libraries are fetched, not compiled on this machine."""
        return bool(self.libraries)


def locked() -> dict[str, dict[str, Build]]:
    """Return all pinned builds by engine and release; LockError if the lock cannot be read."""
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


def build_environments() -> set[Name]:
    """Return the locks of all builds; LockError if the lock cannot be read."""
    return {build.environment for releases in locked().values() for build in releases.values()}


def build_of(engine: str, release: str) -> Build:
    """Return the build of a release; ConfigError if the lock has none."""
    releases = builds(engine)
    if release not in releases:
        raise ConfigError(
            f"no build of {engine} {release} is pinned",
            remedy=f"Choose from {', '.join(releases) or 'none'}, which {LOCK} describes",
        )
    return releases[release]


def engine_environment(engine: str, release: str) -> Name:
    """Return the lock whose interpreter runs a release of an engine.

    A build names its lock. A serving engine without builds has the lock of its backend, which must
    pin this release of its package. If that lock is neither in the working folder nor shipped, the
    release is not checked.

    Raises
    ------
    ConfigError
        There is no build of the release, or the lock pins another release.
    """
    backend = BY_NAME[engine]
    if builds(engine) or "engine" not in backend.modules:
        return build_of(engine, release).environment
    name = backend.environment or WORKFLOW_ENVIRONMENT
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
