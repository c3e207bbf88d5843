"""Threads of an engine: as many as this process may run at once, and no more."""

import os
from collections.abc import Iterable

from nearfree.errors import EvidenceError


def usable_cpus() -> int:
    """Return on how many CPUs the system lets this process run; all where it does not tell."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def refuse_threads(asked: Iterable[int]) -> None:
    """Raise EvidenceError for more threads than run at once: each step of one waits for all."""
    most, usable = max(asked), usable_cpus()
    if most > usable:
        raise EvidenceError(
            f"{most} threads are more than the {usable} CPUs that this process may run on, and "
            "would wait for each other",
            remedy=f"Choose up to {usable} threads",
        )
