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
        about = distribution.metadata
        if "Name" in about and "Version" in about:
            found.setdefault(normalized(about["Name"]), about["Version"])
    return found


def environment_sha256() -> str:
    """Return the SHA-256 over the sorted `name==version` lines of all that is installed."""
    lines = (f"{name}=={version}\n" for name, version in installed().items())
    return hashlib.sha256("".join(sorted(lines)).encode()).hexdigest()
