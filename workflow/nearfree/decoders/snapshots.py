"""Snapshots: folders of Hugging Face's local cache whose paths name the commit that they hold."""

import re
from pathlib import Path
from typing import NamedTuple

_WORD = r"[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?"
REPOSITORY = re.compile(rf"(?=.{{3,96}}\Z)(?!.*(?:--|\.\.|\.git\Z)){_WORD}/{_WORD}", re.ASCII)
"""ORG/NAME as the hub allows it. Source: huggingface_hub 2.4.0, utils/_validators.py."""
COMMIT = re.compile(r"[0-9a-f]{40}")
_SHORT = 7


class Snapshot(NamedTuple):
    """A repository, ORG/NAME, at a commit of 40 hex digits."""

    repository: str
    commit: str

    def __str__(self) -> str:
        return f"{self.repository}@{self.commit[:_SHORT]}"


def snapshot_of(file: Path) -> Snapshot | None:
    """Return the snapshot whose folder holds a file, None if the file is elsewhere.

    Such a folder is `models--ORG--NAME/snapshots/COMMIT`.
    """
    try:
        models, snapshots, commit = file.parent.resolve().parts[-3:]
    except (OSError, ValueError):  # reading the file will raise the error with its reason
        return None
    repository = models.removeprefix("models--").replace("--", "/")
    is_snapshot = snapshots == "snapshots" and models.startswith("models--")
    if is_snapshot and COMMIT.fullmatch(commit) and REPOSITORY.fullmatch(repository):
        return Snapshot(repository, commit)
    return None
