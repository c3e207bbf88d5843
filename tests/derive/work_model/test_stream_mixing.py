"""T(N) of mixed residual streams: two calls or their bytes, with stated constants."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nearfree.core.modules.stream_mixing import mixing_work
from nearfree.core.setting import Setting
from nearfree.derive.reference.answer import TimedQuestions
from nearfree.derive.work_model.stream_mixing import STREAM_MIXING

from derive.questions import RESOLVER
from derive.work_model.forms import H100, MIXED_STREAMS, constants, facts_of, prepared, start


def times(grid: list[int], values: dict[str, float], **changes: Any) -> list[float]:
    """Return T(N) of one place of a layer, in microseconds."""
    (part,) = prepared({**MIXED_STREAMS, "platform": "h100", **changes})
    n = np.array([grid], dtype=np.float64)
    given = {**part.features, "n": n, "tokens": n * changes.get("batch", 1)}
    latency_us: list[float] = STREAM_MIXING.latency_us(given, values, "")[0].tolist()
    return latency_us


@given(constants(STREAM_MIXING), st.integers(1, 64), st.integers(1, 256))
def test_time_is_between_its_larger_part_and_their_sum(
    values: dict[str, float], n: int, batch: int
) -> None:
    """T is between the larger of calls and counted bytes, and the sum of both."""
    (latency_us,) = times([n], values, batch=batch)
    moved = mixing_work(Setting(**MIXED_STREAMS, batch=batch), n, "").bytes_compulsory
    memory = moved / (values["bandwidth_share"] * H100["beta"])
    assert max(values["call_us"], memory) * (1 - 1e-6) <= latency_us
    assert latency_us <= (values["call_us"] + memory) * (1 + 1e-6)


@pytest.mark.parametrize(
    ("platform", "d_model", "tokens", "measured_us"),
    [("b200", 7168, 1, 16.0), ("b200", 7168, 64, 17.8), ("b200", 7168, 1024, 56.6),
     ("h200", 7168, 1, 14.4), ("h200", 4096, 1024, 45.3), ("gb300", 4096, 8, 13.8)],
)  # fmt: skip
def test_published_times_are_met(
    platform: str, d_model: int, tokens: int, measured_us: float
) -> None:
    """T of vLLM's calls at a place is within a quarter of the published time (mhc_module_perf)."""
    (latency_us,) = times([tokens], start(STREAM_MIXING), platform=platform, d_model=d_model)
    assert latency_us == pytest.approx(measured_us, rel=0.25)


def test_an_answer_says_that_its_constants_are_stated() -> None:
    """Without a calibration stated constants answer, in regime R0 with a band of their own."""
    facts = facts_of({**MIXED_STREAMS, "platform": "h100"})
    (timed,) = TimedQuestions(facts, RESOLVER, {}).curves()
    assert timed.regime == ["R0"]
    assert timed.in_sample == [False]
    assert np.allclose(timed.band, 0.25)
