"""A model's files as engines load them on GPUs, where float32 becomes bfloat16."""

from pathlib import Path

from msgspec import structs

from nearfree.core.precision import Dtype, Precision, Product
from nearfree.decoders.model_file import ModelFile
from nearfree.gguf.reader import is_gguf

_WIDE: Dtype = "float32"
_LOADED: Dtype = "bfloat16"


def as_served(model: ModelFile) -> ModelFile:
    """Return a model in bfloat16 where its config.json says float32; a GGUF file is unchanged.

    Engines load it so by default. SGLang for most models, and vLLM before compute capability 8.0,
    load float16, which has the same size.
    Source: vllm 0.33.0, vllm/platforms/cuda.py:257-266 (the first stands in for float32), with
    _resolve_auto_dtype of vllm/config/model.py; sglang 0.5.23,
    sglang/srt/configs/model_config.py:2304-2321.
    """
    precision, decoder = model.precision, model.decoder
    dtype = precision.plain if precision else decoder and decoder.dtype
    if dtype != _WIDE or is_gguf(Path(model.file)):
        return model
    if decoder:
        model = structs.replace(model, decoder=structs.replace(decoder, dtype=_LOADED))
    if precision is None:
        return model
    loaded = _halved(precision)
    note = f"dtype is {_WIDE}: {_LOADED}, as engines load it on GPUs unless --dtype says another"
    return structs.replace(
        model, precision=loaded, weights=model.stored(loaded), notes=(*model.notes, note)
    )


def _halved(precision: Precision) -> Precision:
    """Return a precision with float32 replaced by bfloat16."""
    halved = precision.with_products(lambda product, kind: Product(*map(_half, product)))  # noqa: ARG005
    return structs.replace(halved, plain=_half(precision.plain), kv=_half(precision.kv))


def _half(dtype: Dtype) -> Dtype:
    return _LOADED if dtype == _WIDE else dtype
