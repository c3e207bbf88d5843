"""llama.cpp's `ngram-cache` without files: the most likely token after the last 4 to 1 tokens.

Source: `common_ngram_cache_update` and `common_ngram_cache_draft` of common/ngram-cache.cpp, lines
12 to 198, and `common_speculative_impl_ngram_cache` of common/speculative.cpp, lines 2044 to 2181,
in release 3.22.1 of node-llama-cpp.
"""

from collections.abc import Sequence

SIZES = (1, 2, 3, 4)
"""The lengths of n-grams in tokens."""
SEEN, SHARE = (2, 2, 1, 1), (66, 50, 50, 50)
"""Per size: the smallest count of an n-gram, and the smallest percentage of its top token."""


class NgramCache:
    """The memory of one text.

    Each step counts the new tokens alone: an n-gram that begins before them is not counted. So the
    memory depends on how many drafts were accepted. Of two tokens with equal counts the one first
    seen later wins, as in the iteration order of GNU's C++ maps. Texts of fewer than four tokens
    get no draft; there the source reads out of bounds.

    Parameters
    ----------
    longest
        Largest number of tokens in a draft.
    """

    def __init__(self, *, longest: int) -> None:
        self._longest = longest
        self._counted = 0
        self._next_counts: dict[tuple[int, ...], dict[int, int]] = {}

    def draft(self, tokens: Sequence[int]) -> list[int]:
        """Return the draft after `tokens`, the prompt and the output so far."""
        self._count(tokens[self._counted :])
        self._counted = len(tokens)
        if len(tokens) < SIZES[-1]:
            return []
        text = list(tokens[-SIZES[-1] :])
        for _ in range(self._longest):
            token = self._likeliest(text)
            if token is None:
                break
            text.append(token)
        return text[SIZES[-1] :]

    def accept(self, count: int) -> None:
        """Ignore the number of accepted tokens: the memory does not use it."""

    def _count(self, new: Sequence[int]) -> None:
        for size in SIZES:
            for end in range(size, len(new)):
                next_counts = self._next_counts.setdefault(tuple(new[end - size : end]), {})
                next_counts[new[end]] = next_counts.get(new[end], 0) + 1

    def _likeliest(self, text: Sequence[int]) -> int | None:
        for size, min_count, min_percent in reversed(list(zip(SIZES, SEEN, SHARE, strict=True))):
            next_counts = self._next_counts.get(tuple(text[len(text) - size :]))
            if next_counts is None:
                continue
            token = max(reversed(next_counts), key=next_counts.__getitem__)
            total = sum(next_counts.values())
            if total >= min_count and 100 * next_counts[token] >= min_percent * total:
                return token
        return None
