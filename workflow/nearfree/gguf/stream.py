"""The bytes of a header, taken one value after another, and never more than the file has."""

from struct import Struct as Layout
from typing import BinaryIO

from nearfree.errors import ConfigError, printable

GET_WHOLE = "Fetch the file again, whole, and compare its size with the published one"
WRITE_ANEW = "Give a file as llama.cpp or the `gguf` package writes it, or convert the model anew"
_WHOLE = {size: Layout(f"<{letter}") for size, letter in ((4, "I"), (8, "Q"))}


class Stream:
    """A file's bytes in order; every mistake is a ConfigError that names the file.

    Parameters
    ----------
    file
        Open for reading bytes, at its start.
    path
        What messages call it.
    """

    def __init__(self, file: BinaryIO, path: str, size: int) -> None:
        self._file, self.path, self.size = file, path, size
        self.position = 0

    @property
    def left(self) -> int:
        """Bytes from here to the end."""
        return self.size - self.position

    def wrong(self, what: str, remedy: str = WRITE_ANEW) -> ConfigError:
        """Return the error that says what is wrong with the file."""
        return ConfigError(printable(f"{self.path} {what}"), remedy=remedy)

    def need(self, count: int, what: str) -> None:
        """Raise ConfigError unless as many bytes are left."""
        if count > self.left:
            raise self.wrong(
                f"ends within {what}: {count} bytes from byte {self.position} on, and it has "
                f"{self.size}",
                GET_WHOLE,
            )

    def take(self, count: int, what: str) -> bytes:
        """Return the next bytes, which belong to `what`."""
        self.need(count, what)
        found = self._file.read(count)
        if len(found) != count:
            raise self.wrong(f"grew shorter while it was read, within {what}", GET_WHOLE)
        self.position += count
        return found

    def skip(self, count: int, what: str) -> None:
        """Pass over bytes that belong to `what`."""
        self.need(count, what)
        self.position += count
        self._file.seek(self.position)

    def whole(self, size: int, what: str) -> int:
        """Return an unsigned number of 4 or 8 bytes."""
        found: int = _WHOLE[size].unpack(self.take(size, what))[0]
        return found

    def text(self, most: int, what: str) -> str:
        """Return a text of at most as many bytes, which must be UTF-8."""
        length = self.whole(8, f"the length of {what}")
        if length > most:
            raise self.wrong(f"has {length} bytes for {what}, and {most} is the most")
        raw = self.take(length, what)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise self.wrong(f"has {raw!r:.80} for {what}, which is no UTF-8") from None
