"""Threads of an engine: at most as many as this process may run at once."""

import os
from collections.abc import Iterable

from nearfree.errors import EvidenceError


def usable_cpus() -> int:
    """Return the number of CPUs that this process may run on; all if that is unknown."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def refuse_threads(counts: Iterable[int]) -> None:
    """Raise EvidenceError for more threads than CPUs: each operation waits for all threads."""
    threads, usable = max(counts), usable_cpus()
    if threads > usable:
        raise EvidenceError(
            f"{threads} threads are more than the {usable} CPUs that this process may run on, and "
            "would wait for each other",
            remedy=f"Choose up to {usable} threads",
        )
