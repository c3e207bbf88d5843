"""The page's own script and style: put together from their files, and named by their hashes."""

import base64
from hashlib import sha256
from pathlib import Path

from markupsafe import Markup
from msgspec import Struct, json

from nearfree.core.label import AXES, ordered
from nearfree.core.setting import FIELDS
from nearfree.derive.outlook.outlook import ABOUT

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


def facts() -> dict[str, object]:
    """Return what the script is told of settings and deployments, by the names that it uses.

    `FIELDS` are the fields of a setting; by `CHOICES` the explorer narrows measured rows, and by
    `CONDITION` those of deployments.
    """
    axes = ordered(AXES, "routing", "top_k", "context")
    first = ("platform", "module", "model", "backend", "moe", "stream", "dtype", *axes)
    return {
        "FIELDS": {
            name: {
                "letter": field.letter,
                "label": " ".join(dict.fromkeys(filter(None, (field.words, field.letter)))),
                "axis": field.role == "axis",
                "quiet": field.default if field.optional else None,
            }
            for name, field in FIELDS.items()
        },
        "CHOICES": (*ordered(FIELDS, *first), "setting_key", "epsilon"),
        "CONDITION": [name for name in ABOUT if name != "deployment"],
    }


def script() -> Inline:
    """Return the page's script."""
    told = (f"const {name} = {json.encode(value).decode()};" for name, value in facts().items())
    parts = "\n".join((*told, *((_FOLDER / name).read_text(encoding="utf-8") for name in _FILES)))
    return _inline(f"'use strict';\n(() => {{\n{parts}}})();\n")


def style() -> Inline:
    """Return the page's style."""
    return _inline((_FOLDER / "page.css").read_text(encoding="utf-8"))


def _inline(text: str) -> Inline:
    digest = base64.b64encode(sha256(text.encode()).digest()).decode()
    return Inline(Markup(text), f"'sha256-{digest}'")  # noqa: S704 (our own files)
