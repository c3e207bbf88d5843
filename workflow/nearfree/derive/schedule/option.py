"""The text that a user gives to an engine, and the source lines of the engine that read it.

A digest covers the lines' text, so an option is valid for every release where the text is the same.
"""

from collections.abc import Iterable
from typing import NamedTuple


class Parser(NamedTuple):
    """A function, class or field of an engine that reads an option, and the digest of its text.

    `lines` are line numbers in `version`; `sha256` covers these lines, each with its line feed.
    """

    package: str
    version: str
    file: str
    name: str
    lines: tuple[int, int]
    sha256: str

    def __str__(self) -> str:
        first, last = self.lines
        where = f"{self.package} {self.version}, {self.file} lines {first}-{last}"
        return f"{where}: {self.name}, SHA-256 {self.sha256}"


def parsers(
    package: str, version: str, rows: Iterable[tuple[str, str, tuple[int, int], str]]
) -> tuple[Parser, ...]:
    """Return the parsers of a release, given the file, name, lines and digest of each."""
    return tuple(Parser(package, version, *row) for row in rows)


class Option(NamedTuple):
    """One option of one engine.

    Parameters
    ----------
    place
        Where the text goes: a flag, a file, an environment variable.
    text
        The text to paste.
    notes
        What the engine does with it beyond what the text says.
    parsers
        The lines of the engine that read it; empty where no release reads it.
    """

    place: str
    text: str
    notes: tuple[str, ...]
    parsers: tuple[Parser, ...] = ()
