"""What a Vega-Lite specification says: its texts, and the titles of its axes."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_EDGES = ("x", "y")
_SPEC = re.compile(r'<script type="application/json" id="spec">(.*?)</script>', re.DOTALL)


def read_spec(path: Path) -> dict[str, Any]:
    """Return the specification that a figure's page draws."""
    (text,) = _SPEC.findall(path.read_text())
    return json.loads(text)


def says(part: Any) -> Iterator[str]:
    """Yield every text of a specification, data included."""
    if isinstance(part, str):
        yield part
    elif isinstance(part, dict):
        for value in part.values():
            yield from says(value)
    elif isinstance(part, list):
        for value in part:
            yield from says(value)


def channels(part: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every channel of every mark, by name."""
    if isinstance(part, dict):
        yield from part.get("encoding", {}).items()
        for name, value in part.items():
            if name not in {"encoding", "datasets"}:
                yield from channels(value)
    elif isinstance(part, list):
        for value in part:
            yield from channels(value)


def has_titled_axes(spec: dict[str, Any]) -> bool:
    """Return whether some mark gives each of x and y a title, or nothing stands on that axis.

    An axis whose labels are names, such as of backends, says by them what it shows.
    """
    every = list(channels(spec))
    titled = {name for name, axis in every if name in _EDGES and axis.get("title")}
    named = {
        name
        for name, axis in every
        if name in _EDGES and axis.get("type") == "nominal" and "title" in axis
    }
    return titled | named == {*_EDGES}
