"""llama.cpp's `ngram-map-k` and `ngram-map-k4v`: n-grams of the text with what followed them.

Source: `common_ngram_map_draft` and `common_ngram_map_accept` of common/ngram-map.cpp, lines 221 to
536, and the constants of common/ngram-map.h, in release 3.22.1 of node-llama-cpp.
"""

from collections.abc import Iterator, Sequence

BUCKETS = 1 << 18
"""Places of the table that finds an n-gram by its hash; the first one of a hash stays there."""
VALUES = 4
"""Continuations that are told apart behind one n-gram."""
_FACTOR, _WORD = 2654435761, 1 << 32
_MOST = 16380
"""Where counting ends."""


class _Value:
    """A continuation: where it begins, how often it was seen, how much of it was accepted last."""

    __slots__ = ("accepted", "place", "seen")

    def __init__(self, accepted: int) -> None:
        self.place, self.seen, self.accepted = 0, 0, accepted


class NgramMap:
    """The memory of one text: how often n-grams were asked for, and what came of their drafts.

    A draft is the m tokens behind an earlier place of the last n tokens, or as many of them as were
    accepted of the last draft of the same n-gram and continuation. Without `values` there is one
    continuation for each n-gram; with them up to four are counted, and one is drafted only if it
    was seen at least twice as often as the others together.

    Parameters
    ----------
    prompt
        Tokens of the prompt, at the end of which the text is begun.
    n, m
        Tokens that are looked for, and tokens of a draft.
    values
        Whether continuations are counted: `ngram-map-k4v`.
    """

    def __init__(self, prompt: Sequence[int], *, n: int, m: int, values: bool) -> None:
        self._n, self._m, self._values = n, m, values
        self._begun = len(prompt)
        self._first: dict[int, int] = {}
        """The place of the first n-gram of each hash that was listed."""
        self._listed = 0
        self._keys: dict[tuple[int, ...], list[_Value]] = {}
        self._counted: dict[tuple[int, ...], int] = {}
        """Up to which place continuations of an n-gram were counted."""
        self._drafted: _Value | None = None

    def draft(self, known: Sequence[int]) -> list[int]:
        """Return what is drafted after the prompt and the output so far, its last token sampled."""
        self._drafted = None
        n, m, past = self._n, self._m, len(known) - 1
        if past < 2 * n + m:
            return []
        key = tuple(known[past - n + 1 :])
        place = self._found(known, key, past - n - m - 1)
        self._list(known, past - n - m - 1)
        if not place:
            return []
        found = self._keys.setdefault(key, [_Value(m) for _ in range(VALUES)])
        chosen: _Value | None = found[0]
        if self._values:
            self._count(known, key, found, place)
            chosen = _likeliest(found)
        if chosen is None:
            return []
        self._drafted = chosen
        return list(known[place + n : place + n + min(m, chosen.accepted)])

    def accept(self, count: int) -> None:
        """Be told how many tokens of the last draft were right."""
        if self._drafted is not None:
            self._drafted.accepted = count

    def _spans(self, last: int) -> Iterator[int]:
        """Yield the places that are not listed yet: in the prompt, then behind it, from the end.

        The n + m + 1 places before the end of the prompt are in neither part, as in the source.
        """
        if self._begun > self._n + self._m + 1:
            yield from range(self._begun - self._n - self._m - 1, self._listed, -1)
        yield from range(last, max(self._begun, self._listed), -1)

    def _found(self, known: Sequence[int], key: tuple[int, ...], last: int) -> int:
        """Return an earlier place of an n-gram, 0 if there is none; the first one is none."""
        place = self._first.get(_bucket(key), 0)
        if place and place < last and self._at(known, place) == key:
            return place
        head = key[0]
        for place in self._spans(last):
            if known[place] == head and self._at(known, place) == key:
                return place
        return 0

    def _list(self, known: Sequence[int], last: int) -> None:
        for place in self._spans(last):
            self._first.setdefault(_bucket(self._at(known, place)), place)
        self._listed = max(self._listed, last)

    def _at(self, known: Sequence[int], place: int) -> tuple[int, ...]:
        return tuple(known[place : place + self._n])

    def _count(
        self, known: Sequence[int], key: tuple[int, ...], found: list[_Value], place: int
    ) -> None:
        """Count the continuations from where counting ended last, which counts again, to a place.

        Where all four are others, a fifth is not counted.
        """
        n, m = self._n, self._m
        for at in range(self._counted.get(key, 0), place + 1):
            if self._at(known, at) != key:
                continue
            behind = known[at + n : at + n + m]
            for value in found:
                if not value.place:
                    value.place, value.accepted = at + n, m
                if known[value.place : value.place + m] == behind:
                    value.seen = min(value.seen + 1, _MOST)
                    break
        self._counted[key] = place


def _likeliest(found: list[_Value]) -> _Value | None:
    """Return the continuation seen most, unless the others were seen more than half as often."""
    best = max(found, key=lambda value: value.seen)
    others = sum(value.seen for value in found) - best.seen
    return None if others and best.seen < 2 * others else best


def _bucket(key: Sequence[int]) -> int:
    total = 0
    for token in key:
        total = (total * _FACTOR + token) % _WORD
    return total % BUCKETS
