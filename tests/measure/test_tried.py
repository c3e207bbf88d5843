"""Which adapters have run: what the log shows, and what is refused without it."""

import pytest
from conftest import make_latency, make_plan, make_setting, write_take
from nearfree.errors import EvidenceError
from nearfree.events.names import Layout
from nearfree.events.take import OpenTake
from nearfree.kernels import ADAPTERS
from nearfree.measure.tried import never_run, refuse_untried, tried

PLAN = make_plan(backend="torch")


def on_gpu(take: OpenTake) -> float:
    """Write what a GPU would."""
    for number in range(3):
        for n in (1, 2, 4):
            take.append(
                make_latency(number, n, setting=make_setting(backend="torch"), timer="cuda_events")
            )
    return 0.1


def test_a_sealed_run_proves_an_adapter(layout: Layout) -> None:
    """An adapter has run on a GPU once the log holds a sealed take of it there."""
    write_take(layout, plan=PLAN)
    assert tried(layout) == {("dense_ffn", "torch", "cpu")}
    with pytest.raises(EvidenceError, match="dense_ffn on torch has never run on a GPU") as caught:
        refuse_untried(layout, PLAN, "cuda")
    assert "--untested" in caught.value.remedy
    write_take(layout, scope="h200", plan=PLAN, work=on_gpu)
    assert ("dense_ffn", "torch", "cuda") in tried(layout)
    refuse_untried(layout, PLAN, "cuda")


def test_a_cpu_needs_no_proof(layout: Layout) -> None:
    """What runs on a CPU is run by every test run, so nothing is refused there."""
    refuse_untried(layout, PLAN, "cpu")


def test_what_never_ran_is_listed() -> None:
    """Each adapter is listed with each kind of device that it has not run on."""
    every = sum(len(adapter.devices) for adapter in ADAPTERS)
    assert len(never_run(set())) == every
    left = never_run({("dense_ffn", "torch", "cpu")})
    assert len(left) == every - 1
    assert ("torch", "cuda") in {(a.backend, d) for a, d in left if a.module == "dense_ffn"}
