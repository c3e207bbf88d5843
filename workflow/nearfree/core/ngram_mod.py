"""llama.cpp's `ngram-mod`: the token that last followed each n-gram, by a hash of the n-gram.

Source: common/ngram-mod.cpp and `common_speculative_impl_ngram_mod` of common/speculative.cpp,
lines 1869 to 2042, in release 3.22.1 of node-llama-cpp.
"""

from collections.abc import Sequence

SIZE = 4 << 20
"""Places of the table. N-grams that share one are taken for each other."""
FULL = 0.25
"""The share of places from which on the table is emptied, once a prompt was read."""
CHUNK = 32
"""New n-grams are taken in where so many tokens were added, not each time."""
LOW, STREAK = 0.25, 5
"""The table is emptied after so many drafts in turn of which a smaller share was accepted."""
_FACTOR, _WORD = 6364136223846793005, 1 << 64


class NgramMod:
    """The memory of one text, begun with its prompt.

    A draft goes from n-gram to n-gram, a token at a time, until one is not known.

    Parameters
    ----------
    prompt
        Tokens of the prompt.
    n, longest, shortest
        Tokens that are looked for; of a draft at most; at least, else there is none.
    """

    def __init__(self, prompt: Sequence[int], *, n: int, longest: int, shortest: int) -> None:
        self._n, self._longest, self._shortest = n, longest, shortest
        self._next: dict[int, int] = {}
        self._taken_in = self._drafted = self._low = 0
        if len(prompt) >= n:
            self._take_in(prompt, len(prompt))
            if len(self._next) > FULL * SIZE:
                self._next.clear()

    def draft(self, known: Sequence[int]) -> list[int]:
        """Return what is drafted after the prompt and the output so far, its last token sampled."""
        self._drafted = 0
        n, past = self._n, len(known) - 1
        if past < n:
            return []
        if self._taken_in + CHUNK < past:
            self._take_in(known, past)
        text = list(known[past - n + 1 :])
        for made in range(self._longest):
            token = self._next.get(_place(text[made:]))
            if token is None:
                if made < self._shortest:
                    return []
                break
            text.append(token)
        self._drafted = len(text) - n
        return text[n:]

    def accept(self, count: int) -> None:
        """Be told how many tokens of the last draft were right."""
        if not self._drafted:
            return
        self._low = self._low + 1 if count / self._drafted < LOW else 0
        if self._low >= STREAK:
            self._next.clear()
            self._low = self._taken_in = 0

    def _take_in(self, known: Sequence[int], past: int) -> None:
        for at in range(self._taken_in, past - self._n):
            self._next[_place(known[at : at + self._n])] = known[at + self._n]
        self._taken_in = past - self._n


def _place(tokens: Sequence[int]) -> int:
    total = 0
    for token in tokens:
        total = (total * _FACTOR + token) % _WORD
    return total % SIZE
