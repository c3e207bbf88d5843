"""llama.cpp's `ngram-cache` without files: the likeliest token after the last four to one tokens.

Source: `common_ngram_cache_update` and `common_ngram_cache_draft` of common/ngram-cache.cpp, lines
12 to 198, and `common_speculative_impl_ngram_cache` of common/speculative.cpp, lines 2044 to 2181,
in release 3.22.1 of node-llama-cpp.
"""

from collections.abc import Sequence

SIZES = (1, 2, 3, 4)
"""Tokens of an n-gram."""
SEEN, SHARE = (2, 2, 1, 1), (66, 50, 50, 50)
"""Of each size: how often it has to have been seen, and in how many of 100 with one token."""


class NgramCache:
    """The memory of one text.

    Each step takes in the tokens since the step before on their own: an n-gram that begins before
    them is not counted, so that what is remembered depends on how many drafts were right. Of two
    tokens seen alike the one seen last first is taken, as the maps of GNU's C++ library go. Texts
    of fewer than four tokens have no draft; there the source reads what is not its own.

    Parameters
    ----------
    longest
        Tokens of a draft, at most.
    """

    def __init__(self, *, longest: int) -> None:
        self._longest = longest
        self._taken_in = 0
        self._after: dict[tuple[int, ...], dict[int, int]] = {}

    def draft(self, known: Sequence[int]) -> list[int]:
        """Return what is drafted after the prompt and the output so far."""
        self._take_in(known[self._taken_in :])
        self._taken_in = len(known)
        if len(known) < SIZES[-1]:
            return []
        text = list(known[-SIZES[-1] :])
        for _ in range(self._longest):
            token = self._likeliest(text)
            if token is None:
                break
            text.append(token)
        return text[SIZES[-1] :]

    def accept(self, count: int) -> None:
        """Be told how many tokens of the last draft were right: it makes no difference."""

    def _take_in(self, new: Sequence[int]) -> None:
        for size in SIZES:
            for end in range(size, len(new)):
                after = self._after.setdefault(tuple(new[end - size : end]), {})
                after[new[end]] = after.get(new[end], 0) + 1

    def _likeliest(self, text: Sequence[int]) -> int | None:
        for size, seen, share in reversed(list(zip(SIZES, SEEN, SHARE, strict=True))):
            after = self._after.get(tuple(text[len(text) - size :]))
            if after is None:
                continue
            token = max(reversed(after), key=after.__getitem__)
            total = sum(after.values())
            if total >= seen and 100 * after[token] >= share * total:
                return token
        return None
