"""Values of a header's metadata: numbers, strings and arrays of them.

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
"""Limit on the bytes of a key; the format's specification has 65,535, far above any writer's."""
LONGEST_TEXT = 1 << 16
"""Bytes of the longest string that is kept."""
SHORT = 1024
"""Elements of the longest array that is kept without being requested."""
MOST_ELEMENTS = 1 << 22
"""Limit on the strings of an array, 16 times the largest vocabulary."""
ROOM = 1 << 24
"""Limit on the bytes of all values that are kept without being requested; that of requested values
is four times as much."""
_OBJECT = 32
"""Approximate bytes of an element in memory."""


class Values:
    """Reads values one after another, with a limit on the memory of those it keeps.

    Parameters
    ----------
    stream
        The file, which must be at a value's type whenever `read` is called.
    whole
        Requested keys, whose arrays and strings are kept whatever their length.
    """

    def __init__(self, stream: Stream, whole: frozenset[str]) -> None:
        self._stream, self._requested = stream, whole
        self._room, self._requested_room = ROOM, 4 * ROOM

    def read(self, key: str) -> tuple[int, Value]:
        """Return the type and the value of a key.

        Raises
        ------
        ConfigError
            The type is unknown, an array contains arrays or is longer than the file, a boolean is
            neither 0 nor 1, or a requested key exceeds the limit on memory.
        """
        what = f"the value of {key!r:.80}"
        kind = self._stream.integer(4, what)
        if kind == _ARRAY:
            return kind, self._array(key, what)
        if kind == _TEXT:
            return kind, self._text(key, what)
        return kind, self._scalar(kind, what)

    def _scalar(self, kind: int, what: str) -> Scalar:
        layout = self._layout(kind, what)
        value: Scalar = layout.unpack(self._stream.take(layout.size, what))[0]
        return self._boolean(value, what) if kind == _BOOL else value

    def _layout(self, kind: int, what: str) -> Layout:
        if kind not in _LAYOUTS:
            why = " an array of arrays" if kind == _ARRAY else f" data of type {kind}"
            raise self._stream.wrong(f"has{why} for {what}, which is not read")
        return _LAYOUTS[kind]

    def _boolean(self, value: Scalar, what: str) -> bool:
        if value not in (0, 1):
            raise self._stream.wrong(f"has {value} for {what}, a boolean, which is 0 or 1")
        return bool(value)

    def _keeps(self, key: str, size: int, *, short: bool) -> bool:
        """Return whether a value of some bytes is kept, and count it against the limit."""
        if key in self._requested:
            if size > self._requested_room:
                raise self._stream.wrong(f"has {size} bytes under {key}, which is too much to read")
            self._requested_room -= size
            return True
        is_kept = short and size <= self._room
        self._room -= size if is_kept else 0
        return is_kept

    def _text(self, key: str, what: str) -> Value:
        length = self._stream.integer(8, what)
        self._stream.need(length, what)
        if self._keeps(key, length, short=length <= LONGEST_TEXT):
            return _decoded(self._stream.take(length, what))
        self._stream.skip(length, what)
        return Long("text", length)

    def _array(self, key: str, what: str) -> Value:
        kind, length = self._stream.integer(4, what), self._stream.integer(8, what)
        if kind == _TEXT:
            return self._texts(key, length, what)
        layout = self._layout(kind, what)
        size = length * layout.size
        self._stream.need(size, what)
        if not self._keeps(key, length * _OBJECT, short=length <= SHORT):
            self._stream.skip(size, what)
            return Long(_LETTERS[kind][0], length)
        raw = self._stream.take(size, what)
        values = tuple(value for (value,) in iter_unpack(layout.format, raw))
        return tuple(self._boolean(value, what) for value in values) if kind == _BOOL else values

    def _texts(self, key: str, length: int, what: str) -> Value:
        self._stream.need(8 * length, what)
        if length > MOST_ELEMENTS:
            raise self._stream.wrong(f"has {length} texts in {what}: the limit is {MOST_ELEMENTS}")
        if not self._keeps(key, length * _OBJECT, short=length <= SHORT):
            for size in self._lengths(length, what):
                self._stream.skip(size, what)
            return Long("text", length)
        texts, complete = list[str](), True
        for size in self._lengths(length, what):
            if complete and self._keeps(key, size, short=size <= LONGEST_TEXT):
                texts.append(_decoded(self._stream.take(size, what)))
            else:
                self._stream.skip(size, what)
                complete = False
        return tuple(texts) if complete else Long("text", length)

    def _lengths(self, count: int, what: str) -> Iterator[int]:
        for _ in range(count):
            yield self._stream.integer(8, what)


def _decoded(raw: bytes) -> str:
    """Return a string; bytes that are no UTF-8, such as single-byte tokens, are escaped."""
    return raw.decode(errors="backslashreplace")
