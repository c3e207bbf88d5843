"""The list of a platform's drawn figures, which the report reads."""

from msgspec import Struct


class Figure(Struct, frozen=True, kw_only=True):
    """One drawn figure: its file's stem, what it shows, and the rows that its marks stand for."""

    name: str
    caption: str
    rows: tuple[str, ...]
