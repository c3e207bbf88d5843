"""Data inside the page: JSON, compressed, in blocks that a browser reads when it is first asked."""

import base64
import gzip
from collections.abc import Mapping

import msgspec
import polars as pl
from msgspec import Struct

from nearfree.derive.tables.schema import IDS, Table

_FORMULA_FIELDS = ("predictor", "module", "composition", "origin")
"""What decides between formulas of one table."""


class Block(Struct, frozen=True):
    """One block: the id of its element, and its text, which holds no markup."""

    name: str
    text: str


def block(name: str, data: object) -> Block:
    """Return data as a block: the same bytes for the same data."""
    raw = data if isinstance(data, bytes) else msgspec.json.encode(data)
    return Block(name, base64.b64encode(gzip.compress(raw, 9, mtime=0)).decode())


def packed(table: Table, frame: pl.DataFrame) -> dict[str, object]:
    """Return a table by columns, each value written once where that is shorter.

    The ids of rows lack the table's name; formulas are told once, and by place for each row.
    """
    formula_places: dict[tuple[str, ...], int] = {}
    fields = [name for name in _FORMULA_FIELDS if name in frame.columns]
    found: dict[tuple[object, ...], int] = {}
    places = []
    for key in frame.select(fields).rows() if fields else [()] * frame.height:
        if key not in found:
            made = table.formula_of(dict(zip(fields, key, strict=True)))
            found[key] = formula_places.setdefault(
                (made.text, made.paper, made.code), len(formula_places)
            )
        places.append(found[key])
    return {
        "table": table.name,
        "about": table.row,
        "key": table.key,
        "ids": [row_id.partition(":")[2] for row_id in frame["row_id"]],
        "columns": {name: _column(frame[name]) for name in table.body},
        "meanings": {name: column.meaning for name, column in table.body.items()},
        "from": _lists(frame["from_ids"]),
        "formulas": list(formula_places),
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
    codes = [[places.setdefault(each, len(places)) for each in row] for row in ids.to_list()]
    return {"values": list(places), "codes": codes}
