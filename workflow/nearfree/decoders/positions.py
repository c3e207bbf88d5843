"""The largest number of positions, cached and new, that a model's file allows."""

from collections.abc import Iterator, Mapping
from typing import Any

from nearfree.decoders.keys import Keys

_FIRST = "model_max_length"
"""The key that counts whatever the others say, as in Command R's files."""
_NAMES = (
    *("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"),
    *("max_sequence_length", "max_seq_length", "seq_len"),
)
_ALREADY_SCALED = ("su", "longrope", "llama3")
"""Scalings of rotations for which the positions in the file are already scaled."""
_LARGEST = 1e12
"""Larger numbers count as absent."""


def allowed_positions(keys: Keys) -> int | None:
    """Return the largest number of positions of a request, as vLLM derives it from a config.json.

    It is the number under `model_max_length`, else the smallest under one of the usual keys, times
    the scaling factor of rotations; under YaRN it is the original number of positions times that
    factor. It is None if no key gives it. Values that are no positive numbers count as absent, because no forward depends on them.
    Source: vllm-project/vllm at 0052a5b8, vllm/config/model.py, _get_and_verify_max_len.
    """
    sizes = [size for name in _NAMES if (size := _size(keys.values.get(name)))]
    positions, factor = _size(keys.values.get(_FIRST)) or min(sizes, default=None), 1.0
    if positions is None:
        return None
    if "gemma3" not in str(keys.values.get("model_type")):
        for scaling in _scalings(keys.values):
            kind = scaling.get("rope_type", scaling.get("type"))
            if kind not in _ALREADY_SCALED:
                factor = _size(scaling.get("factor")) or factor
                if kind == "yarn":
                    original = _size(scaling.get("original_max_position_embeddings"))
                    positions = original or positions
    return int(positions * factor) or None


def _scalings(values: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the scaling of rotations, one per kind of layer if the file has several."""
    scaling = values.get("rope_scaling") or values.get("rope_parameters")
    if isinstance(scaling, dict):
        by_kind = [value for value in scaling.values() if isinstance(value, dict)]
        yield from by_kind if by_kind and len(by_kind) == len(scaling) else [scaling]


def _size(value: Any) -> float | None:
    """Return a positive number, None for any other value."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and 0 < value < _LARGEST else None
