"""Draft lengths by batch size, and their ranges."""

import math
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nearfree.derive.schedule.draft_lengths import (
    LARGEST_BATCH,
    LONGEST_DRAFT,
    draft_lengths,
    ranges,
)
from nearfree.errors import ConfigError

from derive.schedule.engine import MOST_BATCH, SCHEDULES, between

BOUNDARIES = st.dictionaries(
    st.integers(1, LARGEST_BATCH), st.floats(min_value=1e-9, allow_infinity=True), max_size=8
)


def test_a_boundary_leaves_one_position_for_the_token_itself() -> None:
    """K is N_max - 1, at most the longest draft; below two positions K is 0."""
    boundaries = {1: 8, 2: 8.9, 4: 1, 8: 0.3, 16: math.inf, 32: 10**40}
    assert draft_lengths(boundaries, most=16) == {1: 7, 2: 7, 4: 0, 8: 0, 16: 16, 32: 16}


@given(BOUNDARIES, st.integers(1, LONGEST_DRAFT))
def test_lengths_stay_in_bounds(boundaries: dict[int, float], most: int) -> None:
    """K + 1 positions are within the boundary unless K is 0; K + 2 only if K is the longest."""
    lengths = draft_lengths(boundaries, most=most)
    assert list(lengths) == sorted(boundaries)
    for batch, k in lengths.items():
        assert 0 <= k <= most
        assert k == 0 or k + 1 <= boundaries[batch]
        assert k == most or k + 2 > boundaries[batch]


@given(SCHEDULES)
def test_ranges_give_back_each_length(k_by_batch: dict[int, int]) -> None:
    """At a known batch size the range has its K, between two the smaller."""
    length_ranges = ranges(k_by_batch)
    for batch in range(1, max(k_by_batch) + 1):
        [k] = [
            length_range.k
            for length_range in length_ranges
            if length_range.first <= batch <= length_range.last
        ]
        assert k == between(k_by_batch, batch)


@given(SCHEDULES)
def test_ranges_are_contiguous(k_by_batch: dict[int, int]) -> None:
    """Ranges cover 1 to the largest batch size; neighbours differ."""
    length_ranges = ranges(k_by_batch)
    assert length_ranges[0].first == 1
    assert length_ranges[-1].last == max(k_by_batch) <= MOST_BATCH
    for before, after in pairwise(length_ranges):
        assert after.first == before.last + 1
        assert after.k != before.k


def test_a_rise_is_kept() -> None:
    """If latency rises in steps, K may increase with the batch size."""
    assert ranges({1: 3, 2: 1, 3: 4}) == ((1, 1, 3), (2, 2, 1), (3, 3, 4))


def test_far_batches_cost_no_time() -> None:
    """The largest batch size does not change the length of the list."""
    assert ranges({1: 2, LARGEST_BATCH: 1}) == ((1, 1, 2), (2, LARGEST_BATCH, 1))


@pytest.mark.parametrize(
    ("k_by_batch", "says"),
    [
        ({}, "no batch size 1"),
        ({2: 3}, "no batch size 1"),
        ({1: 0, 2: 0}, "above 0"),
        ({1: -1}, "draft length of batch 1 is -1"),
        ({1: True}, "draft length of batch 1 is True"),
        ({1: 2.0}, "draft length of batch 1 is 2.0"),
        ({1: LONGEST_DRAFT + 1}, "draft length of batch 1"),
        ({1: 10**5000}, "more than 30 digits"),
        ({0: 1, 1: 1}, "0 is no batch size"),
        ({True: 1}, "True is no batch size"),
        ({"1": 1}, "'1' is no batch size"),
        ({1: 1, LARGEST_BATCH + 1: 1}, "is no batch size"),
    ],
)
def test_a_schedule_is_refused(k_by_batch: dict[Any, Any], says: str) -> None:
    """A schedule that no engine accepts is refused by name."""
    with pytest.raises(ConfigError, match=says):
        ranges(k_by_batch)


@pytest.mark.parametrize(
    ("boundaries", "most", "says"),
    [
        ({1: 0}, 4, "boundary of batch 1 is 0"),
        ({1: -math.inf}, 4, "boundary of batch 1"),
        ({1: math.nan}, 4, "boundary of batch 1 is nan"),
        ({1: None}, 4, "boundary of batch 1 is None"),
        ({1: True}, 4, "boundary of batch 1 is True"),
        ({1.0: 3}, 4, "is no batch size"),
        ({1: 3}, 0, "no longest draft"),
        ({1: 3}, 10**400, "no longest draft"),
        ({1: 3}, 4.0, "no longest draft"),
    ],
)
def test_boundaries_are_refused(boundaries: dict[Any, Any], most: Any, says: str) -> None:
    """A boundary that is no number of positions is refused with its batch size."""
    with pytest.raises(ConfigError, match=says):
        draft_lengths(boundaries, most=most)
