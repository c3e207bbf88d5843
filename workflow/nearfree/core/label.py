"""Labels of settings and of table rows: field values as text, in the paper's notation."""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeGuard

from msgspec import json

from nearfree.core.setting import FIELDS, STORED, Setting
from nearfree.core.setting_field import Field

AXES = tuple(name for name, field in FIELDS.items() if field.role == "axis")
"""The fields that studies vary."""
SIZES = tuple(name for name in AXES if FIELDS[name].kind is int)
"""The axes that are numbers."""
Style = Literal["paper", "short", "column"]
"""How numbers are written: `E = 8`, `experts 8` (letters of axes alone), or by their columns."""
_SYMBOLS = {"n": "N"}
"""Symbols of columns that are not fields of a setting."""


def label(values: Mapping[str, Any], names: Iterable[str], style: Style = "paper") -> str:
    """Return columns of a row as text, such as `b = 4, balanced, k = 8`.

    Missing values and defaults of optional fields are left out.

    Parameters
    ----------
    style
        How numbers are written. Text values are written without a symbol, true flags by symbol.
    """
    columns = ((name, values.get(name)) for name in names)
    return ", ".join(_text(*column, style) for column in columns if not _omitted(*column))


def _text(name: str, value: object, style: Style) -> str:
    if isinstance(value, str) and name not in STORED:
        return value
    field, symbol = FIELDS.get(name), _symbol(name, style)
    if _always_shown(field):
        return field.words if value else f"not {field.words}"
    if value is True:
        return symbol
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return f"{symbol}{' = ' if style == 'paper' else ' '}{text}"


def _symbol(name: str, style: Style) -> str:
    field = FIELDS.get(name)
    if style == "column" or (style == "short" and field and field.role == "shape"):
        return name
    return field.symbol if field else _SYMBOLS.get(name, name)


def _omitted(name: str, value: object) -> bool:
    field = FIELDS.get(name)
    if value is None or (value is False and not _always_shown(field)):
        return True
    return not value if field is None else field.optional and value == field.default


def _always_shown(field: Field | None) -> TypeGuard[Field]:
    """Return whether a flag is shown when false, too: a `call` field without a default."""
    return field is not None and field.kind is bool and field.role == "call" and not field.optional


def ordered(names: Iterable[str], *first: str) -> tuple[str, ...]:
    """Return names with `first` moved to the front."""
    return (*first, *(name for name in names if name not in first))


NESTED = ordered(AXES, "context", "routing", "top_k")
"""The axes in the sort order of models' settings: batch varies fastest."""
_FACT_COLUMNS = ("platform", "basis", "dtype", "package", "versions", "path", "condition", "place")
_SETTING_COLUMNS = (
    "backend",
    "release",
    "file_type",
    "repack",
    "moe",
    "mask",
    "dtype",
    *STORED,
    *AXES,
)
_ROW_COLUMNS = ("take", "n", "role", "epsilon", "predictor", "basis")


def subject(row: Mapping[str, Any]) -> str:
    """Return the label of a table row's subject: a setting, or a fact of a platform or rule."""
    if "module" not in row and "model" not in row:
        return label(row, _FACT_COLUMNS, "column")
    module = "model" if row.get("model") else "module"
    return label(
        row, ("platform", "origin", "stream", module, *_SETTING_COLUMNS, *_ROW_COLUMNS), "column"
    )


def setting_key(setting: Setting) -> str:
    """Return a short stable name of a setting, the same on every machine (12 hex digits)."""
    return hashlib.sha256(json.encode(setting, order="deterministic")).hexdigest()[:12]
