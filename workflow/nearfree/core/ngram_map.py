"""llama.cpp's `ngram-map-k` and `ngram-map-k4v`: n-grams of the text with their continuations.

Source: `common_ngram_map_draft` and `common_ngram_map_accept` of common/ngram-map.cpp, lines 221 to
536, and the constants of common/ngram-map.h, in release 3.22.1 of node-llama-cpp.
"""

from collections.abc import Iterator, Sequence

BUCKETS = 1 << 18
"""Buckets of the table from hashes to n-grams; the first n-gram of a bucket stays in it."""
VALUES = 4
"""Number of distinct continuations counted per n-gram."""
_FACTOR, _WORD = 2654435761, 1 << 32
_MAX_COUNT = 16380
"""The largest count."""


class _Value:
    """A continuation: its place, how often it was seen, and how many tokens were accepted last."""

    __slots__ = ("accepted", "place", "seen")

    def __init__(self, accepted: int) -> None:
        self.place, self.seen, self.accepted = 0, 0, accepted


class NgramMap:
    """The memory of one text: continuations of its n-grams, and how many of each were accepted.

    A draft is the m tokens after an earlier place of the last n tokens, or fewer: as many as were
    accepted of the last draft of the same n-gram and continuation. Without `values` each n-gram has
    one continuation. With `values` up to four are counted, and one is drafted only if it was seen
    at least twice as often as the others together.

    Parameters
    ----------
    prompt
        Tokens of the prompt, with which the text begins.
    n, m
        Number of tokens of an n-gram, and of a draft.
    values
        Whether continuations are counted: `ngram-map-k4v`.
    """

    def __init__(self, prompt: Sequence[int], *, n: int, m: int, values: bool) -> None:
        self._n, self._m, self._values = n, m, values
        self._prompt_length = len(prompt)
        self._place_by_hash: dict[int, int] = {}
        """The place of the first indexed n-gram in each bucket."""
        self._indexed = 0
        self._keys: dict[tuple[int, ...], list[_Value]] = {}
        self._counted: dict[tuple[int, ...], int] = {}
        """The place up to which continuations of an n-gram were counted."""
        self._drafted: _Value | None = None

    def draft(self, tokens: Sequence[int]) -> list[int]:
        """Return the draft after `tokens`: the prompt, the output and the token just sampled."""
        self._drafted = None
        n, m, last = self._n, self._m, len(tokens) - 1
        if last < 2 * n + m:
            return []
        key = tuple(tokens[last - n + 1 :])
        place = self._find(tokens, key, last - n - m - 1)
        self._index(tokens, last - n - m - 1)
        if not place:
            return []
        values = self._keys.setdefault(key, [_Value(m) for _ in range(VALUES)])
        chosen: _Value | None = values[0]
        if self._values:
            self._count(tokens, key, values, place)
            chosen = _likeliest(values)
        if chosen is None:
            return []
        self._drafted = chosen
        return list(tokens[place + n : place + n + min(m, chosen.accepted)])

    def accept(self, count: int) -> None:
        """Receive the number of accepted tokens of the last draft."""
        if self._drafted is not None:
            self._drafted.accepted = count

    def _unindexed(self, last: int) -> Iterator[int]:
        """Yield the places not yet indexed, in the prompt and then after it, each from its end.

        The last n + m + 1 places of the prompt are in neither part, as in the source.
        """
        if self._prompt_length > self._n + self._m + 1:
            yield from range(self._prompt_length - self._n - self._m - 1, self._indexed, -1)
        yield from range(last, max(self._prompt_length, self._indexed), -1)

    def _find(self, tokens: Sequence[int], key: tuple[int, ...], last: int) -> int:
        """Return an earlier place of an n-gram; 0 if there is none, so place 0 never matches."""
        place = self._place_by_hash.get(_bucket(key), 0)
        if place and place < last and self._at(tokens, place) == key:
            return place
        head = key[0]
        for place in self._unindexed(last):
            if tokens[place] == head and self._at(tokens, place) == key:
                return place
        return 0

    def _index(self, tokens: Sequence[int], last: int) -> None:
        for place in self._unindexed(last):
            self._place_by_hash.setdefault(_bucket(self._at(tokens, place)), place)
        self._indexed = max(self._indexed, last)

    def _at(self, tokens: Sequence[int], place: int) -> tuple[int, ...]:
        return tuple(tokens[place : place + self._n])

    def _count(
        self, tokens: Sequence[int], key: tuple[int, ...], values: list[_Value], place: int
    ) -> None:
        """Count continuations up to a place, from the place of the last count on.

        The place of the last count is counted again, as in the source. A fifth distinct
        continuation is not counted.
        """
        n, m = self._n, self._m
        for position in range(self._counted.get(key, 0), place + 1):
            if self._at(tokens, position) != key:
                continue
            continuation = tokens[position + n : position + n + m]
            for value in values:
                if not value.place:
                    value.place, value.accepted = position + n, m
                if tokens[value.place : value.place + m] == continuation:
                    value.seen = min(value.seen + 1, _MAX_COUNT)
                    break
        self._counted[key] = place


def _likeliest(values: list[_Value]) -> _Value | None:
    """Return the most frequent continuation; None if the others occur over half as often."""
    best = max(values, key=lambda value: value.seen)
    others = sum(value.seen for value in values) - best.seen
    return None if others and best.seen < 2 * others else best


def _bucket(key: Sequence[int]) -> int:
    hash_ = 0
    for token in key:
        hash_ = (hash_ * _FACTOR + token) % _WORD
    return hash_ % BUCKETS
