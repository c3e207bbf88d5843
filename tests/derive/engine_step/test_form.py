"""A step's time besides its modules: its growth, and what overlaps."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nearfree.backends.names import BackendRelease
from nearfree.decoders.ranks.engines import ENGINES, SGLANG, VLLM
from nearfree.derive.engine_step.form import (
    CONSTANTS,
    LAYER_KERNELS,
    StepConstants,
    between_us,
    hidden_us,
    host_us,
)

SOME = StepConstants(layer_us=10.0, step_us=300.0, request_us=2.0, sum_wait_us=4.0)
TOKENS = np.array([1.0, 8.0, 256.0, 257.0])


def test_kernels_between_move_the_rows_of_every_layer() -> None:
    """At 1000 GB/s a layer of width 1000 moves 5 x 4 x 1000 bytes a row: 0.02 us."""
    time_us = between_us(SOME, layers=3, sums=0, d_model=1000, tokens=TOKENS, bandwidth_gb_s=1000.0)
    assert LAYER_KERNELS == 5
    assert time_us == pytest.approx(3 * (10.0 + 0.02 * TOKENS))


def test_ranks_wait_at_every_sum() -> None:
    """Each all-reduce of a forward adds the same, however many rows."""
    facts = {"layers": 3, "d_model": 1000, "tokens": TOKENS, "bandwidth_gb_s": 1000.0}
    without, with_seven = (between_us(SOME, sums=sums, **facts) for sums in (0, 7))  # type: ignore[arg-type]
    assert with_seven - without == pytest.approx(28.0)
    assert SOME.fixed_us(layers=3, sums=7) == 58.0


def test_the_host_counts_requests_and_not_positions() -> None:
    """A step of b requests takes step_us + b request_us."""
    assert host_us(SOME, batch=64) == 300.0 + 128.0


@pytest.mark.parametrize("engine", ENGINES.values(), ids=lambda family: family.name)
def test_shared_experts_hide_behind_the_others(engine: object) -> None:
    """Where shared experts run beside routed ones, the longer of both counts."""
    shared, routed = np.array([5.0, 5.0, 5.0, 5.0]), np.array([3.0, 9.0, 9.0, 9.0])
    release = BackendRelease(engine.name, None)  # type: ignore[attr-defined]
    hidden = hidden_us(engine, release, TOKENS, shared, routed)  # type: ignore[arg-type]
    assert hidden[:3].tolist() == [3.0, 5.0, 5.0]


def test_vllm_s_threshold_and_first_release() -> None:
    """VLLM runs them beside up to 256 tokens, from 0.14.0 on; SGLang at any number."""
    shared = routed = np.full(4, 5.0)
    now = hidden_us(VLLM, BackendRelease("vllm", "0.20.2"), TOKENS, shared, routed)
    before = hidden_us(VLLM, BackendRelease("vllm", "0.9.1"), TOKENS, shared, routed)
    other = hidden_us(SGLANG, BackendRelease("sglang", "0.5.9"), TOKENS, shared, routed)
    assert now.tolist() == [5.0, 5.0, 5.0, 0.0]
    assert before.tolist() == [0.0] * 4
    assert other.tolist() == [5.0] * 4


@given(st.tuples(*(st.floats(constant.low, constant.high) for constant in CONSTANTS)))
def test_more_rows_never_take_less(values: tuple[float, ...]) -> None:
    """For any constants, the time between modules does not fall with the rows."""
    constants = StepConstants(**dict(zip((e.name for e in CONSTANTS), values, strict=True)))
    time_us = between_us(
        constants, layers=2, sums=4, d_model=64, tokens=TOKENS, bandwidth_gb_s=100.0
    )
    assert (np.diff(time_us) > 0).all()
