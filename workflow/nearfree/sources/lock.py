"""The lock: what each rule of each known release means, as digests.

A release that is not in the lock is read all the same and compared with its neighbours: it has
the same rules, or a new one.
"""

import json
from pathlib import Path

import msgspec
from msgspec import Struct

from nearfree.errors import ConfigError

Meanings = dict[str, str]
"""Digest of what a rule answers, by the rule's name."""


class Lock(Struct, frozen=True, forbid_unknown_fields=True):
    """Known releases: their rules' digests, or why a release is refused, by package and version."""

    rules: dict[str, dict[str, Meanings]] = {}
    refused: dict[str, dict[str, str]] = {}

    def versions(self, package: str) -> list[str]:
        """Return a package's known releases, oldest first."""
        from packaging.version import Version

        known = [*self.rules.get(package, {}), *self.refused.get(package, {})]
        return sorted(known, key=Version)


def read_lock(path: Path) -> Lock:
    """Return the lock; an empty one if there is no file.

    Raises
    ------
    ConfigError
        The file is no lock.
    """
    if not path.exists():
        return Lock()
    try:
        return msgspec.json.decode(path.read_bytes(), type=Lock)
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{path} is no lock: {error}", remedy="Restore it") from error


def write_lock(path: Path, lock: Lock) -> None:
    """Write the lock: sorted, one line a release, so that a change reads as what it is."""
    lines = []
    for part in ("rules", "refused"):
        packages = []
        for package, versions in sorted(getattr(lock, part).items()):
            entries = [
                f"      {json.dumps(version)}: {json.dumps(versions[version], sort_keys=True)}"
                for version in lock.versions(package)
                if version in versions
            ]
            packages.append(f"    {json.dumps(package)}: {{\n" + ",\n".join(entries) + "\n    }")
        lines.append(f"  {json.dumps(part)}: {{\n" + ",\n".join(packages) + "\n  }")
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
