"""llama.cpp's `ngram-mod`: the token that last followed each n-gram, by a hash of the n-gram.

Source: common/ngram-mod.cpp and `common_speculative_impl_ngram_mod` of common/speculative.cpp,
lines 1869 to 2042, in release 3.22.1 of node-llama-cpp.
"""

from collections.abc import Sequence

SIZE = 4 << 20
"""Buckets of the table. N-grams in the same bucket are not distinguished."""
FULL = 0.25
"""The share of used buckets above which the table is emptied after reading a prompt."""
CHUNK = 32
"""New n-grams are indexed once more than this many tokens were added."""
LOW, STREAK = 0.25, 5
"""The table is emptied after STREAK drafts in a row with an accepted share below LOW."""
_FACTOR, _WORD = 6364136223846793005, 1 << 64


class NgramMod:
    """The memory of one text, which begins with its prompt.

    A draft grows by one token at a time, from n-gram to n-gram, until an n-gram is unknown.

    Parameters
    ----------
    prompt
        Tokens of the prompt.
    n, longest, shortest
        Number of tokens of an n-gram, and the largest and smallest number of a draft.
    """

    def __init__(self, prompt: Sequence[int], *, n: int, longest: int, shortest: int) -> None:
        self._n, self._longest, self._shortest = n, longest, shortest
        self._next: dict[int, int] = {}
        self._indexed = self._drafted = self._low_streak = 0
        if len(prompt) >= n:
            self._index(prompt, len(prompt))
            if len(self._next) > FULL * SIZE:
                self._next.clear()

    def draft(self, tokens: Sequence[int]) -> list[int]:
        """Return the draft after `tokens`: the prompt, the output and the token just sampled."""
        self._drafted = 0
        n, last = self._n, len(tokens) - 1
        if last < n:
            return []
        if self._indexed + CHUNK < last:
            self._index(tokens, last)
        text = list(tokens[last - n + 1 :])
        for count in range(self._longest):
            token = self._next.get(_bucket(text[count:]))
            if token is None:
                if count < self._shortest:
                    return []
                break
            text.append(token)
        self._drafted = len(text) - n
        return text[n:]

    def accept(self, count: int) -> None:
        """Receive the number of accepted tokens of the last draft."""
        if not self._drafted:
            return
        self._low_streak = self._low_streak + 1 if count / self._drafted < LOW else 0
        if self._low_streak >= STREAK:
            self._next.clear()
            self._low_streak = self._indexed = 0

    def _index(self, tokens: Sequence[int], end: int) -> None:
        for position in range(self._indexed, end - self._n):
            self._next[_bucket(tokens[position : position + self._n])] = tokens[position + self._n]
        self._indexed = end - self._n


def _bucket(tokens: Sequence[int]) -> int:
    hash_ = 0
    for token in tokens:
        hash_ = (hash_ * _FACTOR + token) % _WORD
    return hash_ % SIZE
