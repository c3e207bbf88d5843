"""Writes random weights of a config.json as a GGUF file, one tensor after another.

Source: llama.cpp v0.5.0, src/llama-model.cpp and src/models/NAME.cpp for what an engine needs of a
file, and src/llama-vocab.cpp lines 1949-2100 for its tokenizer.
"""

import os
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import numpy as np

from nearfree.decoders.config_file import config_file
from nearfree.decoders.decoder import Decoder
from nearfree.decoders.details import Details, read_details
from nearfree.decoders.text_part import text_part
from nearfree.errors import ConfigError, Refusal, RefusedError
from nearfree.gguf.header import GgufHeader
from nearfree.gguf.reader import read_header
from nearfree.gguf.types import BY_NAME, FILE_TYPES
from nearfree.models.gguf_names import ARCHITECTURES, Weight, model_weights
from nearfree.models.gguf_values import (
    LOAD,
    STORE,
    StoredArray,
    random_weight,
    rope_factors,
    to_neighbours,
)

_SPECIAL = ("<unk>", "<s>", "</s>")
_BYTES = 256
_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6
"""Types of tokens, as llama.cpp numbers them (include/llama.h, llama_token_type)."""
_CONTEXT = 8192
"""The context length of a model whose file does not give it."""


def write_random_gguf(config: Path, to: Path, *, type_: str = "bf16", seed: int = 0) -> GgufHeader:
    """Write random weights of a model as a GGUF file, and return its header.

    Matrices are in `type_`; vectors and routers are in float32 as in converted models, but rounded
    to `type_` before. Norms are one; all other weights are normal and depend on names and seed.

    Parameters
    ----------
    to
        The path of the file; it is written atomically.
    type_
        ggml's name of the type of matrices.

    Raises
    ------
    ConfigError
        The package `gguf` is not installed, the type is unknown, the file cannot be written, or
        GGUF files of the model's type are not written here.
    """
    if type_ not in STORE:
        raise ConfigError(
            f"{type_!r:.60} is no type in which random weights are written",
            remedy=f"Choose {', '.join(STORE)}; an engine's own tool quantises such a file",
        )
    package = _package()
    decoder, weights = model_weights(config)
    details = read_details(config)
    factors = _factors(config, decoder, details)
    partial = to.with_name(f".{to.name}.{os.getpid()}")
    try:
        writer = package.GGUFWriter(partial, ARCHITECTURES[decoder.model_type])
        _describe(writer, config, decoder, details, type_)
        _write(package, writer, weights, factors, type_=type_, seed=seed)
        partial.replace(to)
    except OSError as error:
        raise ConfigError(
            f"{to} cannot be written: {error.strerror}", remedy="Choose a folder with room"
        ) from error
    finally:
        partial.unlink(missing_ok=True)
    return read_header(to)


def _package() -> ModuleType:
    try:
        import gguf
    except ModuleNotFoundError as error:
        raise ConfigError(
            "writing GGUF files needs the package gguf, which is not installed",
            remedy="Install it, or the project with its extra `engines`: pip install gguf",
        ) from error
    package: ModuleType = gguf
    return package


def _factors(config: Path, decoder: Decoder, details: Details) -> StoredArray | None:
    """Return the divisors of frequencies, None if they are unscaled or share one divisor."""
    rope = details.rope
    if rope is None or rope.yarn or rope.turned or rope.width != decoder.head_dim:
        raise _refused(config, "has rotations that are not written here")
    if rope.llama3 is None:
        return None
    if ARCHITECTURES[decoder.model_type] != "llama":
        raise _refused(config, "has Llama 3's scaling, which files of its architecture cannot give")
    return rope_factors(rope, rope.llama3)


def _refused(config: Path, reason: str) -> RefusedError:
    remedy = "Leave the scaling out of rope_scaling"
    return RefusedError([Refusal(str(config_file(config)), "rope_scaling", reason, remedy)])


def _describe(writer: Any, config: Path, decoder: Decoder, details: Details, type_: str) -> None:
    """Write the metadata that engines need: sizes, rotations, norms, experts, and a tokenizer."""
    keys = text_part(config_file(config)).keys
    writer.add_name(f"{decoder.name}, random weights")
    numbers = {name: number for number, name in FILE_TYPES.items()}
    writer.add_file_type(numbers[type_.upper()])
    writer.add_context_length(keys.whole("max_position_embeddings", default=_CONTEXT))
    writer.add_embedding_length(decoder.d_model)
    writer.add_block_count(decoder.layers)
    writer.add_head_count(decoder.heads)
    writer.add_head_count_kv(decoder.kv_heads)
    writer.add_key_length(decoder.head_dim)
    writer.add_value_length(decoder.head_dim)
    writer.add_layer_norm_rms_eps(details.norm_eps)
    writer.add_vocab_size(decoder.vocabulary)
    experts = decoder.experts
    writer.add_feed_forward_length(decoder.d_ff or (experts.d_ff if experts else 0))
    if experts:
        writer.add_expert_count(experts.experts)
        writer.add_expert_used_count(experts.top_k)
        writer.add_expert_feed_forward_length(experts.d_ff)
        if experts.shared_d_ff:
            writer.add_expert_shared_feed_forward_length(experts.shared_d_ff)
    if details.rope:
        writer.add_rope_dimension_count(details.rope.width)
        writer.add_rope_freq_base(details.rope.theta)
        if details.rope.divisor:
            writer.add_string(f"{writer.arch}.rope.scaling.type", "linear")
            writer.add_rope_scaling_factor(details.rope.divisor)
    _tokenizer(writer, decoder.vocabulary)


def _tokenizer(writer: Any, vocabulary: int) -> None:
    """Write a tokenizer of single bytes and placeholder tokens; none if the vocabulary is smaller.

    The tokens are unknown, begin and end, 256 bytes, and then <t259> and so on.
    """
    first = len(_SPECIAL) + _BYTES
    if vocabulary < first:
        writer.add_tokenizer_model("no_vocab")
        return
    bytes_ = [f"<0x{byte:02X}>" for byte in range(_BYTES)]
    placeholders = [f"<t{number}>" for number in range(first, vocabulary)]
    writer.add_tokenizer_model("llama")
    writer.add_token_list([*_SPECIAL, *bytes_, *placeholders])
    writer.add_token_scores([0.0] * first + [-float(rank) for rank in range(len(placeholders))])
    types = [_UNKNOWN, _CONTROL, _CONTROL, *[_BYTE] * _BYTES]
    writer.add_token_types([*types, *[_NORMAL] * len(placeholders)])
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(value=False)


def _write(
    package: ModuleType,
    writer: Any,
    weights: tuple[Weight, ...],
    factors: StoredArray | None,
    *,
    type_: str,
    seed: int,
) -> None:
    """Write the metadata of all tensors, then the tensors, which are made one at a time."""
    for weight in weights:
        name = "f32" if weight.float32 else type_
        size_bytes = int(np.prod(weight.stored_shape)) * BY_NAME[name].size
        dtype = np.dtype(STORE[name][0])
        ggml_type = package.GGMLQuantizationType(BY_NAME[name].number)
        writer.add_tensor_info(weight.tensor, weight.stored_shape, dtype, size_bytes, ggml_type)
    if factors is not None:
        writer.add_tensor_info("rope_freqs.weight", factors.shape, factors.dtype, factors.nbytes)
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for weight in weights:
            writer.write_tensor_data(stored_tensor(weight, type_, seed))
        if factors is not None:
            writer.write_tensor_data(factors)
    finally:
        writer.close()


def stored_tensor(weight: Weight, type_: str, seed: int) -> StoredArray:
    """Return a random tensor in its stored form, the outermost size first."""
    if weight.ones:
        return np.ones(weight.stored_shape, dtype=np.float32)
    parts = [random_weight(name, weight.shape, seed=seed, type_=type_) for name in weight.names]
    tensor = cast("StoredArray", np.stack(parts)) if weight.routed else parts[0]
    if weight.heads:
        tensor = to_neighbours(tensor, weight.heads)
    return (
        LOAD[type_](tensor) if weight.float32 else cast("StoredArray", np.ascontiguousarray(tensor))
    )
