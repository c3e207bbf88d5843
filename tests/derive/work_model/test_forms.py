"""Properties of every form: T(N) is a time, and a slower platform is never faster."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nearfree.derive.work_model.families import FAMILIES
from nearfree.derive.work_model.family import Features

from derive.work_model.forms import constants, of_family

BASES = {name: of_family(name) for name in FAMILIES}
NAMES = st.sampled_from(list(FAMILIES))


@given(NAMES, st.data())
def test_t_is_a_time(name: str, data: st.DataObject) -> None:
    """For any constants that a calibration may find, T(N) is finite and positive."""
    family, features = FAMILIES[name], BASES[name].features
    values = data.draw(constants(family))
    for hypothesis in family.hypotheses:
        latency_us = family.latency_us(features, values, hypothesis)
        assert latency_us.shape == features["n"].shape
        assert np.isfinite(latency_us).all()
        assert (latency_us > 0).all()


FACTS = ("phi", "beta", "link", "network")


@given(NAMES, st.floats(0.2, 1.0), st.data())
def test_a_slower_platform_is_never_faster(name: str, factor: float, data: st.DataObject) -> None:
    """With less phi or beta, or slower links, no T(N) falls if the library's tile is fixed."""
    family, features = FAMILIES[name], dict(BASES[name].features)
    fact = data.draw(st.sampled_from([fact for fact in FACTS if fact in features]))
    if name == "gemm":  # a library's tile follows rho; here rho s / 2 stays above 128
        features["phi"] = features["phi"] * 10.0
    values = data.draw(constants(family))
    slower = features | {fact: features[fact] * factor}
    for hypothesis in family.hypotheses:
        before, after = (family.latency_us(f, values, hypothesis) for f in (features, slower))
        assert (after >= before * (1 - 1e-12)).all()


@pytest.mark.parametrize("name", FAMILIES)
def test_more_sequences_are_never_faster(name: str) -> None:
    """Twice the batch at the same N takes at least as long if blocks and tiles are fixed."""
    family = FAMILIES[name]
    values = {constant.name: constant.start for constant in family.constants}
    more = _twice(BASES[name].features)
    for hypothesis in family.hypotheses:
        once = family.latency_us(BASES[name].features, values, hypothesis)
        assert (family.latency_us(more, values, hypothesis) >= once).all()


def _twice(features: Features) -> dict[str, Any]:
    names = ("tokens", "rows", "batch", "payload", "sent", "switched", "between")
    return {name: 2 * item if name in names else item for name, item in features.items()}
