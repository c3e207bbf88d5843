"""How many copies take turns, where an execution leaves it open."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from nearfree.backends.adapters.kernel import TURNING, ExecutionContext
from nearfree.backends.adapters.tensors import copies_for, turns
from torch import Tensor

ITEM_BYTES = 64 * 4


def make(copy: int) -> Tensor:
    """Return a copy that holds its own number."""
    return torch.full((64,), float(copy))


@given(st.floats(1.0, 1e9), st.integers(0, 2**34))
def test_what_is_read_between_fills_the_cache(read_bytes: float, cache_bytes: int) -> None:
    """The other copies are as large as the cache, or TURNING of a larger one; one fewer is not."""
    filled = min(cache_bytes, TURNING)
    count = copies_for(read_bytes, cache_bytes)
    assert (count - 1) * read_bytes >= filled * (1 - 1e-9)
    assert count == 1 or (count - 2) * read_bytes < filled


@pytest.mark.parametrize(
    ("cache_bytes", "share", "copies"),
    [
        (0, 1.0, 1),
        (1, 1.0, 2),
        (ITEM_BYTES, 1.0, 2),
        (ITEM_BYTES + 1, 1.0, 3),
        (ITEM_BYTES, 0.5, 3),
        (3 * ITEM_BYTES, 0.25, 13),
    ],
)
def test_no_number_is_as_many_as_are_cold(cache_bytes: int, share: float, copies: int) -> None:
    """Where an execution says 0 there are as many copies as make each one cold, by what is read."""
    copies_in_turn = turns(ExecutionContext(copies=0, cache_bytes=cache_bytes), make, share)
    assert [copy[0].item() for copy in copies_in_turn.copies] == list(range(copies))
    assert copies_in_turn.cache == "cold"


def test_a_given_number_of_copies_is_kept() -> None:
    """Where the number of copies is given, the cache only decides whether they are cold."""
    copies_in_turn = turns(ExecutionContext(copies=2, cache_bytes=10**9), make)
    assert (len(copies_in_turn.copies), copies_in_turn.cache) == (2, "warm")


def test_a_cache_that_is_too_large_is_not_filled() -> None:
    """Beyond TURNING bytes copies stop, and what they are called says that they are warm."""
    part = TURNING // 4
    copies_in_turn = turns(
        ExecutionContext(copies=0, cache_bytes=TURNING + 1),
        lambda _: torch.empty(part, dtype=torch.uint8),
    )
    assert (len(copies_in_turn.copies), copies_in_turn.cache) == (5, "warm")
