"""One environment of a project: what it is installed from, and where it then lies."""

import hashlib
from functools import cached_property
from pathlib import Path

from msgspec import json

from nearfree.backends.environments.lock import FOLDER, OWN, lock_path

MADE = Path(".environments")


class Environment:
    """An environment by the name of its lock, in the project's folder.

    Its folder carries a digest of the lock, so that another lock is another environment. The
    workflow's own is installed from two: what the workflow needs, and what measuring needs.

    Raises
    ------
    ConfigError
        There is no such lock.
    """

    def __init__(self, name: str) -> None:
        own = (FOLDER / "base.lock",) if name == OWN else ()
        self.name = name
        self.locks = (*own, lock_path(name))
        self.sha256 = hashlib.sha256(b"".join(lock.read_bytes() for lock in self.locks)).hexdigest()
        self.folder = MADE / f"{name}-{self.sha256[:8]}"

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.folder / "bin" / "python"

    @property
    def receipt(self) -> Path:
        """What the workflow's rule leaves. Snakemake may delete it; the mark below stays."""
        return self.folder / "receipt"

    @property
    def mark(self) -> Path:
        """The file that is written last."""
        return self.folder / "complete.json"

    @cached_property
    def said(self) -> bytes:
        """What the mark holds: the locks' digest, and the folder, for it cannot be moved."""
        return json.encode({"lock_sha256": self.sha256, "project": str(Path.cwd())})

    @property
    def complete(self) -> bool:
        """Whether it was made to the end, from these locks and in this folder."""
        return self.mark.is_file() and self.mark.read_bytes() == self.said
