"""Releases of backends that sources.yaml lists: those whose rules are on record."""

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
    """Return the backend release that a text names; without a version the newest of sources.yaml.

    Parameters
    ----------
    read
        Parser of the text, for any backend or only for those of one module.

    Raises
    ------
    ConfigError
        The package is unknown, does not run the module, or has no release on record.
    """
    requested = read(text)
    if requested.version is not None or _package(requested) is None:
        return requested
    versions = listed_versions(config, requested)
    if not versions:
        raise ConfigError(
            f"no release of {text} is listed in {config.folder}/sources.yaml",
            remedy=f"Name one: {text}==VERSION",
        )
    return backend(f"{text}=={versions[0]}")


def _package(release: BackendRelease) -> str | None:
    """Return the package of sources.yaml whose releases are a backend's, None without one."""
    ruled, record = ruled_release(release.name, release.version or "0"), BY_NAME[release.name]
    return ruled.package if ruled else record.package if record.engine else None


def listed_versions(config: Config, release: BackendRelease) -> list[str]:
    """Return the releases of a backend that sources.yaml lists, the newest first."""
    return versions_of(config, _package(release))


def versions_of(config: Config, package: str | None) -> list[str]:
    """Return the releases of a package that sources.yaml lists, the newest first."""
    listed = [name.split("==") for name in config.releases]
    versions = (version for name, version in listed if name == package)
    return sorted(versions, key=Version, reverse=True)
