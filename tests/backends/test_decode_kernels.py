"""Kernels of public tables that decode: by engine and by backend, on a GPU and over a cache."""

import pytest
from derive.questions import LOG, ROOT
from nearfree.backends.attention_order import ENGINE_ATTENTION
from nearfree.backends.decode_kernels import (
    DECODERS,
    NAMES,
    Decoder,
    backend_decoder,
    engine_decoder,
    is_measured,
)
from nearfree.backends.records import BY_NAME
from nearfree.config.files import Config
from nearfree.derive.reference.record import newest_kernels

_CACHES = (("bfloat16", True), ("float16", True), ("float8", False))


@pytest.mark.parametrize("decoder", DECODERS, ids=lambda decoder: decoder.kernel)
def test_a_kernel_is_an_engines_on_its_gpus_and_caches_alone(decoder: Decoder) -> None:
    """Elsewhere, and of a kernel of another engine, no curve of it counts."""
    for cache, plain in _CACHES:
        for sm in decoder.capabilities:
            expected = decoder.plain in (None, plain)
            assert is_measured(decoder.kernel, decoder.engine, sm, cache) == expected
            if expected:
                assert engine_decoder(decoder.engine, decoder.backend, sm, cache) == decoder.kernel
        assert not is_measured(decoder.kernel, decoder.engine, 70, cache)
        assert not is_measured(decoder.kernel, "other", min(decoder.capabilities), cache)
        assert engine_decoder("other", decoder.backend, min(decoder.capabilities), cache) is None
        assert (
            engine_decoder(decoder.engine, "vllm_triton", min(decoder.capabilities), cache) is None
        )
        assert engine_decoder(decoder.engine, decoder.backend, None, cache) is None


def test_at_most_one_kernel_decodes_in_an_engine() -> None:
    """What an engine takes on a GPU over a cache is never two."""
    for engine in {decoder.engine for decoder in DECODERS}:
        for sm in (80, 89, 90, 100, 103, 120):
            for _, plain in _CACHES:
                kernels = [
                    decoder for decoder in DECODERS
                    if decoder.engine == engine
                    and sm in decoder.capabilities
                    and decoder.plain in (None, plain)
                ]  # fmt: skip
                assert len(kernels) <= 1


def test_a_backend_decodes_by_what_its_engine_takes() -> None:
    """Each kernel is of a backend that runs there, and its own or one that stands for it."""
    for decoder in DECODERS:
        record = BY_NAME[decoder.backend]
        assert not record.capabilities or decoder.capabilities <= record.capabilities
        for cache, plain in _CACHES:
            if decoder.own and decoder.plain in (None, plain):
                kernel = backend_decoder(decoder.backend, min(decoder.capabilities), cache)
                assert kernel in {
                    other_decoder.kernel for other_decoder in DECODERS if other_decoder.own
                }
    assert backend_decoder("vllm_fa3", 90, "bfloat16") == "vllm_flash_attn_fa3"
    assert backend_decoder("flashinfer_fa2", 100, "bfloat16") == "vllm_flashinfer_trtllmdecode"
    assert backend_decoder("flash_attn", 90, "bfloat16") is None
    assert backend_decoder("vllm_fa3", None, "bfloat16") is None


def test_engines_are_those_whose_choice_of_attention_is_read() -> None:
    """What decodes there is what that choice names or stands for."""
    assert {decoder.engine for decoder in DECODERS} == set(ENGINE_ATTENTION)
    for decoder in DECODERS:
        choices = [
            choice for choice in ENGINE_ATTENTION[decoder.engine] if choice.name == decoder.backend
        ]
        assert all(
            any(sm in choice.capabilities for choice in choices) for sm in decoder.capabilities
        )


def test_the_curves_of_each_are_on_record() -> None:
    """On every GPU with public curves of it that the platforms tell of."""
    newest, _ = newest_kernels(LOG)
    decoding = [key for key in newest if key.family == "attention_cached"]
    assert {key.kernel for key in decoding} == NAMES
    platforms = Config(ROOT / "config").platforms
    for key in decoding:
        sm, cache = platforms[key.platform].sm, key.kv_dtype or key.dtype
        assert any(is_measured(key.kernel, decoder.engine, sm, cache) for decoder in DECODERS)
