"""How many positions a model's file allows, cached and new ones together."""

from collections.abc import Iterator, Mapping
from typing import Any

from nearfree.decoders.keys import Keys

_NAMES = (
    *("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"),
    *("model_max_length", "max_sequence_length", "max_seq_length", "seq_len"),
)
_SAID_SCALED = ("su", "longrope", "llama3")
"""Scalings of rotations whose positions the file says scaled."""
_MOST = 1e12
"""No size is larger."""


def allowed_positions(keys: Keys) -> int | None:
    """Return the most positions of a request, as vLLM takes them from a config.json.

    They are the least that one of the usual keys says, times the factor by which rotations are
    scaled; under YaRN those that the model was first trained on, times it. None where no key says
    it. What is no positive number counts as not there: no forward depends on it. Source:
    vllm-project/vllm at 0052a5b8, vllm/config/model.py, _get_and_verify_max_len.
    """
    said = [size for name in _NAMES if (size := _size(keys.values.get(name)))]
    if not said:
        return None
    positions, factor = min(said), 1.0
    if "gemma3" not in str(keys.values.get("model_type")):
        for scaling in _scalings(keys.values):
            kind = scaling.get("rope_type", scaling.get("type"))
            if kind not in _SAID_SCALED:
                factor = _size(scaling.get("factor")) or factor
                if kind == "yarn":
                    first = _size(scaling.get("original_max_position_embeddings"))
                    positions = first or positions
    return int(positions * factor) or None


def _scalings(values: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield what says how rotations are scaled, of each kind of layer that says its own."""
    said = values.get("rope_scaling") or values.get("rope_parameters")
    if isinstance(said, dict):
        inner = [each for each in said.values() if isinstance(each, dict)]
        yield from inner if inner and len(inner) == len(said) else [said]


def _size(value: Any) -> float | None:
    """Return a number above zero, None of anything else."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if number and 0 < value < _MOST else None
