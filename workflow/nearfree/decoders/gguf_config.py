"""What a GGUF file's metadata say of a decoder, as the config.json that it was made from says it.

Source: llama.cpp v0.5.0: keys of src/llama-arch.cpp lines 163-330, and how config.json becomes them
of conversion/base.py lines 1390-1510.
"""

from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from struct import pack, unpack
from typing import Any

from nearfree.decoders.gguf_architectures import (
    ANEW,
    ARCHITECTURES,
    CONVOLVED,
    KV_HEADS,
    alike,
    attending,
    head_dim,
    layers_of,
    number_or,
)
from nearfree.decoders.keys import Keys, read_object
from nearfree.errors import Refusals
from nearfree.gguf.header import GgufHeader, Long, refuse_part
from nearfree.gguf.matrices import EMBEDDING, HEAD, matrices
from nearfree.gguf.reader import is_gguf, read_header
from nearfree.gguf.types import PLAIN

_ROUTER = "ffn_gate_inp"
_TOKENS = "tokenizer.ggml.tokens"
_LARGEST_FLOAT = 3e38
_BY_LAYER = ("head_count", "head_count_kv", "feed_forward_length")
"""How keys end whose value may be a list with a number for each layer."""
CACHE = "float16"
"""What llama.cpp keeps keys and values in unless it is told otherwise, and here the format of what
is never quantised, where a file has no matrix that is not."""


def read_values(file: Path) -> dict[str, Any]:
    """Return the keys of a config.json: as the file has them, or as a GGUF file implies them.

    Raises
    ------
    ConfigError
        As `read_object` and `read_header` do.
    RefusedError
        The GGUF file's architecture is not read, its keys contradict one another, or it is one part
        of several; with every reason.
    """
    return gguf_values(read_header(file)) if is_gguf(file) else read_object(file)


def gguf_values(header: GgufHeader) -> dict[str, Any]:
    """Return a config.json's keys for a GGUF file; the errors are those of `read_values`."""
    refuse_part(header)
    file, said = Path(header.file), _plain(header)
    whole = Keys(file, said)
    name = whole.text("general.architecture")
    if name not in ARCHITECTURES:
        near = get_close_matches(name[:80], ARCHITECTURES, n=3)
        known = ", ".join(near or ARCHITECTURES)
        remedy = f"{'Nearest' if near else 'Read'} are {known}; or give the model's config.json"
        raise whole.wrong("general.architecture", "is not read", remedy)
    prefix = f"{name}."
    inner = {key.removeprefix(prefix): said[key] for key in said if key.startswith(prefix)}
    keys, found, values = Keys(file, inner, prefix), Refusals(), dict[str, Any]()
    for read in (_common, ARCHITECTURES[name]):
        with found.collect():
            values |= read(keys, header)
    found.check()
    return values


def plain_format(header: GgufHeader) -> str:
    """Return what most matrices without scales are in, routers left out.

    Beside matrices with scales float32 does not count: it is that of what was too small for them.
    `CACHE` where no matrix is left.
    """
    every = [each for each in matrices(header) if each.part != _ROUTER]
    plain = [each for each in every if each.type.name in PLAIN]
    if len(plain) < len(every):
        plain = [each for each in plain if each.type.name != "f32"]
    counts: dict[str, int] = {}
    for each in plain:
        counts[each.type.name] = counts.get(each.type.name, 0) + each.elements
    most = max(counts, key=lambda name: counts[name], default="")
    return PLAIN.get(most, CACHE)


def _plain(header: GgufHeader) -> dict[str, Any]:
    """Return the metadata as JSON has values; what is long is left out.

    A list with a number for each layer is that number where all are alike.
    """
    values: dict[str, Any] = {}
    for key, value in header.metadata.items():
        if isinstance(value, tuple):
            same = key.endswith(_BY_LAYER) and len(set(value)) == 1
            values[key] = value[0] if same else list(value)
        elif not isinstance(value, Long):
            values[key] = _shortest(value) if isinstance(value, float) else value
    return values


def _shortest(value: float) -> float:
    """Return the number with fewest digits that is the same in float32: 1e-05 for 9.9999997e-06."""
    if not 0 < abs(value) < _LARGEST_FLOAT:
        return value
    tried = (float(f"{value:.{digits}g}") for digits in range(1, 10))
    return next((each for each in tried if unpack("f", pack("f", each)) == (value,)), value)


def _common(keys: Keys, header: GgufHeader) -> dict[str, Any]:
    """Return what all architectures say."""
    found, values = Refusals(), dict[str, Any]()
    parts: dict[str, Callable[[], Any]] = {
        "hidden_size": lambda: keys.whole("embedding_length"),
        "num_hidden_layers": lambda: layers_of(keys, header),
        "vocab_size": lambda: _vocabulary(keys, header),
        "num_attention_heads": lambda: alike(keys, "attention.head_count"),
        "num_key_value_heads": lambda: _kv_heads(keys, header),
        "head_dim": lambda: head_dim(keys),
        "rms_norm_eps": lambda: keys.number("attention.layer_norm_rms_epsilon", most=1.0),
        "rope_theta": lambda: number_or(keys, "rope.freq_base", 10000.0),
    }
    for name, read in parts.items():
        with found.collect():
            values[name] = read()
    found.check()
    if keys.has("feed_forward_length") and not keys.has("expert_feed_forward_length"):
        values["intermediate_size"] = alike(keys, "feed_forward_length")
    rotated = keys.whole("rope.dimension_count", default=values["head_dim"])
    if rotated != values["head_dim"]:
        values["partial_rotary_factor"] = rotated / values["head_dim"]
    values |= _scaling(keys, header)
    dtype = plain_format(header)
    quantised = {each.type.name for each in matrices(header)} - PLAIN.keys()
    section = {"quantization_config": {"quant_method": "gguf"}} if quantised else {}
    tied = HEAD not in header.by_name
    return {**values, "torch_dtype": dtype, "tie_word_embeddings": tied, **section}


def _vocabulary(keys: Keys, header: GgufHeader) -> int:
    """Return the vocabulary, of which whatever says it must agree."""
    tokens = header.metadata.get(_TOKENS)
    embedding = header.by_name.get(EMBEDDING)
    if isinstance(tokens, Long | tuple):
        count = tokens.length if isinstance(tokens, Long) else len(tokens)
    elif keys.has("vocab_size"):
        count = keys.whole("vocab_size")
    else:
        count = embedding.dims[-1] if embedding else 0
    if embedding is None or len(embedding.dims) != 2:
        raise keys.wrong("vocab_size", f"has no matrix {EMBEDDING} that it is the rows of", ANEW)
    if embedding.dims[1] != count:
        raise keys.wrong(
            "vocab_size",
            f"and {count} tokens are not the {embedding.dims[1]} rows of {EMBEDDING}",
            ANEW,
        )
    return count


def _kv_heads(keys: Keys, header: GgufHeader) -> int:
    if header.architecture in CONVOLVED:
        return max(attending(keys))
    heads = alike(keys, "attention.head_count")
    return alike(keys, KV_HEADS, default=heads)


def _scaling(keys: Keys, header: GgufHeader) -> dict[str, Any]:
    """Return the scaling of rotations; one that stands in a tensor alone is none that is run."""
    kind = keys.text("rope.scaling.type") if keys.has("rope.scaling.type") else "none"
    if any(each.startswith("rope_f") for each in header.by_name):
        return {"rope_scaling": {"rope_type": "factors in a tensor"}}
    if kind == "none":
        return {}
    inner: dict[str, Any] = {"rope_type": kind, "factor": keys.number("rope.scaling.factor")}
    if kind == "yarn":
        original = "rope.scaling.original_context_length"
        inner["original_max_position_embeddings"] = keys.whole(original)
        for name in ("beta_fast", "beta_slow"):
            key = f"rope.scaling.yarn_{name}"
            inner |= {name: keys.number(key)} if keys.has(key) else {}
    return {"rope_scaling": inner}
