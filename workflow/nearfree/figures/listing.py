"""The list of a platform's drawn figures, which the report reads."""

from msgspec import Struct

OUTLOOK = "outlook"
"""The part of the report that shows what is predicted of models."""
MODELS = "models"
"""The part of a platform's section that shows the models that were measured there."""


class Figure(Struct, frozen=True, kw_only=True):
    """One drawn figure: its file's stem, what it shows, and the rows that its marks stand for.

    `about` is the part of the report that shows it, where a scope's figures go to several.
    """

    name: str
    caption: str
    rows: tuple[str, ...]
    about: str = ""
