"""Questions from settings: their baseline and their grid of N."""

from itertools import pairwise

import polars as pl
from hypothesis import given
from hypothesis import strategies as st
from nearfree.core.modules.routing import routing_baseline
from nearfree.core.setting import Setting
from nearfree.derive.granularity.query_frame import (
    ASKED_SCHEMA,
    Question,
    asked_frame,
    sparse_positions,
)


@given(st.integers(1, 100_000))
def test_positions_rise_and_are_never_far_apart(most: int) -> None:
    """Every N up to 32 is there, every power of two, and steps are an eighth of an octave."""
    positions = sparse_positions(most)
    assert positions == sorted(set(positions))
    assert positions[: min(most, 32)] == list(range(1, min(most, 32) + 1))
    assert positions[-1] <= most
    assert {2**k for k in range(17) if 2**k <= most} <= set(positions)
    assert all(b <= 1.125 * a for a, b in pairwise(positions[31:]))


@given(st.integers(1, 64), st.integers(1, 512), st.integers(1, 64))
def test_from_the_baseline_on_every_expert_is_active(batch: int, experts: int, top_k: int) -> None:
    """Balanced routing has E / (b k) as its baseline, rounded up; other routings have 1."""
    first = routing_baseline("balanced", experts, top_k, batch)
    assert first * batch * top_k >= experts > (first - 1) * batch * top_k
    assert routing_baseline("skewed", experts, top_k, batch) == 1
    assert routing_baseline(None, None, None, batch) == 1


def test_a_question_is_asked_from_its_baseline_on() -> None:
    """The grid begins at the baseline, also where that is beyond the largest N."""
    setting = Setting(module="moe_ffn", backend="vllm", dtype="bfloat16", d_model=8, d_ff=8,
                      experts=256, top_k=4, routing="balanced")  # fmt: skip
    rows = asked_frame([Question(platform="h20", setting=setting, version="0.9.1")] * 2, most=72)
    assert dict(rows.schema) == ASKED_SCHEMA
    assert rows["asked"].to_list() == [0, 1]
    assert rows["grid"].to_list() == [[64, 72]] * 2
    small = asked_frame([Question(platform="h20", setting=setting)], most=2)
    assert small.select("grid", pl.col("backend_version")).rows() == [([64], None)]
