"""What a row speaks of, in words."""

from collections.abc import Mapping

_OF_A_FACT = ("platform", "basis", "dtype", "package", "versions", "path", "condition", "place")
_OF_A_SETTING = (
    *("platform", "origin", "stream", "module", "backend", "dtype", "batch", "context"),
    *("top_k", "routing", "take", "n", "epsilon", "predictor", "basis"),
)
_OF_A_MODEL_SETTING = (
    *("platform", "origin", "stream", "model", "backend", "moe", "mask", "dtype", "batch"),
    *("context", "top_k", "routing", "take", "n", "role", "epsilon", "predictor", "basis"),
)
_OF_A_MODEL = (
    *("model", "model_type", "platform", "attention", "moe", "package", "version", "module"),
    *("routing", "dtype", "batch", "context", "experts", "top_k", "term", "reference"),
    *("query_group", "baseline", "predictor", "composition", "epsilon"),
)


def subject(row: Mapping[str, object]) -> str:
    """Return what a row speaks of, in the fields that it has."""
    parts = []
    for field in _fields(row):
        value = row.get(field)
        if value not in (None, "", 0):
            named = isinstance(value, int | float)
            parts.append(f"{field} {_number(value)}" if named else str(value))
    return ", ".join(parts)


def _fields(row: Mapping[str, object]) -> tuple[str, ...]:
    """Return what tells a row apart: of a model, measured or not, of a setting, or of a fact."""
    if "origin" in row and "module" in row:
        return _OF_A_MODEL_SETTING if row.get("model") else _OF_A_SETTING
    if {"model", "model_type", "term"} & row.keys():
        return _OF_A_MODEL
    return _OF_A_SETTING if "module" in row else _OF_A_FACT


def _number(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
