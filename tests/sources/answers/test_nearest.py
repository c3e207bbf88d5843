"""The nearest entry of a tuned file, and the intervals of M on which each holds."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nearfree.errors import EvidenceError
from nearfree.sources.answers.nearest import nearest, tuned_intervals

Entries = tuple[tuple[int, ...], tuple[int, ...]]


@st.composite
def any_entries(draw: st.DrawFn) -> Entries:
    """Draw keys close together, in any order, and few different values."""
    tokens = draw(st.lists(st.integers(1, 60), min_size=1, max_size=12, unique=True))
    values = [draw(st.sampled_from([16, 32, 64])) for _ in tokens]
    return tuple(tokens), tuple(values)


def backend(entries: Entries, m: int) -> int:
    """Choose as the backends do, from the file's text on."""
    tokens, values = entries
    text = json.dumps({str(key): value for key, value in zip(tokens, values, strict=True)})
    configs = {int(key): val for key, val in json.loads(text).items()}
    return int(configs[min(configs.keys(), key=lambda x: abs(x - m))])


@given(any_entries(), st.integers(-5, 90))
def test_the_nearest_entry_is_the_backends(entries: Entries, m: int) -> None:
    """At any M the choice is the one that the backends' own expression makes."""
    tokens, values = entries
    assert values[nearest(tokens, m)] == backend(entries, m)


@given(any_entries(), st.integers(-5, 90), st.integers(-5, 90))
def test_the_intervals_are_those_of_trying_every_m(entries: Entries, one: int, two: int) -> None:
    """The intervals cover the range without a gap, hold at every M, and neighbours differ."""
    first, last = sorted((one, two))
    intervals = tuned_intervals(*entries, first, last)
    assert [m for span in intervals for m in range(span.first, span.last + 1)] == list(
        range(first, last + 1)
    )
    for span in intervals:
        values = {backend(entries, m) for m in range(span.first, span.last + 1)}
        assert values == {span.value}
    assert all(a.value != b.value for a, b in pairwise(intervals))


@pytest.mark.parametrize(("tokens", "sizes"), [((2, 4), (16, 64)), ((4, 2), (64, 16))])
def test_a_tie_goes_to_the_first_in_the_file(
    tokens: tuple[int, ...], sizes: tuple[int, ...]
) -> None:
    """M=3 is as near to 2 as to 4; what stands first in the file holds."""
    assert nearest(tokens, 3) == 0
    assert tuned_intervals(tokens, sizes, 3, 3) == [(3, 3, sizes[0])]


def test_the_intervals_of_a_regular_file() -> None:
    """Halfway between 512 and 1024 the lower key, first in the file, still holds."""
    intervals = tuned_intervals((1, 256, 512, 1024, 4096), (16, 16, 16, 64, 64), 1, 10**12)
    assert intervals == [(1, 768, 16), (769, 10**12, 64)]


def test_the_intervals_of_a_file_that_is_not_monotone() -> None:
    """A value that comes back has an interval of its own each time."""
    assert tuned_intervals((1, 3, 5), (16, 32, 16), 1, 9) == [(1, 2, 16), (3, 4, 32), (5, 9, 16)]


def test_the_range_may_lie_outside_the_keys() -> None:
    """Below the smallest key it holds, above the largest that one; an empty range has nothing."""
    assert tuned_intervals((8, 16), (16, 64), 1, 4) == [(1, 4, 16)]
    assert tuned_intervals((8, 16), (16, 64), 20, 20) == [(20, 20, 64)]
    assert tuned_intervals((8, 16), (16, 64), 2, 1) == []


def test_the_first_of_two_equal_keys_holds() -> None:
    """With a key twice, both ways of asking take the one that comes first."""
    assert nearest((4, 4), 9) == 0
    assert tuned_intervals((4, 4), (16, 64), 1, 9) == [(1, 9, 16)]


def test_no_entries_choose_nothing() -> None:
    """A file without entries is refused, not answered with a default."""
    with pytest.raises(EvidenceError, match="without entries"):
        nearest((), 1)
    with pytest.raises(EvidenceError, match="without entries"):
        tuned_intervals((), (), 1, 2)


def test_keys_and_values_must_pair() -> None:
    """More keys than values, or fewer, is a mistake of the caller."""
    with pytest.raises(ValueError, match="zip"):
        tuned_intervals((1, 2), (16,), 1, 2)
