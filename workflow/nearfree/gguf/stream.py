"""The bytes of a header, read value by value and checked against the size of the file."""

from struct import Struct as Layout
from typing import BinaryIO

from nearfree.errors import ConfigError, printable

GET_WHOLE = "Fetch the file again, whole, and compare its size with the published one"
WRITE_ANEW = "Give a file as llama.cpp or the `gguf` package writes it, or convert the model anew"
_UNSIGNED = {size: Layout(f"<{letter}") for size, letter in ((4, "I"), (8, "Q"))}


class Stream:
    """A file's bytes in order; every error is a ConfigError that names the file.

    The parameter `what` of its methods names the bytes in messages.
    """

    def __init__(self, file: BinaryIO, path: str, size: int) -> None:
        self._file, self.path, self.size = file, path, size
        self.position = 0

    @property
    def left(self) -> int:
        """Number of bytes from the current position to the end."""
        return self.size - self.position

    def wrong(self, what: str, remedy: str = WRITE_ANEW) -> ConfigError:
        """Return the error that a file is wrong; `what` is the rest of the sentence."""
        return ConfigError(printable(f"{self.path} {what}"), remedy=remedy)

    def need(self, count: int, what: str) -> None:
        """Raise ConfigError unless `count` bytes are left."""
        if count > self.left:
            raise self.wrong(
                f"ends within {what}: {count} bytes from byte {self.position} on, and it has "
                f"{self.size}",
                GET_WHOLE,
            )

    def take(self, count: int, what: str) -> bytes:
        """Return the next `count` bytes."""
        self.need(count, what)
        raw = self._file.read(count)
        if len(raw) != count:
            raise self.wrong(f"grew shorter while it was read, within {what}", GET_WHOLE)
        self.position += count
        return raw

    def skip(self, count: int, what: str) -> None:
        """Skip the next `count` bytes."""
        self.need(count, what)
        self.position += count
        self._file.seek(self.position)

    def integer(self, size: int, what: str) -> int:
        """Return an unsigned integer of `size` bytes, 4 or 8."""
        value: int = _UNSIGNED[size].unpack(self.take(size, what))[0]
        return value

    def text(self, limit: int, what: str) -> str:
        """Return a string of at most `limit` bytes, which must be UTF-8."""
        length = self.integer(8, f"the length of {what}")
        if length > limit:
            raise self.wrong(f"has {length} bytes for {what}, and the limit is {limit}")
        raw = self.take(length, what)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise self.wrong(f"has {raw!r:.80} for {what}, which is no UTF-8") from None
