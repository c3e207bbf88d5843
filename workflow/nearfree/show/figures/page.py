"""A figure's page: its specification as data, drawn by the one script that all figures share."""

import html
import json
from functools import cache
from pathlib import Path
from typing import Any

import altair as alt
import vl_convert

from nearfree.log.document import replace

BUNDLE = "vega.js"
_DRAW = """
vegaEmbed("#vis", JSON.parse(document.getElementById("spec").textContent), {
  mode: "vega-lite", ast: true, actions: {export: true, source: false, compiled: false,
  editor: false},
}).catch((error) => { document.getElementById("vis").textContent = String(error); });
"""
"""Without `ast` Vega would make functions of text, which the page forbids."""
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
    """Return the script that draws: Vega, Vega-Lite and Vega-Embed, and the call of them."""
    version = ".".join(alt.VEGALITE_VERSION.split(".")[:2])
    return str(vl_convert.javascript_bundle(_DRAW, vl_version=version)).encode()


def write_bundle(folder: Path) -> Path:
    """Make sure that a folder holds the script, whoever else writes it at the same time."""
    path = folder / BUNDLE
    if not path.is_file() or path.read_bytes() != bundle():
        replace(path, bundle())
    return path


def page(spec: dict[str, Any], title: str) -> bytes:
    """Return the page of a specification; no text of it can end the script that holds it."""
    inside = json.dumps(spec, allow_nan=False).replace("<", r"\u003c")
    return _PAGE.format(title=html.escape(title), spec=inside, bundle=BUNDLE).encode()
