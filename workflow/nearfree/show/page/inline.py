"""The embedded parts of the page: tables as compressed blocks, the script and the style.

The script inflates a block of JSON when it is first needed. The page's content security policy
names script and style by their hashes.
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
"""The fields of a deployment's formats, and the words in front of each."""
_FORMULA_FIELDS = ("predictor", "module", "composition", "origin")
"""Columns that select among the formulas of a table."""
_FOLDER = Path(__file__).parent / "assets"
_FILES = (
    *("data.js", "words.js", "events.js", "origins.js", "panel.js"),
    *("chart.js", "answers.js", "predicted.js", "observed.js", "explorer.js", "start.js"),
)
"""The script's files, each before those that use it."""


class Block(Struct, frozen=True):
    """A block: the name of its element, and its text, which contains no markup."""

    name: str
    text: str


def block(name: str, data: object) -> Block:
    """Return data as a block; equal data give equal bytes."""
    raw = data if isinstance(data, bytes) else json.encode(data)
    return Block(name, base64.b64encode(gzip.compress(raw, 9, mtime=0)).decode())


def packed(table: Table, frame: pl.DataFrame) -> dict[str, object]:
    """Return a table by columns, with a dictionary encoding where that is shorter.

    The ids of rows omit the table's name; `formula` has the index of each row's formula.
    """
    formulas: dict[tuple[str, ...], int] = {}
    fields = [name for name in _FORMULA_FIELDS if name in frame.columns]
    formula_of: dict[tuple[object, ...], int] = {}
    formula_indices = []
    for key in frame.select(fields).rows() if fields else [()] * frame.height:
        if key not in formula_of:
            formula = table.formula_of(dict(zip(fields, key, strict=True)))
            text = (formula.text, formula.paper, formula.code)
            formula_of[key] = formulas.setdefault(text, len(formulas))
        formula_indices.append(formula_of[key])
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
        "formula": formula_indices,
    }


def _column(values: pl.Series) -> Mapping[str, object]:
    plain = values.to_list()
    if values.dtype == IDS or isinstance(values.dtype, pl.List):
        return {"plain": plain}
    index_of_value: dict[object, int] = {}
    codes = [index_of_value.setdefault(value, len(index_of_value)) for value in plain]
    if len(index_of_value) == 1:
        return {"same": plain[0]}
    if 2 * len(index_of_value) < len(plain):
        return {"values": list(index_of_value), "codes": codes}
    return {"plain": plain}


def _lists(ids: pl.Series) -> Mapping[str, object]:
    index_of_id: dict[str, int] = {}
    codes = [
        [index_of_id.setdefault(identifier, len(index_of_id)) for identifier in row]
        for row in ids.to_list()
    ]
    return {"values": list(index_of_id), "codes": codes}


class Inline(Struct, frozen=True):
    """The text of a script or style, and its hash in the content security policy."""

    text: Markup
    source: str


def facts() -> dict[str, object]:
    """Return the constants of the script by name.

    `FIELDS` are the fields of a setting. The explorer filters measured rows by `CHOICES`, and
    deployments by `CONDITION`, whose last column, the entry, separates deployments that are equal
    in all others. `FORMATS` are the formats of a deployment. `LARGEST` is the largest N of
    predictions; `ROUNDING` and `BELOW_10` round a boundary as `nearfree predict` does.
    """
    axes = ordered(AXES, "routing", "top_k", "context")
    leading = ("platform", "module", "model", "backend", "moe", "stream", "dtype", *axes)
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
        "CHOICES": (*ordered(FIELDS, *leading), "setting_key", "epsilon"),
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
    return Inline(Markup(text), f"'sha256-{digest}'")  # noqa: S704 (files of this package)
