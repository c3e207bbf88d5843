"""C++ text with parts written otherwise, each on the lines where it stands."""

from collections.abc import Iterable
from typing import NamedTuple


class Edit(NamedTuple):
    """Bytes of a text from `start` on, up to `end`, and what is written there."""

    start: int
    end: int
    text: str


def written(content: str, edits: Iterable[Edit]) -> str:
    """Return a text with edits made; of two that overlap the one around the other holds.

    What is written keeps the lines of what stood there, so that all else stays on its own.
    """
    raw, place, parts = content.encode(), 0, []
    for edit in sorted(edits, key=lambda each: (each.start, -each.end)):
        if edit.start < place:
            continue
        lines = b"\n" * raw[edit.start : edit.end].count(b"\n")
        parts += [raw[place : edit.start], edit.text.encode(), lines]
        place = edit.end
    return b"".join([*parts, raw[place:]]).decode()
