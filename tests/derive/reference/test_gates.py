"""Experts with and without a gate: which curves answer, and how many matrices are counted."""

from typing import Any

import pytest
from nearfree.derive.reference.regimes import GroupTimes, Reference

from derive.reference.made import LAYER, reference
from derive.work_model.forms import prepared

CUTLASS = "vllm_unquantizedfusedmoe_flashinfer_cutlass_flashinferexperts"
NANO = {
    **LAYER, "backend": "vllm", "kernel": CUTLASS, "backend_version": "0.24.0", "d_model": 2688,
    "experts": 128, "top_k": 6,
}  # fmt: skip
"""Experts of Nemotron 3 Nano, as a table has them: it does not say that they have no gate."""
WIDTHS = (232, 464, 928, 1856)
QWEN = {**NANO, "d_model": 2048, "top_k": 8}
"""Experts of the same kernel in other numbers: as all models' but Nemotron-H's, gated."""
KNOWN = reference(*({**model, "d_ff": width} for model in (NANO, QWEN) for width in WIDTHS))


def times_of(known: Reference, **question: Any) -> GroupTimes:
    """Return the times of a question."""
    (part,) = prepared(question)
    ((_, times),) = known.times(part)
    return times


@pytest.mark.parametrize("d_ff", [928, 700], ids=["a shape with curves", "a new shape"])
def test_curves_without_a_gate_answer_for_experts_without_one(d_ff: int) -> None:
    """Curves of experts without a gate are counted with two matrices, as the question is."""
    question = {**NANO, "d_ff": d_ff}
    plain, ungated = (times_of(KNOWN, **question, gated=gated_) for gated_ in (False, None))
    assert plain.regime == ungated.regime == ["R3" if d_ff in WIDTHS else "R2"]
    assert plain.latency_us == pytest.approx(ungated.latency_us)


@pytest.mark.parametrize(
    ("changes", "whose"),
    [
        ({"d_model": 2048, "top_k": 8}, "another model's"),
        ({"backend_version": "0.22.0"}, "an earlier release's, in which all have a gate"),
        ({"platform": "b200"}, "constants alone"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_other_curves_are_of_experts_with_a_gate(changes: dict[str, Any], whose: str) -> None:
    """Other curves have a gate: experts without one have two of three matrices, so take less."""
    question = {**NANO, "d_ff": 928, **changes}
    before = changes.get("backend_version")
    known = reference(*({**question, "d_ff": width} for width in WIDTHS)) if before else KNOWN
    plain, gated = (times_of(known, **question, gated=gated_) for gated_ in (False, True))
    assert (plain.latency_us < 0.95 * gated.latency_us).all(), whose


PLAIN = {**LAYER, "kernel": "moe_torch_flow_nongated", "gated": False, "backend_version": "2.0"}
BOTH = reference(*(
    {**question, "d_ff": width}
    for question in ({**LAYER, "kernel": "moe_torch_flow_cutlass"}, PLAIN) for width in WIDTHS
))  # fmt: skip


@pytest.mark.parametrize(
    ("gated", "kernel"),
    [
        (True, "moe_torch_flow_cutlass"),
        (None, "moe_torch_flow_cutlass"),
        (False, "moe_torch_flow_nongated"),
    ],
)
def test_a_kernel_without_a_gate_speaks_of_such_experts_alone(
    *, gated: bool | None, kernel: str
) -> None:
    """Without a name, the kernel is one for experts with the asked gate, not the newest one."""
    question = {**LAYER, "d_ff": 928, "kernel": None, "backend_version": "2.0"}
    times = times_of(BOTH, **question, gated=gated)
    assert (times.regime, times.kernels) == (["R3"], (kernel,))


def test_a_kernel_that_is_named_is_meant_as_experts_are() -> None:
    """The CUTLASS kernel of TensorRT-LLM has another name in tables of experts without a gate."""
    question = {**LAYER, "d_ff": 928, "kernel": "moe_torch_flow_cutlass"}
    names = [times_of(BOTH, **question, gated=gated_).kernels for gated_ in (True, False)]
    assert names == [("moe_torch_flow_cutlass",), ("moe_torch_flow_nongated",)]


def test_the_only_kernel_speaks_of_all() -> None:
    """A kernel that is named, or that is the only one, is used whether or not it has a gate."""
    named = times_of(BOTH, **{**PLAIN, "d_ff": 928, "gated": None})
    assert named.kernels == ("moe_torch_flow_nongated",)
    alone = reference(*({**PLAIN, "d_ff": width} for width in WIDTHS))
    times = times_of(alone, **{**LAYER, "kernel": None, "gated": None})
    assert times.kernels == ("moe_torch_flow_nongated",)
