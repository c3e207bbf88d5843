"""Kernels that an engine chooses where the question names none."""

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from decoders.files import change, write
from decoders.quantised import CHANNEL, TOKEN, compressed, group
from msgspec import structs
from nearfree.backends.public_kernels import BY_PUBLIC_NAME
from nearfree.config.files import DeploymentSpec
from nearfree.core.precision import Dtype
from nearfree.decoders.model_file import read_model_file
from nearfree.derive.memory import needs, static_load
from nearfree.derive.predict.forecast.deployment import Questions
from nearfree.derive.predict.forecast.expand_deployments import deployments
from nearfree.errors import ConfigError
from nearfree.show.text.forecast import no_forward

from derive.predict.forecast.pool import CONFIG

STATIC = {"quant_method": "modelopt", "quant_algo": "FP8"}
DYNAMIC = {"quant_method": "fp8", "activation_scheme": "dynamic"}
CHANNELS = {**compressed(group(CHANNEL, TOKEN)), "ignore": ["lm_head"]}


@pytest.mark.parametrize(
    ("section", "platform", "engine", "kernel"),
    [
        (STATIC, "h100", "vllm", "FlashInfer's CUTLASS"),
        (STATIC, "b200", "vllm", "FlashInfer's TRTLLM"),
        (DYNAMIC, "h100", "vllm", "Triton"),
        (CHANNELS, "h100", "sglang", None),  # vLLM's CUTLASS is not read, SGLang runs Triton
        (STATIC, "a100", "vllm", "Marlin"),
        (STATIC, "l40s", "vllm", None),
    ],
)
def test_experts_in_float8_run_where_their_file_says_it(
    section: dict[str, Any], platform: str, engine: str, kernel: str | None, tmp_path: Path
) -> None:
    """Without a named engine one is chosen whose kernel for the file is known."""
    values = json.loads((CONFIG.folder / "models/qwen3_30b_a3b.json").read_bytes())
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**values, "quantization_config": section}))
    spec = DeploymentSpec(models=(str(file),), platforms=(platform,))
    (expanded, *_) = deployments(CONFIG, spec)
    assert expanded.moe is not None
    assert expanded.moe.name == engine
    assert BY_PUBLIC_NAME.get(expanded.library or "") == kernel


@pytest.mark.parametrize(
    ("release", "platform", "message"),
    [
        ("vllm==0.33.0", "b200", False),
        ("vllm==0.22.0", "b200", True),
        ("vllm==0.22.0", "a100", False),
    ],
)
def test_an_answer_says_that_triton_stands_for_another_kernel(
    release: str, platform: str, tmp_path: Path, *, message: bool
) -> None:
    """If a release may run FlashInfer for 16-bit experts, the answer says that Triton stands in."""
    file = write(tmp_path, change("nemotron_h"), "config.json")
    spec = DeploymentSpec(models=(str(file),), platforms=(platform,), moe=(release,))
    (expanded, *_) = deployments(CONFIG, spec)
    assert any("T(N) is of Triton's" in caveat for caveat in expanded.caveats) == message


@pytest.mark.parametrize(
    ("engine", "platform", "cache", "kernel", "stands"),
    [
        ("vllm==0.33.0", "h200", None, "vllm_flash_attn_fa3", False),
        ("vllm==0.33.0", "h200", "float8", "vllm_flash_attn_fa3", True),
        ("sglang==0.5.23", "h200", None, "fa3", True),
        ("sglang==0.5.23", "b200", "float8", "trtllm_mha", True),
        ("vllm==0.33.0", "b200", "float8", "vllm_flashinfer_trtllmdecode", False),
        ("vllm==0.33.0", "rtx_4090", None, "vllm_flash_attn_fa2", False),
        ("vllm==0.33.0", "h20", None, "vllm_flash_attn_fa3", False),
    ],
)
def test_attention_decodes_by_the_engines_kernel_where_nobody_names_one(
    engine: str, platform: str, cache: Dtype | None, kernel: str, *, stands: bool
) -> None:
    """The question names the engine's kernel; the answer says if other tiles stand in."""
    spec = DeploymentSpec(
        models=("qwen3_30b_a3b",), platforms=(platform,), moe=(engine,), kv_dtype=cache
    )
    expanded = deployments(CONFIG, spec)[0]
    assert expanded.decoder_kernel == kernel
    (row,) = Questions([expanded], [1, 2]).frame.filter(module="attention").to_dicts()
    assert row["kernel"] == kernel
    kernel_caveats = [caveat for caveat in expanded.caveats if " decodes by " in caveat]
    assert [
        kernel in caveat and str(expanded.attention) in caveat for caveat in kernel_caveats
    ] == [True] * stands


@pytest.mark.parametrize(
    ("platform", "attention", "stated"),
    [
        ("rtx_pro_6000", (), True),
        ("rtx_pro_6000", ("vllm-triton==0.33.0",), False),
        ("b200", (), False),
    ],
)
def test_a_kernel_whose_tile_is_not_read_is_told(
    platform: str, attention: tuple[str, ...], *, stated: bool
) -> None:
    """If FlashInfer's XQA runs sinks, the answer names it."""
    spec = DeploymentSpec(
        models=("gpt_oss_20b",), platforms=(platform,), moe=("vllm==0.33.0",), attention=attention
    )
    for expanded in deployments(CONFIG, spec):
        assert any("by FlashInfer's XQA" in caveat for caveat in expanded.caveats) == stated


@pytest.mark.parametrize(
    ("engine", "model", "backend", "stated"),
    [
        ("sglang==0.5.23", "gpt_oss_20b", "vllm_triton 0.33.0", True),
        ("vllm==0.33.0", "gpt_oss_20b", "vllm_triton 0.33.0", False),
        ("trtllm", "qwen3_8b", "flash_attn 2.8.3", True),
        ("vllm==0.33.0", "qwen3_8b", "flash_attn 2.8.3", False),
    ],
)
def test_tiles_of_another_engine_are_told(
    engine: str, model: str, backend: str, *, stated: bool
) -> None:
    """If another engine's tiles stand in, the answer says so."""
    spec = DeploymentSpec(models=(model,), platforms=("l40s",), moe=(engine,))
    expanded = deployments(CONFIG, spec)[0]
    assert str(expanded.attention) == backend
    caveat_text = f"attends by kernels of its own: tiles of {backend} stand for them"
    assert any(caveat_text in caveat for caveat in expanded.caveats) == stated


def test_latents_of_an_engine_without_a_listed_release_need_one_by_name() -> None:
    """TensorRT-LLM's attention kernel depends on its release: the message names the option."""
    spec = DeploymentSpec(models=("deepseek_v2_lite",), platforms=("h200",), moe=("trtllm",))
    with pytest.raises(ConfigError, match="Name one: --moe trtllm==VERSION"):
        deployments(CONFIG, spec)
    expanded = deployments(CONFIG, structs.replace(spec, moe=("trtllm==1.2.0",)))
    assert {str(deployment.attention) for deployment in expanded} == {"trtllm_mla 1.2.0"}


def test_what_runs_attention_by_name_is_what_is_asked() -> None:
    """A named backend also decodes, except for wide heads and latents."""
    spec = DeploymentSpec(
        models=("qwen3_8b",), platforms=("h200",), attention=("flash-attn==2.8.3",)
    )
    (named,) = deployments(CONFIG, spec)
    assert named.decoder_kernel is None
    latent = DeploymentSpec(models=("deepseek_v2_lite",), platforms=("h200",))
    assert {deployment.decoder_kernel for deployment in deployments(CONFIG, latent)} == {None}
    assert not any(" decodes by " in caveat for caveat in named.caveats)


@pytest.mark.parametrize(
    ("moe", "platform", "kind", "message", "cached"),
    [
        ("sglang", "b200", "deepseek_v32", None, "float8"),
        ("sglang", "b200", "glm_moe_dsa", None, "float8"),
        ("sglang", "h200", "deepseek_v32", None, "bfloat16"),
        ("vllm", "b200", "deepseek_v32", None, "bfloat16"),
        ("sglang", "b200", "deepseek_v3", None, "bfloat16"),
        ("sglang", "b200", "deepseek_v32", "bfloat16", "bfloat16"),
        ("vllm", "b200", "deepseek_v32", "float8", "float8"),
    ],
)
def test_an_engine_s_cache_of_selected_latents_is_its_own_choice(
    tmp_path: Path, moe: str, platform: str, kind: str, *, message: Dtype | None, cached: Dtype
) -> None:
    """By default SGLang's cache is float8 on Blackwell, also in memory."""
    path = write(tmp_path, change(kind), "config.json")
    spec = DeploymentSpec(
        models=(str(path),),
        platforms=(platform,),
        moe=(moe,),
        routing=("balanced",),
        kv_dtype=message,
    )
    (expanded,) = deployments(CONFIG, spec)
    assert expanded.formats.kv == cached
    wide = deployments(CONFIG, structs.replace(spec, kv_dtype="bfloat16"))[0]
    assert expanded.memory is not None
    assert wide.memory is not None
    assert (expanded.memory.kv_bytes < wide.memory.kv_bytes) is (cached == "float8")


@pytest.mark.parametrize(
    ("moe", "platform", "filled"),
    [("vllm", "b200", True), ("vllm", "h100", False), ("sglang", "b200", False)],
)
def test_experts_are_filled_up_for_kernels_that_ask_it(
    tmp_path: Path, moe: str, platform: str, *, filled: bool
) -> None:
    """VLLM pads experts in mxfp4 for FlashInfer's TRTLLM, not for triton_kernels."""
    small = change("gpt_oss", quantization_config={"quant_method": "mxfp4"})
    path = write(tmp_path, small, "config.json")
    spec = DeploymentSpec(
        models=(str(path),), platforms=(platform,), moe=(moe,), routing=("balanced",)
    )
    (expanded,) = deployments(CONFIG, spec)
    plain = needs(read_model_file(path), None)
    assert expanded.memory is not None
    assert plain is not None
    assert (expanded.memory.weights_bytes > round(static_load(plain).weights)) is filled


@pytest.mark.parametrize(
    ("kind", "platform", "kernel"),
    [("qwen3_5_text", "b200", "CUTLASS"), ("qwen3_5_text", "h100", None), ("qwen3", "b200", None)],
)
def test_products_in_blocks_are_asked_of_what_a_model_runs(
    tmp_path: Path, kind: str, platform: str, kernel: str | None
) -> None:
    """For Qwen3.5 on Blackwell vLLM does not use DeepGEMM."""
    file = write(tmp_path, change(kind), "config.json")
    spec = DeploymentSpec(
        models=(str(file),), platforms=(platform,), moe=("vllm==0.33.0",), weights="float8_block"
    )
    rows = Questions(deployments(CONFIG, spec), [1, 2]).frame
    in_blocks = pl.col("module").is_in(["gemm", "dense_ffn"]) & (pl.col("dtype") == "float8_block")
    assert {*rows.filter(in_blocks)["dense_kernel"]} == {kernel}
    assert {*rows.filter(~in_blocks)["dense_kernel"]} == {None}


@pytest.mark.parametrize(
    ("section", "platform", "kernel"),
    [(CHANNELS, "h100", "vLLM's CUTLASS"), (DYNAMIC, "h100", None), (CHANNELS, "a100", None)],
)
def test_where_a_file_decides_its_kernel_is_named(
    section: dict[str, Any], platform: str, kernel: str | None, tmp_path: Path
) -> None:
    """A refusal of T(N) first names the kernel that the file selects."""
    values = json.loads((CONFIG.folder / "models/qwen3_30b_a3b.json").read_bytes())
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**values, "quantization_config": section}))
    spec = DeploymentSpec(models=(str(file),), platforms=(platform,), moe=("vllm==0.33.0",))
    (expanded, *_) = deployments(CONFIG, spec)
    assert expanded.by_file == kernel
    sentence = f"By its file vllm 0.33.0 runs {kernel} for its experts. "
    assert no_forward(expanded).startswith(sentence) == (kernel is not None)
