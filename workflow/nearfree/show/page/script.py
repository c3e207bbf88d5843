"""The page's own script and style: put together from their files, and named by their hashes."""

import base64
from hashlib import sha256
from pathlib import Path

from markupsafe import Markup
from msgspec import Struct

_FOLDER = Path(__file__).parent / "assets"
_FILES = (
    *("data.js", "words.js", "events.js", "origins.js", "panel.js"),
    *("chart.js", "answers.js", "predicted.js", "observed.js", "explorer.js", "start.js"),
)
"""By idea, in the order in which they use each other."""


class Inline(Struct, frozen=True):
    """What stands inside the page, and how the page's policy names it."""

    text: Markup
    source: str


def script() -> Inline:
    """Return the page's script."""
    parts = "\n".join((_FOLDER / name).read_text(encoding="utf-8") for name in _FILES)
    return _inline(f"'use strict';\n(() => {{\n{parts}}})();\n")


def style() -> Inline:
    """Return the page's style."""
    return _inline((_FOLDER / "page.css").read_text(encoding="utf-8"))


def _inline(text: str) -> Inline:
    digest = base64.b64encode(sha256(text.encode()).digest()).decode()
    return Inline(Markup(text), f"'sha256-{digest}'")  # noqa: S704 (our own files)
