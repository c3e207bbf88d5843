"""The largest number of positions, cached and new, that engines derive from a model's file."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from nearfree.backends.names import is_since
from nearfree.decoders.keys import Keys
from nearfree.decoders.ranks.engines import SGLANG, VLLM

_FIRST = "model_max_length"
"""The key that counts in vLLM whatever the others say, as in Command R's files."""
_NAMES = (
    *("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"),
    *("max_sequence_length", "max_seq_length", "seq_len"),
)
_SGLANG_NAMES = (
    *("max_sequence_length", "seq_length", "max_seq_len", "model_max_length"),
    "max_position_embeddings",
)
"""The keys of which the first that is there counts in SGLang."""
_ALREADY_SCALED = ("su", "longrope", "llama3")
"""Scalings of rotations for which the positions in the file are already scaled."""
_YARN = ("yarn", "deepseek_yarn", "deepseek_llama_scaling")
_YARN_SCALED_SINCE = "0.30.0"
"""The first release of vLLM for which YaRN's positions are already scaled, too."""
_ORIGINAL = "original_max_position_embeddings"
_LARGEST = 1e12
"""Larger numbers count as absent."""


class Positions(NamedTuple):
    """The largest numbers of positions of a request, by engine; None if a file gives none.

    `earlier` is that of vLLM before 0.30.0.
    """

    vllm: int | None
    earlier: int | None
    sglang: int | None

    def of(self, engine: str, version: str | None) -> int | None:
        """Return the number for a release of an engine; an engine that is not read is as vLLM."""
        if engine == SGLANG.name:
            return self.sglang
        before = engine == VLLM.name and not is_since(version, _YARN_SCALED_SINCE)
        return self.earlier if before else self.vllm


def allowed_positions(keys: Keys) -> Positions:
    """Return the largest numbers of positions of a request, as engines derive them from a file.

    In vLLM it is the number under `model_max_length`, else the smallest under one of the usual
    keys, times the scaling factor of rotations; before 0.30.0 it was under YaRN the original number
    of positions times that factor. In SGLang it is the number under the first key that is there,
    times the factor unless the original number stands beside it. Values that are no positive
    numbers count as absent, because no forward depends on them.
    Sources: vllm 0.33.0, vllm/transformers_utils/model_arch_config_convertor.py:383-407 and
    vllm/config/model.py:2598-2634; 0.29.0, vllm/config/model.py:2450-2468; sglang 0.5.23,
    sglang/srt/utils/hf_transformers/common.py:668-694.
    """
    return Positions(
        _of_vllm(keys, (*_ALREADY_SCALED, *_YARN)),
        _of_vllm(keys, _ALREADY_SCALED),
        _of_sglang(keys),
    )


def _of_vllm(keys: Keys, already_scaled: tuple[str, ...]) -> int | None:
    sizes = [size for name in _NAMES if (size := _size(keys.values.get(name)))]
    positions, factor = _size(keys.values.get(_FIRST)) or min(sizes, default=None), 1.0
    if positions is None:
        return None
    for scaling in _scalings(keys.values):
        kind = scaling.get("rope_type", scaling.get("type"))
        if kind not in already_scaled:
            factor = _size(scaling.get("factor")) or factor
            if kind == "yarn":
                positions = _size(scaling.get(_ORIGINAL)) or positions
    return int(positions * factor) or None


def _of_sglang(keys: Keys) -> int | None:
    sizes = (size for name in _SGLANG_NAMES if (size := _size(keys.values.get(name))))
    positions, factor = next(sizes, None), 1.0
    if positions is None:
        return None
    for scaling in _scalings(keys.values):
        if _ORIGINAL not in scaling and scaling.get("rope_type") != "llama3":
            factor = _size(scaling.get("factor")) or factor
    return int(positions * factor) or None


def _scalings(values: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the scaling of rotations, one per kind of layer if the file has several.

    Gemma 3's positions are scaled in its file.
    """
    scaling = values.get("rope_scaling") or values.get("rope_parameters")
    if isinstance(scaling, dict) and "gemma3" not in str(values.get("model_type")):
        by_kind = [value for value in scaling.values() if isinstance(value, dict)]
        yield from by_kind if by_kind and len(by_kind) == len(scaling) else [scaling]


def _size(value: Any) -> float | None:
    """Return a positive number, None for any other value."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and 0 < value < _LARGEST else None
