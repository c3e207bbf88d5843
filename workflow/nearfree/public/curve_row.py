"""One row of a curve file: every field is checked, and an error names its column."""

import math
import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import get_args

import msgspec
from msgspec import Struct

from nearfree.core.modules.dense_ffn import GEMM
from nearfree.core.modules.indexer import LOGITS, SELECT
from nearfree.core.modules.mla import ABSORBED, NAIVE
from nearfree.core.modules.registry import MAIN
from nearfree.core.modules.routing import named_routing
from nearfree.core.precision import ELEMENT_BYTES
from nearfree.core.setting import FIELDS, MODULES, STORED, Operation, Setting
from nearfree.core.setting_check import check_setting
from nearfree.core.setting_field import Field
from nearfree.errors import ConfigError
from nearfree.hardware.platforms import Platform, resolve
from nearfree.log.line import without_private

CURVE_FIELDS = tuple(
    sorted(
        (
            name
            for name, field in FIELDS.items()
            if field.role in ("axis", "shape") or name in (*STORED, "api")
        ),
        key=lambda name: MODULES.index(FIELDS[name].modules[0]),
    )
)
"""The fields of a setting that a curve can have besides its module, backend and dtype."""
_ORIGINAL_MODULES = {GEMM.name, *(kind.name for kind in MAIN)}
"""Modules whose columns are required; columns of later modules are optional."""
COLUMNS = (
    *("platform", "module", "backend", "backend_version", "dtype", *CURVE_FIELDS),
    *("kernel", "n", "latency_us"),
)
"""The columns of a curve file, in any order."""
OPTIONAL = frozenset(
    {
        *("kernel", "api", *STORED),
        *(
            n
            for n in CURVE_FIELDS
            if FIELDS[n].optional or not _ORIGINAL_MODULES & {*FIELDS[n].modules}
        ),
    }
)
"""Columns that a file may lack."""
_DIGITS = re.compile(r"\d{1,9}", re.ASCII)
_DECIMAL = re.compile(r"\d{1,15}(?:\.\d{0,30})?(?:[eE][+-]?\d{1,2})?", re.ASCII)
_CHOICES = {
    "module": MODULES,
    **dict.fromkeys(("dtype", *STORED), tuple(ELEMENT_BYTES)),
    "operation": get_args(Operation),
    "api": (ABSORBED, NAIVE, LOGITS, SELECT),
    "gated": ("true", "false"),
}
_TEXT_LIMIT = 200
"""Characters of a text field."""


class OddFieldError(Exception):
    """A field with an invalid value: its column, what is wrong, and what to do."""

    def __init__(self, column: str, what: str, remedy: str) -> None:
        super().__init__(column, what, remedy)
        self.column = column
        self.what = what
        self.remedy = remedy


class Key(Struct, frozen=True):
    """The values that the rows of one curve share."""

    platform: str
    setting: Setting
    backend_version: str
    kernel: str | None


class Row(Struct, frozen=True):
    """One point of a curve."""

    key: Key
    n: int
    latency_us: float


def read_row(values: Mapping[str, str], platforms: Mapping[str, Platform]) -> Row:
    """Return the point in a row's fields; OddFieldError if one is invalid."""
    module = _choice(values, "module")
    for name in CURVE_FIELDS:
        if values.get(name) and module not in FIELDS[name].modules:
            raise OddFieldError(
                name, f"{values[name]!r:.80} does not apply to a {module}", "Leave it empty"
            )
    fields = {
        "module": module,
        "backend": _text(values, "backend"),
        "dtype": _choice(values, "dtype"),
        **{name: _field(values, FIELDS[name]) for name in CURVE_FIELDS},
    }
    setting = msgspec.convert(fields, Setting)
    try:
        check_setting(setting)
    except ConfigError as error:
        words = re.findall(r"\w+", error.what)
        name = next((word for word in words if word in COLUMNS), "module")
        raise OddFieldError(name, error.what, "Give a value that the module can have") from error
    return Row(
        key=Key(
            platform=_platform(values, platforms),
            setting=setting,
            backend_version=_text(values, "backend_version"),
            kernel=_text(values, "kernel") if values.get("kernel") else None,
        ),
        n=_whole_number(values, "n"),
        latency_us=_latency(values),
    )


def _platform(values: Mapping[str, str], platforms: Mapping[str, Platform]) -> str:
    name = _text(values, "platform")
    try:
        return resolve(dict(platforms), name)
    except ConfigError:
        known_names = [
            alias for platform, facts in platforms.items() for alias in (platform, *facts.aliases)
        ]
        nearest = get_close_matches(name.lower(), known_names, n=1)
        remedy = (
            f"Did you mean {nearest[0]}? Else"
            if nearest
            else f"Choose from {', '.join(platforms)}, or"
        )
        raise OddFieldError(
            "platform",
            f"{name!r} is not known",
            f"{remedy} add it to platforms.yaml",
        ) from None


def _routing(text: str) -> str:
    try:
        return text if text == "power_law" else named_routing(text)
    except ConfigError as error:
        raise OddFieldError("routing", _misfit(text), error.remedy) from error


def _choice(values: Mapping[str, str], column: str) -> str:
    if column == "routing":
        return _routing(values[column])
    choices = _CHOICES[column]
    if values[column] not in choices:
        raise OddFieldError(column, _misfit(values[column]), f"Choose from {', '.join(choices)}")
    return values[column]


def _text(values: Mapping[str, str], column: str) -> str:
    text = values[column]
    if not text or len(text) > _TEXT_LIMIT or not text.isprintable():
        raise OddFieldError(
            column, _misfit(text), f"Give plain text of at most {_TEXT_LIMIT} letters"
        )
    if without_private(text) != text:
        raise OddFieldError(
            column, "holds a URL or a folder of yours", "Name it without: events are kept for good"
        )
    return text


def _field(values: Mapping[str, str], field: Field) -> object:
    """Return a field's value, its default if empty; `check_setting` checks it later."""
    if not values.get(field.name) and (field.optional or field.default is None):
        return field.default
    if field.kind is int:
        return _whole_number(values, field.name, least=field.least)
    chosen = _choice(values, field.name)
    return chosen == "true" if field.kind is bool else chosen


def _whole_number(values: Mapping[str, str], column: str, *, least: int = 1) -> int:
    text = values[column]
    if not _DIGITS.fullmatch(text) or int(text) < least:
        remedy = f"Give a whole number from {least} to 999999999"
        raise OddFieldError(column, _misfit(text), remedy)
    return int(text)


def _latency(values: Mapping[str, str]) -> float:
    text = values["latency_us"]
    value = float(text) if _DECIMAL.fullmatch(text) else math.nan
    if not 0.0 < value < math.inf:
        remedy = "Give microseconds as a positive decimal number"
        raise OddFieldError("latency_us", _misfit(text), remedy)
    return value


def _misfit(text: str) -> str:
    return f"{text[:60]!r} does not fit" if text else "is empty"
