"""Values of a header's metadata: numbers, texts and arrays of them.

Source: llama.cpp v0.5.0, ggml/include/gguf.h lines 54-70 (numbers of types), ggml/src/gguf.cpp
lines 585-612: arrays of arrays are refused there, too.
"""

from collections.abc import Iterator
from struct import Struct as Layout
from struct import iter_unpack

from nearfree.gguf.header import Long, Scalar, Value
from nearfree.gguf.stream import Stream

_LETTERS = {
    0: ("uint8", "B"), 1: ("int8", "b"), 2: ("uint16", "H"), 3: ("int16", "h"),
    4: ("uint32", "I"), 5: ("int32", "i"), 6: ("float32", "f"), 7: ("bool", "B"),
    10: ("uint64", "Q"), 11: ("int64", "q"), 12: ("float64", "d"),
}  # fmt: skip
_BOOL, _TEXT, _ARRAY = 7, 8, 9
_LAYOUTS = {number: Layout(f"<{letter}") for number, (_, letter) in _LETTERS.items()}
UINT32 = 4
LONGEST_KEY = 1024
"""Bytes of a key at most; the format's specification has 65,535, which no writer comes near."""
LONGEST_TEXT = 1 << 16
"""Bytes of the longest text that is kept."""
SHORT = 1024
"""Elements of the longest array that is kept without being asked for."""
MOST_ELEMENTS = 1 << 22
"""Texts of the longest array that is walked over: 16 times the largest vocabulary."""
ROOM = 1 << 24
"""Bytes of all that is kept without being asked for, and of all that is asked for."""
_OBJECT = 32
"""Bytes that an element takes about, once it is read."""


class Values:
    """Reads values one after another, and keeps no more of them than `ROOM`.

    Parameters
    ----------
    stream
        At a value's type, whenever `read` is called.
    whole
        Keys whose arrays and texts are kept whatever their length.
    """

    def __init__(self, stream: Stream, whole: frozenset[str]) -> None:
        self._stream, self._whole = stream, whole
        self._room, self._asked_room = ROOM, 4 * ROOM

    def read(self, key: str) -> tuple[int, Value]:
        """Return the type and the value of a key.

        Raises
        ------
        ConfigError
            The type is unknown, an array is one of arrays or longer than the file, a truth is
            neither 0 nor 1, or a key that was asked for has more than fits.
        """
        what = f"the value of {key!r:.80}"
        kind = self._stream.whole(4, what)
        if kind == _ARRAY:
            return kind, self._array(key, what)
        if kind == _TEXT:
            return kind, self._text(key, what)
        return kind, self._scalar(kind, what)

    def _scalar(self, kind: int, what: str) -> Scalar:
        layout = self._layout(kind, what)
        found: Scalar = layout.unpack(self._stream.take(layout.size, what))[0]
        return self._truth(found, what) if kind == _BOOL else found

    def _layout(self, kind: int, what: str) -> Layout:
        if kind not in _LAYOUTS:
            why = " an array of arrays" if kind == _ARRAY else f" of type {kind}"
            raise self._stream.wrong(f"has{why} for {what}, which is not read")
        return _LAYOUTS[kind]

    def _truth(self, found: Scalar, what: str) -> bool:
        if found not in (0, 1):
            raise self._stream.wrong(f"has {found} for {what}, a truth, which is 0 or 1")
        return bool(found)

    def _keeps(self, key: str, size: int, *, short: bool) -> bool:
        """Return whether a value is kept, and count it."""
        if key in self._whole:
            if size > self._asked_room:
                raise self._stream.wrong(f"has {size} bytes under {key}, too much to read")
            self._asked_room -= size
            return True
        kept = short and size <= self._room
        self._room -= size if kept else 0
        return kept

    def _text(self, key: str, what: str) -> Value:
        length = self._stream.whole(8, what)
        self._stream.need(length, what)
        if self._keeps(key, length, short=length <= LONGEST_TEXT):
            return _decoded(self._stream.take(length, what))
        self._stream.skip(length, what)
        return Long("text", length)

    def _array(self, key: str, what: str) -> Value:
        kind, length = self._stream.whole(4, what), self._stream.whole(8, what)
        if kind == _TEXT:
            return self._texts(key, length, what)
        layout = self._layout(kind, what)
        size = length * layout.size
        self._stream.need(size, what)
        if not self._keeps(key, length * _OBJECT, short=length <= SHORT):
            self._stream.skip(size, what)
            return Long(_LETTERS[kind][0], length)
        raw = self._stream.take(size, what)
        found = tuple(each[0] for each in iter_unpack(layout.format, raw))
        return tuple(self._truth(each, what) for each in found) if kind == _BOOL else found

    def _texts(self, key: str, length: int, what: str) -> Value:
        self._stream.need(8 * length, what)
        if length > MOST_ELEMENTS:
            raise self._stream.wrong(f"has {length} texts in {what}: {MOST_ELEMENTS} are the most")
        if not self._keeps(key, length * _OBJECT, short=length <= SHORT):
            for each in self._lengths(length, what):
                self._stream.skip(each, what)
            return Long("text", length)
        found, complete = list[str](), True
        for each in self._lengths(length, what):
            if complete and self._keeps(key, each, short=each <= LONGEST_TEXT):
                found.append(_decoded(self._stream.take(each, what)))
            else:
                self._stream.skip(each, what)
                complete = False
        return tuple(found) if complete else Long("text", length)

    def _lengths(self, count: int, what: str) -> Iterator[int]:
        for _ in range(count):
            yield self._stream.whole(8, what)


def _decoded(raw: bytes) -> str:
    """Return a text; what is no UTF-8 in it, such as a token that is a byte, is escaped."""
    return raw.decode(errors="backslashreplace")
