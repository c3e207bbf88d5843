"""What is pasted into an engine, and the lines of the engine that read it.

A digest is of the lines' own text: what a schedule says holds for any release where it is the same.
"""

from typing import NamedTuple


class Parser(NamedTuple):
    """A function, class or field of an engine, and the digest of its text.

    `lines` are those of `version`; `sha256` is of the same lines, each with its line feed.
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


class Option(NamedTuple):
    """One option of one engine.

    Parameters
    ----------
    place
        Where the text goes: a flag, a file, an environment variable.
    text
        The text to paste.
    notes
        What the engine does with it that the text does not say.
    parsers
        The lines of the engine that read it; none where no release reads it.
    """

    place: str
    text: str
    notes: tuple[str, ...]
    parsers: tuple[Parser, ...] = ()
