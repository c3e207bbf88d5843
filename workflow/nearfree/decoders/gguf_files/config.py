"""The keys of a config.json that a GGUF file's metadata imply.

Source: llama.cpp v0.5.0: keys of src/llama-arch.cpp lines 163-330, and the conversion from
config.json of conversion/base.py lines 1390-1510.
"""

from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from struct import pack, unpack
from typing import Any

from nearfree.decoders.gguf_files.architectures import ARCHITECTURES, LAYER_NORMED
from nearfree.decoders.gguf_files.gemma import TWO_WIDTHS, windowed_kv_heads
from nearfree.decoders.gguf_files.latent import LATENT
from nearfree.decoders.gguf_files.metadata import (
    ANEW,
    drafting_layers,
    head_dim,
    layers_of,
    number_or,
    uniform_number,
)
from nearfree.decoders.gguf_files.states import (
    KV_HEADS,
    OF_ONE_PIECE,
    SOME_ATTEND,
    kv_heads_by_layer,
)
from nearfree.decoders.keys import Keys, read_object
from nearfree.errors import Refusals
from nearfree.gguf.header import GgufHeader, Long, refuse_part
from nearfree.gguf.matrices import EMBEDDING, HEAD, matrices
from nearfree.gguf.reader import is_gguf, read_header
from nearfree.gguf.types import PLAIN

_EXPERTS_WIDTH = "expert_feed_forward_length"
_ROUTER = "ffn_gate_inp"
_TOKENS = "tokenizer.ggml.tokens"
_LARGEST_FLOAT = 3e38
_BY_LAYER = ("head_count", "head_count_kv", "feed_forward_length")
"""Endings of keys whose value may be a list with a number per layer."""
_LOG_MULTIPLIER, _YARN_SLOPE = "rope.scaling.yarn_log_multiplier", 0.1
"""The key of mscale_all_dim, which files give times 0.1; engines take mscale to be equal to it."""
CACHE = "float16"
"""The default dtype of llama.cpp's KV cache. Here it is also the dtype of weights that are never
quantised, where all matrices of a file are quantised."""


def read_values(file: Path) -> dict[str, Any]:
    """Return the keys of a config.json, read from the file or implied by a GGUF file.

    Raises
    ------
    ConfigError
        As `read_object` and `read_header` do.
    RefusedError
        The GGUF file's architecture is not read, its keys contradict one another, or it is one part
        of several. The error gives every reason.
    """
    return gguf_values(read_header(file)) if is_gguf(file) else read_object(file)


def gguf_values(header: GgufHeader) -> dict[str, Any]:
    """Return a config.json's keys for a GGUF file; the errors are those of `read_values`."""
    refuse_part(header)
    file, metadata = Path(header.file), _json_values(header)
    all_keys = Keys(file, metadata)
    name = all_keys.text("general.architecture")
    if name not in ARCHITECTURES:
        near = get_close_matches(name[:80], ARCHITECTURES, n=3)
        known = ", ".join(near or ARCHITECTURES)
        remedy = f"{'Nearest' if near else 'Read'} are {known}; or give the model's config.json"
        raise all_keys.wrong("general.architecture", "is not read", remedy)
    prefix = f"{name}."
    own_metadata = {
        key.removeprefix(prefix): metadata[key] for key in metadata if key.startswith(prefix)
    }
    keys, refusals, values = Keys(file, own_metadata, prefix), Refusals(), dict[str, Any]()
    for read_keys in (_common, ARCHITECTURES[name]):
        with refusals.collect():
            values |= read_keys(keys, header)
    refusals.check()
    return values


def plain_format(header: GgufHeader) -> str:
    """Return the dtype of most unquantised weights in matrices, routers excluded.

    If other matrices are quantised, float32 does not count: it is the type of matrices that are too
    small to be quantised. Without any such matrix the result is `CACHE`.
    """
    candidates = [matrix for matrix in matrices(header) if matrix.part != _ROUTER]
    plain = [matrix for matrix in candidates if matrix.type.name in PLAIN]
    if len(plain) < len(candidates):
        plain = [matrix for matrix in plain if matrix.type.name != "f32"]
    elements_by_type: dict[str, int] = {}
    for matrix in plain:
        name = matrix.type.name
        elements_by_type[name] = elements_by_type.get(name, 0) + matrix.elements
    largest = max(elements_by_type, key=lambda name: elements_by_type[name], default="")
    return PLAIN.get(largest, CACHE)


def _json_values(header: GgufHeader) -> dict[str, Any]:
    """Return the metadata as JSON values, without values that are too long.

    A list with a number per layer becomes that number if all are equal.
    """
    values: dict[str, Any] = {}
    for key, value in header.metadata.items():
        if isinstance(value, tuple):
            is_uniform = key.endswith(_BY_LAYER) and len(set(value)) == 1
            values[key] = value[0] if is_uniform else list(value)
        elif not isinstance(value, Long):
            values[key] = _shortest(value) if isinstance(value, float) else value
    return values


def _shortest(value: float) -> float:
    """Return the number with fewest digits that is equal in float32: 1e-05 for 9.9999997e-06."""
    if not 0 < abs(value) < _LARGEST_FLOAT:
        return value
    rounded = (float(f"{value:.{digits}g}") for digits in range(1, 10))
    return next((number for number in rounded if unpack("f", pack("f", number)) == (value,)), value)


def _common(keys: Keys, header: GgufHeader) -> dict[str, Any]:
    """Return the keys that all architectures have."""
    refusals, values = Refusals(), dict[str, Any]()
    epsilon, epsilon_key = "rms_norm_eps", "layer_norm_rms_epsilon"
    if header.architecture in LAYER_NORMED:
        epsilon, epsilon_key = "layer_norm_eps", "layer_norm_epsilon"
    readers: dict[str, Callable[[], Any]] = {
        "hidden_size": lambda: keys.whole("embedding_length"),
        "num_hidden_layers": lambda: layers_of(keys, header),
        "vocab_size": lambda: _vocabulary(keys, header),
        "num_attention_heads": lambda: uniform_number(keys, "attention.head_count"),
        "num_key_value_heads": lambda: _kv_heads(keys, header),
        "head_dim": lambda: _head_dim(keys, header),
        epsilon: lambda: keys.number(f"attention.{epsilon_key}", most=1.0),
        "rope_theta": lambda: number_or(keys, "rope.freq_base", 10000.0),
    }
    for name, reader in readers.items():
        with refusals.collect():
            values[name] = reader()
    refusals.check()
    has_widths = header.architecture in TWO_WIDTHS
    own_widths = has_widths or header.architecture in OF_ONE_PIECE
    if not own_widths and keys.has("feed_forward_length") and not keys.has(_EXPERTS_WIDTH):
        values["intermediate_size"] = uniform_number(keys, "feed_forward_length")
    rotated = "rope.dimension_count_swa" if has_widths else "rope.dimension_count"
    rotary_width = keys.whole(rotated, default=values["head_dim"])
    if rotary_width != values["head_dim"]:
        values["partial_rotary_factor"] = rotary_width / values["head_dim"]
    values |= _scaling(keys, header)
    dtype = plain_format(header)
    quantised = {matrix.type.name for matrix in matrices(header)} - PLAIN.keys()
    section = {"quantization_config": {"quant_method": "gguf"}} if quantised else {}
    tied, drafting = HEAD not in header.by_name, drafting_layers(keys)
    values |= {"num_nextn_predict_layers": drafting} if drafting else {}
    return {**values, "torch_dtype": dtype, "tie_word_embeddings": tied, **section}


def _vocabulary(keys: Keys, header: GgufHeader) -> int:
    """Return the size of the vocabulary; all places that give it must agree."""
    tokens = header.metadata.get(_TOKENS)
    embedding = header.by_name.get(EMBEDDING)
    if isinstance(tokens, Long | tuple):
        count = tokens.length if isinstance(tokens, Long) else len(tokens)
    elif keys.has("vocab_size"):
        count = keys.whole("vocab_size")
    else:
        count = embedding.dims[-1] if embedding else 0
    if embedding is None or len(embedding.dims) != 2:
        raise keys.wrong("vocab_size", f"has no matrix {EMBEDDING} with a row per token", ANEW)
    if embedding.dims[1] != count:
        raise keys.wrong(
            "vocab_size",
            f"differs: {count} tokens are not the {embedding.dims[1]} rows of {EMBEDDING}",
            ANEW,
        )
    return count


def _head_dim(keys: Keys, header: GgufHeader) -> int:
    """Return the width of a head, or of one with a window where they differ.

    Of latent attention it is that of a head's rotated part, as in its class.
    """
    if header.architecture in TWO_WIDTHS:
        return keys.whole("attention.key_length_swa")
    has_latent = header.architecture in LATENT
    return keys.whole("rope.dimension_count") if has_latent else head_dim(keys)


def _kv_heads(keys: Keys, header: GgufHeader) -> int:
    if header.architecture in SOME_ATTEND:
        return max(kv_heads_by_layer(keys))
    if header.architecture in TWO_WIDTHS:
        return windowed_kv_heads(keys, header)
    heads = uniform_number(keys, "attention.head_count")
    has_latent = header.architecture in LATENT
    return heads if has_latent else uniform_number(keys, KV_HEADS, default=heads)


def _scaling(keys: Keys, header: GgufHeader) -> dict[str, Any]:
    """Return the scaling of rotations; factors in a tensor get a type that no forward has."""
    kind = keys.text("rope.scaling.type") if keys.has("rope.scaling.type") else "none"
    if any(name.startswith("rope_f") for name in header.by_name):
        return {"rope_scaling": {"rope_type": "factors in a tensor"}}
    if kind == "none":
        return {}
    scaling: dict[str, Any] = {"rope_type": kind, "factor": keys.number("rope.scaling.factor")}
    if kind == "yarn":
        positions_key = "rope.scaling.original_context_length"
        scaling["original_max_position_embeddings"] = keys.whole(positions_key)
        for name in ("beta_fast", "beta_slow"):
            key = f"rope.scaling.yarn_{name}"
            scaling |= {name: keys.number(key)} if keys.has(key) else {}
        if keys.has(_LOG_MULTIPLIER):
            slope = round(keys.number(_LOG_MULTIPLIER) / _YARN_SLOPE, 6)
            scaling |= {"mscale": slope, "mscale_all_dim": slope}
    return {"rope_scaling": scaling}
