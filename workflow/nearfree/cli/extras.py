"""The extra to install where a command needs a package that is not installed."""

import re
from importlib.metadata import PackageNotFoundError, requires

from nearfree.errors import HardwareError, NearfreeError

_IMPORTED_AS = {"pynvml": "nvidia-ml-py"}
"""Distributions by the package that they install, where the two names differ."""
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+).*extra == ['\"]([a-z]+)['\"]")


def extra_of(package: str) -> str | None:
    """Return the extra of this project that brings a package, by its import name."""
    name = _normal(_IMPORTED_AS.get(package, package))
    try:
        required = requires("nearfree") or []
    except PackageNotFoundError:  # run from its source, without an installation
        return None
    matches = [match for match in map(_REQUIREMENT.match, required) if match]
    extras = [match[2] for match in matches if _normal(match[1]).startswith(name)]
    return next((extra for extra in extras if extra != "dev"), None)


def missing(error: ModuleNotFoundError) -> NearfreeError:
    """Return an error that names the extra of a missing package; re-raise if no extra brings it."""
    package = (error.name or "").partition(".")[0]
    extra = extra_of(package) if package else None
    if extra is None:
        raise error
    return HardwareError(
        f"this command needs {package}, which is not installed",
        remedy=f"Install the extra that brings it: pip install 'nearfree[{extra}]'",
    )


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "_", name).lower()
