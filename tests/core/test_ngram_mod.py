"""llama.cpp's `ngram-mod`: chains of n-grams, when they are added, and when forgotten."""

import pytest
from nearfree.core.ngram_mod import CHUNK, STREAK, NgramMod

TEXT = [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2]


def test_a_draft_goes_on_from_n_gram_to_n_gram() -> None:
    """Each token is the one that last followed the two before; an unknown one ends the draft."""
    memory = NgramMod(TEXT[:-1], n=2, longest=20, shortest=0)
    assert memory.draft(TEXT) == [3, 4, 5, 6, 7, 8, 9, 1]
    assert NgramMod(TEXT[:-1], n=2, longest=3, shortest=0).draft(TEXT) == [3, 4, 5]
    assert NgramMod(TEXT[:-1], n=2, longest=20, shortest=9).draft(TEXT) == []
    assert NgramMod([1], n=2, longest=3, shortest=0).draft([1, 2]) == []


def test_new_tokens_are_added_by_chunks() -> None:
    """An output's own n-grams are known only once more than a chunk was added."""
    prompt = [0] * 10
    for added, drafted in ((CHUNK - 3, []), (CHUNK, [102, 103, 104])):
        text = [*prompt, *range(100, 100 + added), 100, 101]
        assert NgramMod(prompt, n=2, longest=3, shortest=0).draft(text) == drafted


@pytest.mark.parametrize(("share", "remains"), [(0, False), (1, False), (2, True)])
def test_drafts_that_are_wrong_too_often_clear_the_table(share: int, *, remains: bool) -> None:
    """After five drafts in turn with less than a quarter accepted, the table is empty."""
    memory = NgramMod(TEXT[:-1], n=2, longest=8, shortest=0)
    for _ in range(STREAK):
        assert len(memory.draft(TEXT)) == 8
        memory.accept(share)
    assert bool(memory.draft(TEXT)) == remains
