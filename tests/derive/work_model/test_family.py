"""The power-mean sum: between the largest part and the plain sum."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nearfree.derive.work_model.families import FAMILIES
from nearfree.derive.work_model.family import power_mean_sum

PARTS = st.lists(st.floats(1e-6, 1e9), min_size=1, max_size=4)


@given(PARTS, st.floats(1.0, 8.0))
def test_between_the_largest_part_and_the_sum(parts: list[float], sharpness: float) -> None:
    """Whatever p is, nothing overlaps better than fully and worse than not at all."""
    found = power_mean_sum(sharpness, *(np.array([part]) for part in parts))[0]
    assert max(parts) * (1 - 1e-12) <= found <= sum(parts) * (1 + 1e-12)


@given(PARTS)
def test_a_plain_sum_at_p_1(parts: list[float]) -> None:
    """At p = 1 nothing overlaps."""
    found = power_mean_sum(1.0, *(np.array([part]) for part in parts))[0]
    assert found == pytest.approx(sum(parts))


@given(PARTS, st.floats(1.0, 7.0), st.floats(0.0, 1.0))
def test_falling_with_p(parts: list[float], sharpness: float, more: float) -> None:
    """The larger p, the more overlaps."""
    arrays = [np.array([part]) for part in parts]
    sharper = power_mean_sum(sharpness + more, *arrays)[0]
    assert sharper <= power_mean_sum(sharpness, *arrays)[0] * (1 + 1e-12)


def test_each_element_by_itself() -> None:
    """The largest part is that of each element, not of the array."""
    found = power_mean_sum(2.0, np.array([3.0, 4.0]), np.array([4.0, 3.0]))
    assert found == pytest.approx([5.0, 5.0])


@pytest.mark.parametrize("name", FAMILIES)
def test_a_calibration_starts_between_its_ends(name: str) -> None:
    """Each constant has a name of its own and starts strictly inside the range it is sought in."""
    constants = FAMILIES[name].constants
    assert all(each.low < each.start < each.high for each in constants)
    assert len({each.name for each in constants}) == len(constants)
