"""What to hand to an engine: a text, where it goes, and the lines of the engine that read it."""

from msgspec import Struct

from nearfree.derive.schedule.parsers import Parser


class Option(Struct, frozen=True, kw_only=True):
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
