"""Which adapters have run: what the log shows, and what is refused without it."""

from typing import Any

import pytest
from conftest import make_latency, make_plan, write_take
from nearfree.backends.adapters.kernel import ADAPTERS
from nearfree.core.plan import MeasurePlan
from nearfree.errors import EvidenceError
from nearfree.log.names import Layout
from nearfree.log.take import OpenTake
from nearfree.measure.adapter_runs import adapter_runs, refuse_never_run, untested_adapters

PLAN = make_plan(backend="torch")
MODEL: dict[str, Any] = {"module": "model", "backend": "flash_attn", "model": "small"}


def on_gpu(take: OpenTake) -> float:
    """Write what a GPU would."""
    assert isinstance(take.plan, MeasurePlan)
    (sweep,) = take.plan.sweeps
    for number in range(3):
        for n in sweep.positions:
            take.append(make_latency(number, n, setting=sweep.setting, timer="cuda_events"))
    return 0.1


def test_a_sealed_run_proves_an_adapter(layout: Layout) -> None:
    """An adapter has run on a GPU once the log holds a sealed take of it there."""
    write_take(layout, plan=PLAN)
    assert adapter_runs(layout) == {("dense_ffn", "torch", "cpu")}
    with pytest.raises(EvidenceError, match="dense_ffn on torch has never run on a GPU") as caught:
        refuse_never_run(layout, PLAN, "cuda")
    assert "--untested" in caught.value.remedy
    write_take(layout, scope="h200", plan=PLAN, work=on_gpu)
    assert ("dense_ffn", "torch", "cuda") in adapter_runs(layout)
    refuse_never_run(layout, PLAN, "cuda")


def test_a_model_proves_what_runs_its_experts(layout: Layout) -> None:
    """A sealed take of a model is one of its attention in a model, and of its experts."""
    write_take(layout, scope="h200", plan=make_plan(**MODEL, moe="vllm"), work=on_gpu)
    assert adapter_runs(layout) == {("model", "flash_attn", "cuda"), ("moe_ffn", "vllm", "cuda")}
    refuse_never_run(layout, make_plan(**MODEL, moe="vllm"), "cuda")
    refuse_never_run(layout, make_plan(**MODEL), "cuda")


def test_a_model_needs_proof_of_what_runs_its_experts(layout: Layout) -> None:
    """A run of its attention backend is not enough; the experts' backend needs a run, too."""
    write_take(layout, scope="h200", plan=make_plan(**MODEL), work=on_gpu)
    assert adapter_runs(layout) == {("model", "flash_attn", "cuda")}
    vllm_plan = make_plan(**MODEL, moe="vllm")
    with pytest.raises(EvidenceError, match="moe_ffn on vllm has never run on a GPU"):
        refuse_never_run(layout, vllm_plan, "cuda")
    experts = {"module": "moe_ffn", "experts": 8, "top_k": 2, "routing": "balanced"}
    plan = make_plan(**experts, backend="vllm")
    write_take(layout, scope="h200", stream="moe", plan=plan, work=on_gpu)
    refuse_never_run(layout, vllm_plan, "cuda")


def test_a_cpu_needs_no_proof(layout: Layout) -> None:
    """What runs on a CPU is run by every test run, so nothing is refused there."""
    refuse_never_run(layout, PLAN, "cpu")


def test_what_never_ran_is_listed() -> None:
    """Each adapter is listed with each kind of device that it has not run on."""
    every = sum(len(adapter.devices) for adapter in ADAPTERS)
    assert len(untested_adapters(set())) == every
    left = untested_adapters({("dense_ffn", "torch", "cpu")})
    assert len(left) == every - 1
    assert ("torch", "cuda") in {(a.backend, d) for a, d in left if a.module == "dense_ffn"}
