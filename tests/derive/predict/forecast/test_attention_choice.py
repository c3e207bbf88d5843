"""The backend of attention that is chosen if none is named, or the reason why none is."""

from pathlib import Path
from typing import Any

import pytest
from decoders.files import change, read, write
from nearfree.backends.names import BackendRelease
from nearfree.core.precision import uniform
from nearfree.decoders.config_file import read_decoder
from nearfree.decoders.decoder import Decoder
from nearfree.derive.predict.forecast.attention_choice import attention_candidates as choices
from nearfree.derive.predict.forecast.attention_choice import (
    attention_refusals,
    decode_kernel,
    other_kernel,
    verification_refusals,
)

VLLM = BackendRelease("vllm", "0.33.0")


def chosen(*arguments: Any) -> str:
    """Return the first possible backend."""
    return next(choices(*arguments))


@pytest.mark.parametrize(
    ("kind", "changes", "by_sm"),
    [
        ("llama", {"head_dim": 128},
         {80: "flash-attn", 89: "flash-attn", 90: "vllm-fa3", 100: "flashinfer",
          103: "flashinfer", 120: "flash-attn", None: "flash-attn"}),
        ("gemma3_text", {}, {80: "flash-attn", 90: "vllm-fa3"}),
        ("gpt_oss", {"head_dim": 64}, {80: "vllm-triton", 90: "vllm-fa3", 100: "flashinfer",
                                   120: "vllm-triton"}),
        ("gemma4_text", {"head_dim": 256, "global_head_dim": 512},
         {89: "vllm-triton", 90: "vllm-triton", 100: "flashinfer"}),
        ("llama", {"head_dim": 96}, {89: "flash-attn", 90: "vllm-fa3", 100: "flash-attn-4"}),
        ("llama", {"head_dim": 160}, {89: "flash-attn", 90: "vllm-fa3", 100: "flash-attn"}),
        ("mimo_v2_flash", {}, {80: "vllm-triton", 90: "vllm-fa3", 100: "vllm-triton"}),
        ("minimax_m3_vl_text", {"head_dim": 128}, {90: "vllm-fa3", 100: "flashinfer"}),
        ("deepseek_v3", {}, {80: "vllm-mla==0.33.0", 90: "vllm-mla==0.33.0"}),
        ("deepseek_v4", {}, {90: "vllm-mla==0.33.0", 100: "vllm-mla==0.33.0"}),
    ],
)  # fmt: skip
def test_the_first_that_takes_all_layers_runs(
    tmp_path: Path, kind: str, changes: dict[str, Any], by_sm: dict[int | None, str]
) -> None:
    """Sinks, wide heads and latents each need kernels for them on the device."""
    decoder = read(tmp_path, kind, **changes)
    plain = uniform("bfloat16")
    assert {sm: chosen(decoder, plain, sm, VLLM) for sm in by_sm} == by_sm


@pytest.mark.parametrize(
    ("engine", "by_sm"),
    [
        ("vllm", {80: "flash-attn", 90: "vllm-fa3", 100: "flashinfer", 120: "flash-attn"}),
        ("sglang", {80: "flashinfer", 90: "vllm-fa3", 100: "flashinfer", 120: "flashinfer"}),
        ("torch_padded", {80: "flash-attn", 90: "flash-attn", 100: "flash-attn"}),
    ],
)
def test_an_engine_has_a_choice_of_its_own(
    tmp_path: Path, engine: str, by_sm: dict[int, str]
) -> None:
    """VLLM and SGLang choose differently; what is no engine has FlashAttention 2."""
    decoder, plain = read(tmp_path, "llama", head_dim=128), uniform("bfloat16")
    assert {sm: chosen(decoder, plain, sm, BackendRelease(engine)) for sm in by_sm} == by_sm


def test_sglang_takes_triton_for_sinks_where_it_has_no_other(tmp_path: Path) -> None:
    """Heads with sinks run in FlashAttention 3 and TensorRT-LLM's kernels, elsewhere in Triton."""
    decoder, plain, engine = (
        read(tmp_path, "gpt_oss"),
        uniform("bfloat16"),
        BackendRelease("sglang"),
    )
    by_sm = {80: "vllm-triton", 89: "vllm-triton", 90: "vllm-fa3", 100: "flashinfer"}
    assert {sm: chosen(decoder, plain, sm, engine) for sm in by_sm} == by_sm


@pytest.mark.parametrize(
    ("kind", "changes", "release", "by_sm"),
    [
        ("llama", {"head_dim": 128}, "vllm==0.33.0",
         {80: "vllm_flash_attn", 89: "vllm_flash_attn_fa2", 90: "vllm_flash_attn_fa3",
          100: "vllm_flashinfer_trtllmdecode", None: None}),
        ("llama", {"head_dim": 96}, "vllm==0.33.0",
         {90: "vllm_flash_attn_fa3", 100: None, 120: "vllm_flash_attn_fa2"}),
        ("llama", {"head_dim": 96}, "sglang==0.5.23", {90: "fa3", 100: "trtllm_mha"}),
        ("mimo_v2_flash", {}, "vllm==0.33.0", {90: "vllm_flash_attn_fa3", 100: None, 120: None}),
        ("mimo_v2_flash", {}, "sglang==0.5.23", {90: "fa3", 100: None, 120: None}),
        ("gemma4_text", {"head_dim": 256, "global_head_dim": 512}, "vllm==0.22.0", {100: None}),
        ("gemma4_text", {"head_dim": 256, "global_head_dim": 512}, "vllm==0.24.0",
         {100: "vllm_flashinfer_trtllmdecode"}),
        ("gemma4_text", {"head_dim": 256, "global_head_dim": 512}, "sglang==0.5.23",
         {89: None, 90: None, 100: "trtllm_mha"}),
        ("gpt_oss", {"head_dim": 64}, "vllm==0.33.0",
         {80: None, 89: None, 90: "vllm_flash_attn_fa3", 100: "vllm_flashinfer_trtllmdecode"}),
        ("gpt_oss", {}, "sglang==0.5.23", {89: None, 90: "fa3", 100: "trtllm_mha", 120: None}),
        ("llama4_text", {}, "sglang==0.5.23", {89: None, 90: "fa3", 100: "trtllm_mha"}),
        ("deepseek_v3", {}, "vllm==0.33.0", {90: None, 100: None}),
    ],
)  # fmt: skip
def test_a_model_is_decoded_by_what_runs_its_attention(
    tmp_path: Path,
    kind: str,
    changes: dict[str, Any],
    release: str,
    by_sm: dict[int | None, str | None],
) -> None:
    """A head's size, values, sinks and the release decide on the decoder as on what runs it."""
    decoder, engine = read(tmp_path, kind, **changes), BackendRelease(*release.split("=="))
    assert {sm: decode_kernel(decoder, "bfloat16", sm, engine) for sm in by_sm} == by_sm


def test_a_cache_in_eight_bits_has_decoders_of_its_own(tmp_path: Path) -> None:
    """Over an 8-bit cache FlashAttention 2 is refused, and FlashInfer takes three head sizes."""
    common, odd = read(tmp_path, "llama", head_dim=128), read(tmp_path, "llama", head_dim=96)
    assert decode_kernel(common, "float8", 89, VLLM) == "vllm_flashinfer_fidecode"
    assert decode_kernel(odd, "float8", 89, VLLM) is None
    assert decode_kernel(odd, "float8", 90, VLLM) == "vllm_flash_attn_fa3"


@pytest.mark.parametrize(
    ("version", "by_size"),
    [
        ("0.14.0", {64: "flashinfer", 96: "flash-attn"}),
        ("0.19.0", {96: "flash-attn-4", 128: "flashinfer", 192: "flash-attn"}),
        (None, {96: "flash-attn-4", 256: "flashinfer", 100: "vllm-triton"}),
    ],
)
def test_heads_that_flashinfer_does_not_take_run_by_flash_attention(
    tmp_path: Path, version: str | None, by_size: dict[int, str]
) -> None:
    """On data-centre Blackwell that is version 4, where vLLM has it, up to 128 elements."""
    plain, release = uniform("bfloat16"), BackendRelease("vllm", version)
    by_head_dim = {
        size: chosen(read(tmp_path, "llama", head_dim=size), plain, 100, release)
        for size in by_size
    }
    assert by_head_dim == by_size


def test_sglang_takes_triton_for_llama_4_where_it_takes_flashinfer_for_others(
    tmp_path: Path,
) -> None:
    """Its chunks have no path in FlashInfer's backend there."""
    decoder, plain = read(tmp_path, "llama4_text"), uniform("bfloat16")
    by_sm = {80: "vllm-triton", 90: "vllm-fa3", 100: "flashinfer", 120: "vllm-triton"}
    sglang = BackendRelease("sglang", "0.5.23")
    assert {sm: chosen(decoder, plain, sm, sglang) for sm in by_sm} == by_sm


@pytest.mark.parametrize(
    ("kind", "sm", "release", "message"),
    [
        ("gpt_oss", 120, "vllm==0.33.0", True),
        ("gpt_oss", 120, "vllm==0.26.0", False),
        ("gpt_oss", 100, "vllm==0.33.0", False),
        ("gpt_oss", None, "vllm==0.33.0", False),
        ("gpt_oss", 120, "sglang==0.5.23", False),
        ("llama", 120, "vllm==0.33.0", False),
    ],
)
def test_sinks_on_other_blackwells_run_by_a_kernel_that_is_not_read(
    tmp_path: Path, kind: str, sm: int | None, release: str, *, message: bool
) -> None:
    """Triton's tiles stand in, in the vLLM releases that have it."""
    kernel = other_kernel(read(tmp_path, kind), sm, BackendRelease(*release.split("==")))
    assert kernel == ("heads with sinks on this GPU by FlashInfer's XQA" if message else None)


@pytest.mark.parametrize(
    ("size", "sm", "release", "message"),
    [
        (512, 90, "vllm==0.33.0", True),
        (512, 90, "vllm==0.22.0", False),
        (512, 100, "vllm==0.33.0", False),
        (512, 90, "sglang==0.5.23", False),
        (256, 90, "vllm==0.33.0", False),
    ],
)
def test_heads_too_wide_for_flash_attention_3_run_by_another_that_is_not_read(
    tmp_path: Path, size: int, sm: int, release: str, *, message: bool
) -> None:
    """Gemma 4 runs by FlashAttention 4 on Hopper, in vLLM releases that have it."""
    decoder = read(tmp_path, "gemma4_text", head_dim=256, global_head_dim=size)
    kernel = other_kernel(decoder, sm, BackendRelease(*release.split("==")))
    assert kernel == ("this model on this GPU by FlashAttention 4" if message else None)


@pytest.mark.parametrize(
    ("kind", "sm", "release", "message"),
    [
        ("deepseek_v2", 100, "sglang==0.5.23", True),
        ("glm4_moe_lite", 103, "sglang==0.5.9", True),
        ("deepseek_v3", 100, "sglang==0.5.23", False),
        ("deepseek_v2", 90, "sglang==0.5.23", False),
        ("deepseek_v2", 100, "vllm==0.33.0", False),
    ],
)
def test_latents_of_other_kinds_run_by_flashinfer_on_data_centre_blackwell(
    tmp_path: Path, kind: str, sm: int, release: str, *, message: bool
) -> None:
    """SGLang runs those of DeepSeek V3's kind alone by the kernel whose tiles answers have."""
    kernel = other_kernel(read(tmp_path, kind), sm, BackendRelease(*release.split("==")))
    expected = "latents of this model on this GPU by FlashInfer's kernel"
    assert kernel == (expected if message else None)


@pytest.mark.parametrize(
    ("kind", "sm", "version", "message"),
    [
        ("qwen3_next", 100, "0.5.9", "this model on this GPU by Triton's"),
        ("qwen3_5_moe_text", 103, "0.5.14", "what has no drafts on this GPU by Triton's"),
        ("qwen3_5_text", 100, "0.5.23", None),
        ("qwen3_next", 90, "0.5.9", None),
        ("qwen3_moe", 100, "0.5.9", None),
    ],
)
def test_models_with_states_run_by_triton_in_older_releases_unless_they_are_told(
    tmp_path: Path, kind: str, sm: int, version: str, message: str | None
) -> None:
    """SGLang's recipes name TensorRT-LLM's kernels, which answers mention."""
    decoder, sglang = read(tmp_path, kind), BackendRelease("sglang", version)
    kernel = other_kernel(decoder, sm, sglang)
    assert kernel is None if message is None else kernel and kernel.startswith(message)
    if sm >= 100:
        assert chosen(decoder, uniform("bfloat16"), sm, sglang) == "flashinfer"


def _seeing(folder: Path, size: int) -> Decoder:
    text = change("gemma3_text", head_dim=size)
    return read_decoder(write(folder, {"model_type": "gemma3", "text_config": text}))


@pytest.mark.parametrize(
    ("size", "release", "by_sm"),
    [
        (128, "0.9.1", {89: "flash-attn", 90: "vllm-fa3", 100: "flashinfer"}),
        (128, "0.14.0", {89: "vllm-triton", 90: "vllm-triton", 100: "vllm-triton"}),
        (128, "0.24.0", {89: "vllm-triton", 90: "vllm-triton", 100: "flash-attn-4"}),
        (128, "0.33.0", {90: "vllm-triton", 100: "flash-attn-4", 120: "vllm-triton"}),
        (256, "0.24.0", {90: "vllm-triton", 100: "vllm-triton"}),
        (256, "0.33.0", {89: "vllm-triton", 90: "vllm-fa3", 100: "flashinfer"}),
    ],
)
def test_a_model_whose_images_attend_to_themselves_needs_a_backend_with_such_a_mask(
    tmp_path: Path, size: int, release: str, by_sm: dict[int, str]
) -> None:
    """VLLM needs the mask for any model that can be given images."""
    decoder, plain = _seeing(tmp_path, size), uniform("bfloat16")
    vllm = BackendRelease("vllm", release)
    assert {sm: chosen(decoder, plain, sm, vllm) for sm in by_sm} == by_sm
    sglang = BackendRelease("sglang", "0.5.23")
    assert chosen(decoder, plain, 90, sglang) == "vllm-fa3"
    assert decode_kernel(decoder, "bfloat16", 90, vllm) == (
        "vllm_flash_attn_fa3" if by_sm.get(90) == "vllm-fa3" else None
    )


@pytest.mark.parametrize(
    ("kind", "changes", "release", "by_sm"),
    [
        ("olmo2", {}, "0.5.23", {80: "flash-attn-3", 89: "flash-attn-3", 90: "vllm-fa3",
                                 100: "flashinfer", 120: "vllm-triton"}),
        ("exaone4", {}, "0.5.23", {89: "flash-attn-3", 90: "vllm-fa3", 120: "vllm-triton"}),
        ("exaone4", {"sliding_window_pattern": None, "sliding_window": None,
                     "layer_types": ["full_attention"] * 6},
         "0.5.23", {89: "flashinfer", 90: "vllm-fa3", 120: "flashinfer"}),
        ("falcon_h1", {}, "0.5.23", {90: "vllm-fa3", 100: "vllm-triton"}),
        ("granitemoehybrid", {}, "0.5.12", {100: "vllm-triton"}),
        ("granitemoehybrid", {}, "0.5.13", {100: "flashinfer"}),
    ],
)  # fmt: skip
def test_sglang_has_a_choice_of_its_own_for_single_models(
    tmp_path: Path, kind: str, changes: dict[str, Any], release: str, by_sm: dict[int, str]
) -> None:
    """Windows of EXAONE 4, OLMo 2's layers and those beside a state each have their backend."""
    decoder, plain = read(tmp_path, kind, **changes), uniform("bfloat16")
    sglang = BackendRelease("sglang", release)
    assert {sm: chosen(decoder, plain, sm, sglang) for sm in by_sm} == by_sm


def test_a_latent_runs_by_the_engine_of_the_experts(tmp_path: Path) -> None:
    """The experts' release also chooses the kernel of latent attention."""
    decoder = read(tmp_path, "deepseek_v3")
    engine = BackendRelease("sglang", "0.5.23")
    assert chosen(decoder, uniform("bfloat16"), 90, engine) == "sglang-mla==0.5.23"


def test_another_cache_needs_kernels_that_read_it(tmp_path: Path) -> None:
    """Over an 8-bit cache FlashInfer runs, whose tiles are known."""
    precision = uniform("bfloat16")
    eight = type(precision)(**{
        name: getattr(precision, name) for name in precision.__struct_fields__
    } | {"kv": "float8"})  # fmt: skip
    assert chosen(read(tmp_path, "llama"), eight, 90, VLLM) == "flashinfer"
    assert chosen(None, None, None, VLLM) == "flash-attn"


@pytest.mark.parametrize(("engine", "refused"), [("vllm", 0), ("sglang", 1), ("trtllm", 1)])
def test_drafts_over_selected_blocks_are_verified_by_one_engine(
    tmp_path: Path, engine: str, refused: int
) -> None:
    """An engine without such a forward is refused, and one that has it is named."""
    decoder = read(tmp_path, "minimax_m3_vl_text")
    refusals = list(verification_refusals(decoder, BackendRelease(engine, "1")))
    assert [refusal.remedy for refusal in refusals] == ["Ask with --moe vllm"] * refused
    assert not [*verification_refusals(read(tmp_path, "llama"), BackendRelease(engine, "1"))]
    assert not [*attention_refusals(decoder, BackendRelease("flash_attn", "2.8.3"))]


@pytest.mark.parametrize(
    ("engine", "remedy"),
    [("vllm==0.28.0", ["Ask with --moe vllm==0.29.0 or a later one"]), ("vllm==0.29.0", []),
     ("vllm", []), ("sglang==0.5.18", ["Ask with --moe sglang==0.5.19 or a later one"]),
     ("sglang==0.5.19", []), ("trtllm==1.3.0rc20", ["Ask with --moe vllm"])],
)  # fmt: skip
def test_drafts_behind_a_short_convolution_are_verified_from_a_release_on(
    tmp_path: Path, engine: str, remedy: list[str]
) -> None:
    """Earlier releases are refused, since they keep the rows of a rejected draft."""
    name, _, version = engine.partition("==")
    refusals = verification_refusals(
        read(tmp_path, "lfm2_moe"), BackendRelease(name, version or None)
    )
    assert [refusal.remedy for refusal in refusals] == remedy
