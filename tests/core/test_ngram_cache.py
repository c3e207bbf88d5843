"""llama.cpp's `ngram-cache`: which n-grams are counted, and which token is likely enough."""

from nearfree.core.ngram_cache import NgramCache


def test_the_longest_n_gram_that_is_likely_enough_decides() -> None:
    """Tokens are drafted one after the other, each after the four before it."""
    text = [1, 2, 3, 4, 5, 6, 7, 1, 2, 3, 4]
    assert NgramCache(longest=4).draft(text) == [5, 6, 7, 1]
    assert NgramCache(longest=4).draft([1, 2, 3, 4, 5, 6, 7, 8]) == []


def test_of_two_equally_frequent_tokens_the_later_one_is_drafted() -> None:
    """Half of what followed is enough for two tokens and more, two thirds for one."""
    text = [8, 9, 1, 6, 8, 9, 2, 5, 8, 9]
    assert NgramCache(longest=1).draft(text) == [2]
    assert NgramCache(longest=1).draft([9, 1, 6, 9, 2, 5, 3, 9]) == []


def test_an_n_gram_across_two_steps_is_not_counted() -> None:
    """An n-gram counts only within one step: tokens that were added singly count for none."""
    text = [1, 2, 3, 4, 5, 6, 1, 2, 3, 4]
    memory = NgramCache(longest=2)
    for end in range(4, len(text)):
        memory.draft(text[:end])
    assert memory.draft(text) == []
    assert NgramCache(longest=2).draft(text) == [5, 6]
