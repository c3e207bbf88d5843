"""Locks and the environments installed from them: pins, distributions, differences, folders."""

import hashlib
import re
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import json

from nearfree.errors import ConfigError, LockError

if TYPE_CHECKING:
    from importlib import metadata

FOLDER = Path("envs")
WORKFLOW_ENVIRONMENT = "cpu"
"""The workflow's own environment, which also measures on CPUs."""
_NAME = re.compile(r"[a-z0-9][a-z0-9_]{0,63}")
_PIN = re.compile(r"^([A-Za-z0-9][\w.-]*)(?:\[.*?\])? *== *([^\s;\\]+)(?!.*;)", re.MULTILINE)
_SHOWN = 3


def normalized(name: str) -> str:
    """Return a distribution's name in the normal form in which indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def installed() -> dict[str, str]:
    """Return the version of each installed distribution; of duplicates, the one imported."""
    from importlib import metadata

    versions: dict[str, str] = {}
    for distribution in metadata.distributions():
        fields = _metadata(distribution)
        if fields is not None and "Name" in fields and "Version" in fields:
            versions.setdefault(normalized(fields["Name"]), fields["Version"])
    return versions


def _metadata(distribution: "metadata.Distribution") -> "metadata.PackageMetadata | None":
    """Return the metadata of a distribution, None if its folder holds none.

    The standard library then returns an empty message. Once imported by any package, the backport
    `importlib_metadata` replaces it: it returns None or raises, depending on its version.
    """
    try:
        return distribution.metadata
    except FileNotFoundError:
        return None


def environment_sha256() -> str:
    """Return the SHA-256 over the sorted `name==version` lines of all installed distributions."""
    lines = (f"{name}=={version}\n" for name, version in installed().items())
    return hashlib.sha256("".join(sorted(lines)).encode()).hexdigest()


def lock_path(name: str) -> Path:
    """Return the lock of an environment in the project's folder; ConfigError if it has none."""
    path = FOLDER / f"{name}.lock"
    if not _NAME.fullmatch(name) or not path.is_file():
        inside = FOLDER.is_dir()
        raise ConfigError(
            f"there is no environment {name!r}: {path} does not exist",
            remedy=f"Choose one that has a lock under {FOLDER}/"
            if inside
            else f"Run it in a clone of nearfree: environments are made there, by {FOLDER}/",
        )
    return path


def pins(path: Path) -> dict[str, str]:
    """Return the versions that a lock pins for all machines; lines with a marker are skipped."""
    text = path.read_text("utf-8", "replace")
    versions = {normalized(name): pin for name, pin in _PIN.findall(text)}
    if not versions:
        raise ConfigError(f"{path} pins nothing", remedy="Write it anew with `make lock`")
    return versions


def differences(path: Path) -> list[str]:
    """Return the distributions installed in another version than a lock pins, then missing ones.

    A local label is ignored: torch 2.13.0+cpu is 2.13.0.
    """
    versions = installed()
    mismatches = [
        (name, pin)
        for name, pin in pins(path).items()
        if pin not in (versions.get(name), versions.get(name, "").partition("+")[0])
    ]
    return [
        f"{name} {versions.get(name, 'is missing')}, the lock names {pin}"
        for name, pin in sorted(mismatches, key=lambda pin: pin[0] not in versions)
    ]


def require(name: str) -> None:
    """Raise LockError unless this interpreter has the versions that an environment's lock pins."""
    path = lock_path(name)
    mismatches = differences(path)
    if mismatches:
        more = f"; and {len(mismatches) - _SHOWN} more" if len(mismatches) > _SHOWN else ""
        command = (
            "make install" if name == WORKFLOW_ENVIRONMENT else f"nearfree environment make {name}"
        )
        raise LockError(
            f"this interpreter is not what {path} names: {'; '.join(mismatches[:_SHOWN])}{more}",
            remedy=f"Run `{command}`, or name an interpreter that was made from this lock under "
            "`python:` in config/config.yaml",
        )


ENVIRONMENTS = Path(".environments")


class Environment:
    """An environment by the name of its lock, in the project's folder.

    The folder's name contains a digest of the lock, so that a changed lock makes a new environment.
    The workflow's own environment has two locks: what the workflow needs, and what measuring needs.

    Raises
    ------
    ConfigError
        There is no such lock.
    """

    def __init__(self, name: str) -> None:
        own = (FOLDER / "base.lock",) if name == WORKFLOW_ENVIRONMENT else ()
        self.name = name
        self.locks = (*own, lock_path(name))
        self.sha256 = hashlib.sha256(b"".join(lock.read_bytes() for lock in self.locks)).hexdigest()
        self.folder = ENVIRONMENTS / f"{name}-{self.sha256[:8]}"

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.folder / "bin" / "python"

    @property
    def receipt(self) -> Path:
        """The output of the workflow's rule. Snakemake may delete it; the mark below stays."""
        return self.folder / "receipt"

    @property
    def mark(self) -> Path:
        """The file that the installation writes last."""
        return self.folder / "complete.json"

    @cached_property
    def mark_content(self) -> bytes:
        """The mark's content: the locks' digest, and the folder, since a venv cannot be moved."""
        return json.encode({"lock_sha256": self.sha256, "project": str(Path.cwd())})

    @property
    def complete(self) -> bool:
        """Whether it was installed completely, from these locks and in this folder."""
        return self.mark.is_file() and self.mark.read_bytes() == self.mark_content
