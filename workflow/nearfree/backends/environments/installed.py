"""What is installed beside this interpreter, asked of itself: whoever installed it, and however."""

import hashlib
import re
from importlib import metadata


def normalized(name: str) -> str:
    """Return a distribution's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def installed() -> dict[str, str]:
    """Return the version of each installed distribution, of doubles the one that is imported."""
    found: dict[str, str] = {}
    for distribution in metadata.distributions():
        about = _metadata(distribution)
        if about is not None and "Name" in about and "Version" in about:
            found.setdefault(normalized(about["Name"]), about["Version"])
    return found


def _metadata(distribution: metadata.Distribution) -> metadata.PackageMetadata | None:
    """Return the metadata of a distribution, None if its folder holds none.

    The standard library returns an empty message then. The backport `importlib_metadata` answers
    in its place once anything has imported it: it returns None or raises, by its version.
    """
    try:
        return distribution.metadata
    except FileNotFoundError:
        return None


def environment_sha256() -> str:
    """Return the SHA-256 over the sorted `name==version` lines of all that is installed."""
    lines = (f"{name}=={version}\n" for name, version in installed().items())
    return hashlib.sha256("".join(sorted(lines)).encode()).hexdigest()
