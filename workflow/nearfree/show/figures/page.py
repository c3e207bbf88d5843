"""A figure's page: its specification as data, drawn by a script that all figures share."""

import html
import json
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import altair as alt
import vl_convert

from nearfree.log.document import replace
from nearfree.log.line import sha256

BUNDLE = "vega.js"
_DRAW = """
vegaEmbed("#vis", JSON.parse(document.getElementById("spec").textContent), {
  mode: "vega-lite", ast: true, actions: {export: true, source: false, compiled: false,
  editor: false},
}).catch((error) => { document.getElementById("vis").textContent = String(error); });
"""
"""With `ast` Vega interprets expressions; else it would compile text, which the page forbids."""
_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src 'self' file:; \
style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>body {{ margin: 1rem; background: #fff; }} #vis {{ overflow-x: auto; }}</style>
</head>
<body>
<div id="vis"></div>
<script type="application/json" id="spec">{spec}</script>
<script src="../{bundle}"></script>
</body>
</html>
"""


@cache
def bundle() -> bytes:
    """Return the script that draws: Vega, Vega-Lite and Vega-Embed, and the call of them.

    Its first line has the versions that made it, and the digest of the rest.
    """
    script = str(vl_convert.javascript_bundle(_DRAW, vl_version=vega_lite())).encode()
    return _first_line(script) + b"\n" + script


def vega_lite() -> str:
    """Return the version of Vega-Lite that draws, as vl-convert spells it."""
    return ".".join(alt.VEGALITE_VERSION.split(".")[:2])


def _first_line(script: bytes) -> bytes:
    made_by = f"vl-convert {metadata.version('vl-convert-python')}, Vega-Lite {vega_lite()}"
    return f"// {made_by}, {sha256(_DRAW.encode())}, {sha256(script)}".encode()


def write_bundle(folder: Path) -> Path:
    """Write the script into a folder, unless a complete one of the same versions is there.

    Making it takes longer than drawing all figures. Concurrent writers are safe.
    """
    path = folder / BUNDLE
    head, _, script = path.read_bytes().partition(b"\n") if path.is_file() else (b"", b"", b"")
    if head != _first_line(script):
        replace(path, bundle())
    return path


def page(spec: dict[str, Any]) -> bytes:
    """Return the page of a specification, under the title of its chart.

    It is escaped, so that no text can end its script element.
    """
    title = spec["title"]["text"]
    inside = json.dumps(spec, allow_nan=False).replace("<", r"\u003c")
    return _PAGE.format(title=html.escape(title), spec=inside, bundle=BUNDLE).encode()
