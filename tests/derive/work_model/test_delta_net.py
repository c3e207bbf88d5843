"""T(N) of gated delta nets: bytes of states over a share of beta, with stated constants."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nearfree.core.modules.delta_net import delta_work
from nearfree.core.setting import Setting
from nearfree.derive.reference.answer import TimedQuestions
from nearfree.derive.work_model.delta_net import DELTA_NET, FLOOR, SHARE

from derive.questions import RESOLVER
from derive.work_model.forms import H100, STATES, arrays, constants, facts_of, prepared, start


def features(grid: list[int], batch: int = 1) -> dict[str, Any]:
    """Return features of the states of Qwen3.5 27B on an H100."""
    (part,) = prepared({**STATES, "platform": "h100", "batch": batch})
    return {**part.features, **arrays(grid, batch=batch)}


@given(constants(DELTA_NET), st.integers(1, 64), st.integers(1, 256))
def test_time_is_a_floor_and_the_bytes_of_the_work(
    values: dict[str, float], n: int, batch: int
) -> None:
    """The bytes of the form equal the module's counted work, for arrays and for scalars."""
    (latency_us,) = DELTA_NET.latency_us(features([n], batch), values, "")[0]
    moved = delta_work(Setting(**STATES, batch=batch), n, "").bytes_compulsory
    beta = values[SHARE] * H100["beta"]
    assert latency_us == pytest.approx(values[FLOOR] + moved / beta, rel=1e-6)


def test_many_requests_pay_for_each_position() -> None:
    """With one request a floor hides the states; with many, T(N) approaches (N + 1) / 2 T(1)."""
    few, many = (DELTA_NET.latency_us(features([1, 7], batch), start(DELTA_NET), "")[0]
                 for batch in (1, 1024))  # fmt: skip
    assert few[1] / few[0] < 2.2
    assert many[1] / many[0] == pytest.approx(4.0, rel=0.02)


@pytest.mark.parametrize(
    ("platform", "batch", "measured_us"),
    [("h100", 1, 6.9), ("h100", 32, 75.0), ("h100", 1024, 2217.8), ("b200", 1, 6.9),
     ("b200", 1024, 1024.1), ("l40s", 1024, 9773.3)],
)  # fmt: skip
def test_published_times_of_one_position_are_met(
    platform: str, batch: int, measured_us: float
) -> None:
    """With 48 heads T(1) is within a tenth of both kernels' sum (gdn_perf, SGLang and vLLM)."""
    (part,) = prepared({**STATES, "platform": platform, "batch": batch})
    predicted_us = DELTA_NET.latency_us(part.features, start(DELTA_NET), "")[0, 0]
    assert predicted_us == pytest.approx(measured_us, rel=0.1)


def test_an_answer_says_that_its_constants_are_stated() -> None:
    """Without a calibration stated constants answer, in regime R0 with a band of their own."""
    (timed,) = TimedQuestions(facts_of({**STATES, "platform": "h100"}), RESOLVER, {}).curves()
    assert timed.regime == ["R0"]
    assert timed.in_sample == [False]
    assert timed.calibration == [[]]
    assert np.allclose(timed.band, 0.3)
    assert "by constants of its form" in timed.constants[0]
