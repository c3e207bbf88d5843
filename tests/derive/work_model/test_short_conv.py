"""T(N) of short convolutions: a floor and the bytes of their rows, with stated constants."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nearfree.core.modules.short_conv import short_conv_work
from nearfree.core.setting import Setting
from nearfree.derive.reference.answer import TimedQuestions
from nearfree.derive.work_model.delta_net import FLOOR, SHARE, SHORT_CONV

from derive.questions import RESOLVER
from derive.work_model.forms import CONVOLUTION, H100, arrays, constants, facts_of, prepared


@given(constants(SHORT_CONV), st.integers(1, 64), st.integers(1, 256))
def test_time_is_a_floor_and_the_bytes_of_the_work(
    values: dict[str, float], n: int, batch: int
) -> None:
    """The bytes of the form equal the module's counted work, for arrays and for scalars."""
    (part,) = prepared({**CONVOLUTION, "platform": "h100", "batch": batch})
    features = {**part.features, **arrays([n], batch=batch)}
    (latency_us,) = SHORT_CONV.latency_us(features, values, "")[0]
    moved = short_conv_work(Setting(**CONVOLUTION, batch=batch), n, "").bytes_compulsory
    assert latency_us == pytest.approx(
        values[FLOOR] + moved / (values[SHARE] * H100["beta"]), rel=1e-6
    )


def test_an_answer_says_that_its_constants_are_stated() -> None:
    """Without a calibration stated constants answer, in regime R0 with a band of their own."""
    (timed,) = TimedQuestions(facts_of({**CONVOLUTION, "platform": "h100"}), RESOLVER, {}).curves()
    assert (timed.regime, timed.in_sample, timed.calibration) == (["R0"], [False], [[]])
    assert timed.constants[0].startswith("short_conv by constants of its form")
    assert np.allclose(timed.band, 0.7)
