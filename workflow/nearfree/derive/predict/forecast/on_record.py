"""Releases of backends that sources.yaml lists, whose rules are on record."""

from collections.abc import Callable

from packaging.version import Version

from nearfree.backends.names import BackendRelease, backend
from nearfree.backends.records import BY_NAME
from nearfree.config.files import Config
from nearfree.derive.granularity.releases import ruled_release
from nearfree.errors import ConfigError


def newest(
    config: Config, text: str, read: Callable[[str], BackendRelease] = backend
) -> BackendRelease:
    """Return the backend that a release names, or a package's newest release of sources.yaml.

    Parameters
    ----------
    read
        What reads a name: any backend, or one that runs what is wanted.

    Raises
    ------
    ConfigError
        The package is unknown, runs something else, or has no release on record.
    """
    requested = read(text)
    if requested.version is not None or _package(requested) is None:
        return requested
    known = versions_of(config, requested)
    if not known:
        raise ConfigError(
            f"no release of {text} is listed in {config.folder}/sources.yaml",
            remedy="Name one: package==version",
        )
    return backend(f"{text}=={known[0]}")


def _package(release: BackendRelease) -> str | None:
    """Return the package of sources.yaml by whose releases a backend goes, None for none."""
    ruled, record = ruled_release(release.name, release.version or "0"), BY_NAME[release.name]
    return ruled.package if ruled else record.package if record.engine else None


def versions_of(config: Config, release: BackendRelease) -> list[str]:
    """Return the releases of a backend that sources.yaml lists, the newest first."""
    package = _package(release)
    listed = [name.split("==") for name in config.releases]
    return sorted((v for each, v in listed if each == package), key=Version, reverse=True)


def listed_of(config: Config, engine: BackendRelease) -> list[BackendRelease]:
    """Return the releases of an engine that sources.yaml lists, the newest first."""
    return [BackendRelease(engine.name, each) for each in versions_of(config, engine)]
