"""The one place where commands inside a job look for the configuration, and who may have it."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from slurm.conf import MARK
from slurm.daemons import SlurmError

LINK = Path("/etc/slurm/slurm.conf")
_LOCK = LINK.with_suffix(".lock")


@contextmanager
def only_one() -> Iterator[None]:
    """Wait until no other process of the tests has a cluster."""
    _LOCK.parent.mkdir(parents=True, exist_ok=True)
    with _LOCK.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def linked() -> Path | None:
    """Return the folder of the cluster that the link belongs to, None if there is no link.

    Raises
    ------
    SlurmError
        A configuration of somebody else's is there.
    """
    if not LINK.is_symlink() and not LINK.exists():
        return None
    ours = LINK.is_symlink() and (not LINK.exists() or LINK.read_text().startswith(MARK))
    if not ours:
        raise SlurmError(
            f"{LINK} is not of these tests, so it is left alone: run them where no SLURM is set up"
        )
    return LINK.readlink().parent


def make_link(conf: Path) -> None:
    """Point the link at a configuration."""
    remove_link()
    LINK.parent.mkdir(parents=True, exist_ok=True)
    LINK.symlink_to(conf)


def remove_link() -> None:
    """Take the link away, if it is of these tests."""
    if linked():
        LINK.unlink()
