"""T(N) of Mamba-2 mixers, with the form and the stated constants of gated delta nets."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nearfree.core.modules.mamba2 import mamba2_work
from nearfree.core.setting import Setting
from nearfree.derive.reference.answer import TimedQuestions
from nearfree.derive.work_model.delta_net import DELTA_NET, FLOOR, MAMBA2, SHARE

from derive.questions import RESOLVER
from derive.work_model.forms import H100, MIXER, arrays, constants, facts_of, prepared


@given(constants(MAMBA2), st.integers(1, 64), st.integers(1, 256))
def test_time_is_a_floor_and_the_bytes_of_the_work(
    values: dict[str, float], n: int, batch: int
) -> None:
    """The bytes of the form equal the module's counted work, for arrays and for scalars."""
    (part,) = prepared({**MIXER, "platform": "h100", "batch": batch})
    features = {**part.features, **arrays([n], batch=batch)}
    (latency_us,) = MAMBA2.latency_us(features, values, "")[0]
    moved = mamba2_work(Setting(**MIXER, batch=batch), n, "").bytes_compulsory
    assert latency_us == pytest.approx(
        values[FLOOR] + moved / (values[SHARE] * H100["beta"]), rel=1e-6
    )


def test_its_answer_is_that_of_a_delta_net_of_its_sizes() -> None:
    """Modules of equal sizes have equal answers in regime R0, each under its own name."""
    facts = facts_of(*({**MIXER, "module": module, "platform": "h100"}
                       for module in ("mamba2", "delta_net")))  # fmt: skip
    curves = {
        curve.part.family.name: curve for curve in TimedQuestions(facts, RESOLVER, {}).curves()
    }
    own, other = curves["mamba2"], curves["delta_net"]
    assert (own.regime, own.in_sample, own.calibration) == (["R0"], [False], [[]])
    assert np.allclose(own.latency_us, other.latency_us)
    assert own.constants[0].startswith("mamba2 by constants of its form")
    assert own.band == other.band == [DELTA_NET.stated_band]
