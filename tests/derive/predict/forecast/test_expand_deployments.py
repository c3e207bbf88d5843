"""Names become deployments: each combination once, with releases and facts."""

import shutil
from itertools import product
from pathlib import Path

import pytest
from decoders.files import change, refusal, write
from msgspec import structs
from nearfree.config.files import BOUNDS, Config, DeploymentSpec
from nearfree.core.precision import Dtype, Product, uniform
from nearfree.derive.predict.forecast.degrees import spread_of
from nearfree.derive.predict.forecast.expand_deployments import MOST, deployments
from nearfree.derive.predict.forecast.on_record import newest
from nearfree.errors import NearfreeError
from packaging.version import Version

from derive.predict.forecast.pool import CONFIG, GRID, deployment


def test_one_deployment_a_combination() -> None:
    """Each model, platform, routing, batch and context is one; routing counts for experts only."""
    spec = DeploymentSpec(
        models=("qwen3_8b", "mixtral_8x7b"), platforms=("h20", "b200"), batch=(1, 4),
        context=(512, 1024), attention=("flash-attn==2.8.3",), moe=("vllm==0.20.2",),
    )  # fmt: skip
    expanded = deployments(CONFIG, spec)
    combination = product(
        ("qwen3_8b", "mixtral_8x7b"), ("h20", "b200"), BOUNDS, (1, 4), (512, 1024)
    )
    wanted = [
        (model, platform, routing if model != "qwen3_8b" else None, batch, context)
        for model, platform, routing, batch, context in combination
    ]
    combinations = [(d.decoder.name, d.platform, d.routing, d.batch, d.context) for d in expanded]
    assert combinations == list(dict.fromkeys(wanted))
    assert all(
        (deployment_.moe is None) == (deployment_.decoder.experts is None)
        for deployment_ in expanded
    )


def test_each_release_of_attention_and_of_experts_is_asked() -> None:
    """Every release of attention is combined with every release of the experts."""
    attention = ("flash-attn==2.8.3", "flashinfer==0.6.13")
    moe = ("vllm==0.20.2", "sglang==0.5.9", "vllm==0.33.0")
    spec = DeploymentSpec(
        models=("qwen3_8b", "mixtral_8x7b"), platforms=("h20",), routing=("skewed",),
        attention=attention, moe=moe,
    )  # fmt: skip
    pairs = [(str(d.attention), d.moe and str(d.moe)) for d in deployments(CONFIG, spec)]
    runs, experts = (
        [str(newest(CONFIG, text)) for text in texts] for texts in (attention, moe)
    )  # fmt: skip
    assert pairs == [*product(runs, [None]), *product(runs, experts)]


@pytest.mark.parametrize(
    ("platform", "weights", "rows"),
    [
        ("a100", "float8_block", "bfloat16"),
        ("l40s", "float8_block", "bfloat16"),
        ("h100", "float8_block", "float8_block"),
        ("a100", "float8", "bfloat16"),
        ("l40s", "float8", "float8"),
        ("a100", "int8", "int8"),
        ("l40s", "nvfp4", "bfloat16"),
        ("h100", "nvfp4", "nvfp4"),
        ("b200", "nvfp4", "nvfp4"),
    ],
)
def test_what_enters_products_is_what_the_engine_lets_enter(
    platform: str, weights: Dtype, rows: Dtype
) -> None:
    """Float8 and nvfp4 run by Marlin in vLLM where the GPU or its kernels do not take such rows.

    On Hopper that is Humming, of which it is not known what it rounds in nvfp4. Weights and cache
    keep their formats; what is left plain stays so.
    """
    spec = DeploymentSpec(models=("qwen3_8b",), platforms=(platform,), weights=weights)
    (expanded,) = deployments(CONFIG, spec)
    assert expanded.precision is not None
    assert expanded.said == {"weights": weights, "activations": rows, "kv": "bfloat16"}
    assert expanded.precision.attention == Product(weights, rows)
    assert expanded.precision.lm_head == Product("bfloat16", "bfloat16")


def test_what_is_listed_twice_is_asked_once() -> None:
    """One model by two names, and a repeated number, are one deployment."""
    spec = DeploymentSpec(
        models=("qwen3_8b", "Qwen3-8B"), platforms=("h20", "h20_sxm"), batch=(1, 1),
        context=(512, 512), attention=("flash-attn==2.8.3", "flash_attn==2.8.3"),
    )  # fmt: skip
    assert len(deployments(CONFIG, spec)) == 1


def test_the_newest_recorded_release() -> None:
    """A package without a version is its newest listed release, in version order."""
    packages = {"vllm": "vllm", "flashinfer": "flashinfer-python"}
    packages |= {"flashinfer-fa3": "flashinfer-python", "FlashInfer_fa2": "flashinfer-python"}
    for text, package in packages.items():
        versions = [
            release.partition("==")[2]
            for release in CONFIG.releases
            if release.startswith(f"{package}==")
        ]
        assert len(versions) > 2
        assert Version(newest(CONFIG, text).version or "0") == max(map(Version, versions))
    assert newest(CONFIG, "vllm==0.9.1").version == "0.9.1"
    assert newest(CONFIG, "torch-sdpa").version is None


@pytest.mark.parametrize("text", ["nonsense", "vllm==", "==1", "flash-atn", "vllm==x", "a b", ""])
def test_what_no_backend_is_called(text: str) -> None:
    """A text that names no backend is refused by name."""
    error = refusal(lambda: newest(CONFIG, text))
    assert error is not None
    assert repr(text) in error.what


def test_a_package_that_is_not_recorded() -> None:
    """A package without a listed release needs a version."""

    class Without(Config):
        releases = ()  # type: ignore[assignment]

    error = refusal(lambda: newest(Without(CONFIG.folder), "vllm"))
    assert error is not None
    assert "sources.yaml" in error.what
    assert "==" in error.remedy


@pytest.mark.parametrize(
    ("changes", "thing"),
    [({"models": ("qwen9",)}, "qwen9"), ({"platforms": ("mars",)}, "mars"),
     ({"moe": ("vlm",), "models": ("mixtral_8x7b",)}, "vlm"), ({"attention": ("fa",)}, "'fa'")],
)  # fmt: skip
def test_what_nothing_knows(changes: dict[str, object], thing: str) -> None:
    """An unknown model, platform or backend is refused by its name."""
    fields = {"models": ("qwen3_8b",), "platforms": ("h20",)} | changes
    with pytest.raises(NearfreeError, match=thing):
        deployments(CONFIG, DeploymentSpec(**fields))  # type: ignore[arg-type]


def test_too_many_at_once() -> None:
    """Too many combinations are refused before one is made."""
    listed = tuple(range(1, MOST + 2))
    spec = DeploymentSpec(models=("qwen3_8b",), platforms=("h20",), batch=listed, context=listed)
    error = refusal(lambda: deployments(CONFIG, spec))
    assert error is not None
    assert str((MOST + 1) ** 2) in error.what


def test_the_dtype_is_the_models_own() -> None:
    """Every module has the given element type, by default the model's."""
    assert {use.setting.dtype for use in deployment().uses()} == {"bfloat16"}
    assert {use.setting.dtype for use in deployment(precision=uniform("float16")).uses()} == {
        "float16"
    }
    assert GRID[0] == 1


def test_a_layer_for_further_tokens_is_left_plain_by_the_file_alone(tmp_path: Path) -> None:
    """If another format is asked for, the draft layer has it, too."""
    section = {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["mtp*"]}
    file = write(tmp_path, change("qwen3", quantization_config=section), "config.json")
    spec = DeploymentSpec(models=(str(file),), platforms=("h200",))
    (own,) = deployments(CONFIG, spec)
    (other,) = deployments(CONFIG, structs.replace(spec, weights="float8_block"))
    assert (own.drafts_plain, other.drafts_plain) == (True, False)


@pytest.mark.parametrize(
    ("releases", "attention"),
    [
        ("[flash-attn==2.8.3, vllm-fa3==0.33.0]", "vllm_fa3 0.33.0"),
        ("[flash-attn==2.8.3]", "flash_attn 2.8.3"),
        ("[]", None),
    ],
)
def test_what_an_engine_takes_gives_way_where_it_is_not_listed(
    tmp_path: Path, releases: str, attention: str | None
) -> None:
    """The first choice that sources.yaml lists runs, else the engine's own is named."""
    folder = tmp_path / "config"
    shutil.copytree(CONFIG.folder, folder)
    (folder / "sources.yaml").write_text(f"releases: {releases}\n")
    spec = DeploymentSpec(models=("qwen3_8b",), platforms=("h200",), moe=("vllm==0.33.0",))
    if attention is None:
        with pytest.raises(NearfreeError, match="no release of vllm-fa3 is listed"):
            deployments(Config(folder), spec)
        return
    (expanded,) = deployments(Config(folder), spec)
    assert str(expanded.attention) == attention


@pytest.mark.parametrize(
    ("engine", "attention"),
    [
        ("vllm==0.24.0", "vllm_triton 0.24.0"),
        ("vllm==0.20.2", "vllm_triton 0.20.2"),
        ("vllm==0.22.0", "vllm_triton 0.33.0"),  # none of 0.22.0 is listed
        ("vllm", "vllm_triton 0.33.0"),
    ],
)
def test_an_engines_own_attention_is_of_its_release(
    tmp_path: Path, engine: str, attention: str
) -> None:
    """A kernel in the engine's package has the engine's release."""
    file = write(tmp_path, change("gpt_oss"), "config.json")
    spec = DeploymentSpec(models=(str(file),), platforms=("a100",), moe=(engine,))
    assert {str(deployment.attention) for deployment in deployments(CONFIG, spec)} == {attention}


def test_a_version_is_the_same_however_it_is_written() -> None:
    """Equal versions in different spelling are the listed release."""
    spec = DeploymentSpec(
        models=("qwen3_8b",), platforms=("h200",), attention=("flashinfer==0.6.13",),
        moe=("sglang==0.5.23",), dense="vllm-linear==0.33.0", graphs="vllm==0.33.0",
        weights="int4",
    )  # fmt: skip
    other = structs.replace(
        spec, attention=("flashinfer==0.6.13.0",), moe=("SGLang==0.5.23.0",),
        dense="vllm-linear==0.33", graphs="vllm==0.33",
    )  # fmt: skip
    assert deployments(CONFIG, other) == deployments(CONFIG, spec)


def test_graphs_and_dense_products_are_of_the_release_that_is_named() -> None:
    """A named release counts also if it is not recorded; then its rules are asked for."""
    spec = DeploymentSpec(
        models=("qwen3_8b",), platforms=("h200",), moe=("vllm==77.0.0",), weights="int4",
        graphs="engine",
    )  # fmt: skip
    (expanded,) = deployments(CONFIG, spec)
    assert expanded.graphs is not None
    assert {str(expanded.graphs.engine), str(expanded.server)} == {"vllm 77.0.0"}
    assert str(expanded.dense) == "vllm_linear 77.0.0"


@pytest.mark.parametrize(
    ("degrees", "tp"), [({"gpus": 8}, 8), ({"gpus": 8, "ep": 8}, 8), ({"gpus": 8, "dp": 8}, 1)]
)
def test_gpus_share_each_matrix_where_nothing_else_is_said(
    degrees: dict[str, int], tp: int
) -> None:
    """With whole experts per rank, tp is the engines' default."""
    spec = DeploymentSpec(models=("mixtral_8x7b",), platforms=("h200",), **degrees)
    spread = spread_of(spec)
    assert (spread.parallel.tp, spread.parallel.gpus, spread.refusals) == (tp, 8, ())


def test_blocks_about_a_state_are_not_cut_apart(tmp_path: Path) -> None:
    """A rank that would divide a block of a mixer's weights is refused."""
    file = write(tmp_path, change("nemotron_h"), "config.json")
    spec = DeploymentSpec(models=(str(file),), platforms=("h200",), weights="float8_block", tp=2)
    error = refusal(lambda: deployments(CONFIG, spec))
    assert error is not None
    assert "24, the heads of a Mamba-2 mixer, in groups of 128 with one scale" in error.what


@pytest.mark.parametrize(
    ("platform", "engine", "tp", "noted"),
    [
        ("b200", "vllm==0.33.0", 8, True),
        ("b200", "vllm==0.33.0", 1, False),
        ("b200", "vllm==0.14.0", 8, False),
        ("a100", "vllm==0.33.0", 8, False),
        ("h20", "sglang==0.5.9", 8, False),
        ("h200", "sglang==0.5.9", 8, True),
        ("h200", "torch_grouped", 8, True),  # whose collectives are vLLM's newest
    ],
)
def test_sums_by_kernels_without_a_curve_are_noted(
    platform: str, engine: str, tp: int, *, noted: bool
) -> None:
    """Where FlashInfer's kernels all-reduce, an answer says that others' curves are theirs."""
    spec = DeploymentSpec(
        models=("qwen3_30b_a3b",), platforms=(platform,), routing=("balanced",), moe=(engine,),
        tp=tp, ep=tp,
    )  # fmt: skip
    (given,) = deployments(CONFIG, spec)
    assert given.sums_by_flashinfer is noted
    assert any("by FlashInfer's kernels" in caveat for caveat in given.caveats) is noted
