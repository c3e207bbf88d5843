"""What the page holds inside: tables as compressed blocks, its own script and its style.

A browser unpacks a block of JSON when the reader first needs it. The page's policy names script and
style by their hashes.
"""

import base64
import gzip
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

import polars as pl
from markupsafe import Markup
from msgspec import Struct, json

from nearfree.core.label import AXES, ordered
from nearfree.core.setting import FIELDS, STORED
from nearfree.derive.outlook.about import CONDITION
from nearfree.derive.predict.forecast.forecast import LARGEST
from nearfree.derive.tables.columns import IDS
from nearfree.derive.tables.schema import Table
from nearfree.show.text.forecast import BELOW_10, ROUNDING

FORMATS = {"weights": "weights", "dtype": "products with", "kv_dtype": "cache"}
"""The fields that name a deployment's formats, and what stands before each."""
_FORMULA_FIELDS = ("predictor", "module", "composition", "origin")
"""What decides between formulas of one table."""
_FOLDER = Path(__file__).parent / "assets"
_FILES = (
    *("data.js", "words.js", "events.js", "origins.js", "panel.js"),
    *("chart.js", "answers.js", "predicted.js", "observed.js", "explorer.js", "start.js"),
)
"""By idea, in the order in which they use each other."""


class Block(Struct, frozen=True):
    """One block: the id of its element, and its text, which holds no markup."""

    name: str
    text: str


def block(name: str, data: object) -> Block:
    """Return data as a block: the same bytes for the same data."""
    raw = data if isinstance(data, bytes) else json.encode(data)
    return Block(name, base64.b64encode(gzip.compress(raw, 9, mtime=0)).decode())


def packed(table: Table, frame: pl.DataFrame) -> dict[str, object]:
    """Return a table by columns, each value written once where that is shorter.

    The ids of rows lack the table's name; each row holds its formula's place in one list.
    """
    formulas: dict[tuple[str, ...], int] = {}
    fields = [name for name in _FORMULA_FIELDS if name in frame.columns]
    formula_of: dict[tuple[object, ...], int] = {}
    places = []
    for key in frame.select(fields).rows() if fields else [()] * frame.height:
        if key not in formula_of:
            made = table.formula_of(dict(zip(fields, key, strict=True)))
            formula_of[key] = formulas.setdefault((made.text, made.paper, made.code), len(formulas))
        places.append(formula_of[key])
    return {
        "table": table.name,
        "about": table.row,
        "key": table.key,
        "ids": [row_id.partition(":")[2] for row_id in frame["row_id"]],
        "columns": {name: _column(frame[name]) for name in table.body},
        "meanings": {name: column.meaning for name, column in table.body.items()},
        "from": _lists(frame["from_ids"]),
        "formulas": list(formulas),
        "beside": table.beside,
        "formula": places,
    }


def _column(values: pl.Series) -> Mapping[str, object]:
    plain = values.to_list()
    if values.dtype == IDS or isinstance(values.dtype, pl.List):
        return {"plain": plain}
    places: dict[object, int] = {}
    codes = [places.setdefault(value, len(places)) for value in plain]
    if len(places) == 1:
        return {"same": plain[0]}
    if 2 * len(places) < len(plain):
        return {"values": list(places), "codes": codes}
    return {"plain": plain}


def _lists(ids: pl.Series) -> Mapping[str, object]:
    places: dict[str, int] = {}
    codes = [
        [places.setdefault(identifier, len(places)) for identifier in row] for row in ids.to_list()
    ]
    return {"values": list(places), "codes": codes}


class Inline(Struct, frozen=True):
    """The text of a script or style, and its name in the page's policy."""

    text: Markup
    source: str


def facts() -> dict[str, object]:
    """Return the data of settings and deployments that the script uses, by its constants' names.

    `FIELDS` are the fields of a setting; by `CHOICES` the explorer narrows measured rows, and by
    `CONDITION` those of deployments, whose formats are `FORMATS`: by their entry last, which tells
    apart those that differ in nothing else. `LARGEST` is the largest N that their predictions look
    at; by `ROUNDING` and `BELOW_10` a boundary is said as `nearfree predict` prints it.
    """
    axes = ordered(AXES, "routing", "top_k", "context")
    first = ("platform", "module", "model", "backend", "moe", "stream", "dtype", *axes)
    return {
        "FIELDS": {
            name: {
                "letter": field.letter or (field.words if name in STORED else ""),
                "label": " ".join(dict.fromkeys(filter(None, (field.words, field.letter)))),
                "axis": name in (*AXES, *STORED),
                "quiet": field.default if field.optional else None,
            }
            for name, field in FIELDS.items()
        },
        "CHOICES": (*ordered(FIELDS, *first), "setting_key", "epsilon"),
        "CONDITION": [*(name for name in CONDITION if name != "deployment"), "deployment"],
        "FORMATS": FORMATS,
        "LARGEST": LARGEST,
        "ROUNDING": ROUNDING,
        "BELOW_10": BELOW_10,
    }


def script() -> Inline:
    """Return the page's script."""
    data = (f"const {name} = {json.encode(value).decode()};" for name, value in facts().items())
    parts = "\n".join((*data, *((_FOLDER / name).read_text(encoding="utf-8") for name in _FILES)))
    return _inline(f"'use strict';\n(() => {{\n{parts}}})();\n")


def style() -> Inline:
    """Return the page's style."""
    return _inline((_FOLDER / "page.css").read_text(encoding="utf-8"))


def _inline(text: str) -> Inline:
    digest = base64.b64encode(sha256(text.encode()).digest()).decode()
    return Inline(Markup(text), f"'sha256-{digest}'")  # noqa: S704 (our own files)
