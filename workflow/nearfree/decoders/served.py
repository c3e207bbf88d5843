"""A model's files as engines take them on GPUs, where numbers in 32 bits are halved."""

from pathlib import Path

from msgspec import structs

from nearfree.core.precision import Dtype, Precision, Product
from nearfree.decoders.model_file import ModelFile
from nearfree.gguf.reader import is_gguf

_WIDE: Dtype = "float32"
_TAKEN: Dtype = "bfloat16"


def as_served(model: ModelFile) -> ModelFile:
    """Return a model in bfloat16 where its config.json says float32; a GGUF file stays as it is.

    Engines load it so unless they are told otherwise; float16, which SGLang takes for most and vLLM
    before compute capability 8.0, has as many bytes.
    Source: vllm 0.33.0, vllm/platforms/cuda.py:257-266 (the first stands in for float32), with
    _resolve_auto_dtype of vllm/config/model.py; sglang 0.5.23,
    sglang/srt/configs/model_config.py:2304-2321.
    """
    own, decoder = model.precision, model.decoder
    said = own.plain if own else decoder and decoder.dtype
    if said != _WIDE or is_gguf(Path(model.file)):
        return model
    if decoder:
        model = structs.replace(model, decoder=structs.replace(decoder, dtype=_TAKEN))
    if own is None:
        return model
    taken = _halved(own)
    note = f"dtype is {_WIDE}: {_TAKEN}, as engines take on GPUs unless --dtype says another"
    return structs.replace(
        model, precision=taken, weights=model.stored(taken), notes=(*model.notes, note)
    )


def _halved(own: Precision) -> Precision:
    """Return a precision with what is in 32 bits in 16."""
    every = own.with_products(lambda product, kind: Product(*map(_half, product)))  # noqa: ARG005
    return structs.replace(every, plain=_half(own.plain), kv=_half(own.kv))


def _half(dtype: Dtype) -> Dtype:
    return _TAKEN if dtype == _WIDE else dtype
