"""Random weights of a config.json as a GGUF file, one tensor after another.

Source: what an engine asks of a file is in llama.cpp v0.5.0, src/llama-model.cpp and
src/models/NAME.cpp; of its tokenizer in src/llama-vocab.cpp lines 1949-2100.
"""

import os
from collections.abc import Iterator
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
from nearfree.models.gguf_names import WRITTEN, Weight, model_weights
from nearfree.models.gguf_values import (
    FROM,
    TO,
    Stored,
    random_weight,
    rope_factors,
    to_neighbours,
)

_SPECIAL = ("<unk>", "<s>", "</s>")
_BYTES = 256
_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6
"""Types of tokens, as llama.cpp numbers them (include/llama.h, llama_token_type)."""
_CONTEXT = 8192
"""Positions of a model whose file does not say how many it has."""


def write_random_gguf(config: Path, to: Path, *, type_: str = "bf16", seed: int = 0) -> GgufHeader:
    """Write random weights of a model as a GGUF file, and return its header.

    Matrices are in `type_`, vectors and routers in float32, as converted models have them, but
    rounded to `type_` before. Norms are one; all else is normal, and follows from names and seed.

    Parameters
    ----------
    config
        A config.json, or the folder that holds it.
    to
        The file; it is there whole, or not at all.

    Raises
    ------
    ConfigError
        The package `gguf` is not installed, there is no such type, the file cannot be written, or
        the model is none of which a file is written here.
    """
    if type_ not in TO:
        raise ConfigError(
            f"{type_!r:.60} is no type that random weights are written in",
            remedy=f"Choose {', '.join(TO)}; an engine's own tool quantises such a file",
        )
    package = _package()
    decoder, weights = model_weights(config)
    details = read_details(config)
    factors = _factors(config, decoder, details)
    part = to.with_name(f".{to.name}.{os.getpid()}")
    try:
        writer = package.GGUFWriter(part, WRITTEN[decoder.model_type])
        _describe(writer, config, decoder, details, type_)
        _write(package, writer, weights, factors, type_=type_, seed=seed)
        part.replace(to)
    except OSError as error:
        raise ConfigError(
            f"{to} cannot be written: {error.strerror}", remedy="Choose a folder with room"
        ) from error
    finally:
        part.unlink(missing_ok=True)
    return read_header(to)


def _package() -> ModuleType:
    try:
        import gguf
    except ModuleNotFoundError as error:
        raise ConfigError(
            "writing GGUF files needs the package gguf, which is not installed",
            remedy="Install it, or the project with its extra `engines`: pip install gguf",
        ) from error
    found: ModuleType = gguf
    return found


def _factors(config: Path, decoder: Decoder, details: Details) -> Stored | None:
    """Return what frequencies are divided by, None where all are as they are or by one number."""
    rope = details.rope
    if rope is None or rope.yarn or rope.turned or rope.width != decoder.head_dim:
        raise _refused(config, "has rotations that are not written here")
    if rope.llama3 is None:
        return None
    if WRITTEN[decoder.model_type] != "llama":
        raise _refused(config, "has Llama 3's scaling, which files of its architecture do not say")
    return rope_factors(rope, rope.llama3)


def _refused(config: Path, reason: str) -> RefusedError:
    remedy = "Leave the scaling out of rope_scaling"
    return RefusedError([Refusal(str(config_file(config)), "rope_scaling", reason, remedy)])


def _describe(writer: Any, config: Path, decoder: Decoder, details: Details, type_: str) -> None:
    """Write what engines ask of a file: sizes, rotations, norms, experts, and a tokenizer."""
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
    """Write a tokenizer of bytes and tokens that stand for themselves, none if bytes have no room.

    Tokens are unknown, begin and end, 256 bytes, and <t259> and so on.
    """
    first = len(_SPECIAL) + _BYTES
    if vocabulary < first:
        writer.add_tokenizer_model("no_vocab")
        return
    named = [f"<0x{byte:02X}>" for byte in range(_BYTES)]
    others = [f"<t{number}>" for number in range(first, vocabulary)]
    writer.add_tokenizer_model("llama")
    writer.add_token_list([*_SPECIAL, *named, *others])
    writer.add_token_scores([0.0] * first + [-float(each) for each in range(len(others))])
    kinds = [_UNKNOWN, _CONTROL, _CONTROL, *[_BYTE] * _BYTES]
    writer.add_token_types([*kinds, *[_NORMAL] * len(others)])
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(value=False)


def _write(
    package: ModuleType,
    writer: Any,
    weights: tuple[Weight, ...],
    factors: Stored | None,
    *,
    type_: str,
    seed: int,
) -> None:
    """Write all that the file says of its tensors, then the tensors, made one at a time."""
    for each in weights:
        kind = "f32" if each.full else type_
        size = int(np.prod(each.stored_shape)) * BY_NAME[kind].size
        dtype = np.dtype(TO[kind][0])
        raw = package.GGMLQuantizationType(BY_NAME[kind].number)
        writer.add_tensor_info(each.tensor, each.stored_shape, dtype, size, raw)
    if factors is not None:
        writer.add_tensor_info("rope_freqs.weight", factors.shape, factors.dtype, factors.nbytes)
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for tensor in _tensors(weights, type_, seed):
            writer.write_tensor_data(tensor)
        if factors is not None:
            writer.write_tensor_data(factors)
    finally:
        writer.close()


def _tensors(weights: tuple[Weight, ...], type_: str, seed: int) -> Iterator[Stored]:
    for each in weights:
        yield made(each, type_, seed)


def made(weight: Weight, type_: str, seed: int) -> Stored:
    """Return the tensor of a file, outermost size first, as it is stored there."""
    if weight.one:
        return np.ones(weight.stored_shape, dtype=np.float32)
    parts = [random_weight(name, weight.shape, seed=seed, type_=type_) for name in weight.names]
    found = cast("Stored", np.stack(parts)) if weight.routed else parts[0]
    if weight.heads:
        found = to_neighbours(found, weight.heads)
    return FROM[type_](found) if weight.full else cast("Stored", np.ascontiguousarray(found))
