"""How many threads an engine may have."""

import os

import pytest
from nearfree.engines import threads
from nearfree.engines.threads import refuse_threads, usable_cpus
from nearfree.errors import EvidenceError


def test_cpus_are_those_that_this_process_may_run_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process's CPU affinity counts; where the system does not report it, all CPUs count."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 5}, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    assert usable_cpus() == 2
    monkeypatch.delattr(os, "sched_getaffinity")
    assert usable_cpus() == 64


def test_threads_that_never_run_at_once_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """More threads than CPUs are refused; as many as CPUs are accepted."""
    monkeypatch.setattr(threads, "usable_cpus", lambda: 2)
    refuse_threads((1, 2))
    with pytest.raises(EvidenceError, match="3 threads are more than the 2 CPUs") as caught:
        refuse_threads((1, 3))
    assert caught.value.remedy == "Choose up to 2 threads"
