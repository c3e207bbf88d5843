"""llama.cpp's maps of n-grams: the length of a draft, and its continuation."""

from hypothesis import given
from hypothesis import strategies as st
from nearfree.core.ngram_map import NgramMap


def test_a_draft_is_as_long_as_the_accepted_part_of_the_last() -> None:
    """The first draft has full length, the next one the length that was accepted."""
    text = [9, *([1, 2, 3, 4, 5, 6, 7, 8] * 4), 1, 2]
    memory = NgramMap(text[:-1], n=2, m=4, values=False)
    assert memory.draft(text) == [3, 4, 5, 6]
    memory.accept(2)
    assert memory.draft(text) == [3, 4]
    memory.accept(0)
    assert memory.draft(text) == []


@given(st.lists(st.integers(0, 2), min_size=2, max_size=80), st.integers(1, 3), st.integers(1, 6))
def test_a_draft_occurs_after_the_same_tokens(text: list[int], n: int, m: int) -> None:
    """A draft has m tokens; a text of fewer than 2 n + m tokens before its last has none."""
    drafted = NgramMap(text[:-1], n=n, m=m, values=False).draft(text)
    places = [
        position
        for position in range(1, len(text) - n - m)
        if text[position : position + n] == text[-n:]
        and text[position + n : position + n + m] == drafted
    ]
    assert not drafted or (places and len(drafted) == m)
    assert not drafted or len(text) - 1 >= 2 * n + m


def test_a_continuation_has_to_be_twice_as_frequent_as_the_others() -> None:
    """Of two equally frequent ones none is drafted, of two to one the more frequent one."""
    first, second = [1, 2, 3, 3], [1, 2, 4, 4]
    equally_frequent = [0, *first, *second, *first, *second, 5, 5, 1, 2]
    assert NgramMap(equally_frequent[:-1], n=2, m=2, values=True).draft(equally_frequent) == []
    assert NgramMap(equally_frequent[:-1], n=2, m=2, values=False).draft(equally_frequent) == [4, 4]
    frequent = [0, *first, *second, *first, 5, 5, 5, 1, 2]
    assert NgramMap(frequent[:-1], n=2, m=2, values=True).draft(frequent) == [3, 3]
