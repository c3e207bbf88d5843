"""The resolver, over the releases that the repository has on record."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from nearfree.backends.moe_kernels import MARLIN
from nearfree.core.modules.moe_ffn import MoeQuestion
from nearfree.derive.granularity.releases import PINNED_TRITON, Release
from nearfree.derive.granularity.resolve import Resolver
from nearfree.errors import EvidenceError
from nearfree.sources.answers.lookup import TunedFiles
from nearfree.sources.answers.marlin import BlockRowRules
from nearfree.sources.answers.moe import MoeQuery, MoeRules
from nearfree.sources.record import recorded_extraction

from derive.questions import LOG, RESOLVER

LAYER = MoeQuestion(
    backend="vllm",
    backend_version="0.9.1",
    kernel=None,
    dtype="bfloat16",
    d_model=4096,
    d_ff=1024,
    experts=256,
    top_k=8,
    block_size_m=None,
    sm=90,
    device_name="NVIDIA H20",
)


def layer(**changes: Any) -> MoeQuestion:
    """Return the paper's layer with some of its fields changed."""
    return replace(LAYER, **changes)


def test_the_fallback_of_the_paper() -> None:
    """16 tokens up to E of them, then 64; each with file, lines and digest."""
    steps = RESOLVER.moe(LAYER)
    blocks = [steps.at(tokens) for tokens in (1, 256, 257)]
    assert [block.value for block in blocks] == [16, 16, 64]
    assert {block.path for block in blocks} == {"aligned"}
    assert {block.source for block in blocks} == {"fallback"}
    cited = [steps.evidence(tokens) for tokens in (1, 256, 257)]
    assert all("fused_moe.py:" in place and place.endswith(")") for place in cited)
    assert [steps.tau(tokens) for tokens in (1, 32, 256, 257)] == [256, 256, 256, None]


def test_few_tokens_have_a_path_of_their_own() -> None:
    """Since 0.17, up to E / 4k tokens skip the alignment: the configuration changes there too."""
    steps = RESOLVER.moe(layer(backend_version="0.20.2"))
    assert (steps.at(8).path, steps.at(9).path) == ("naive", "aligned")
    assert [steps.tau(tokens) for tokens in (1, 9, 33)] == [8, 32, 96]


def test_a_rank_with_some_of_the_experts_aligns_all_tokens() -> None:
    """The path without alignment asks for no map of experts, which a rank of several has."""
    spread = RESOLVER.moe(layer(backend_version="0.20.2", ep=4))
    assert {spread.at(tokens).path for tokens in (1, 2, 8)} == {"aligned"}


def test_a_tuned_file_is_found_by_the_device() -> None:
    """It goes before the fallback, and its entry's line is cited."""
    steps = RESOLVER.moe(layer(experts=8, top_k=2, d_ff=7168, device_name="NVIDIA H200"))
    assert steps.at(1).source == "tuned"
    assert "E=8,N=7168,device_name=NVIDIA_H200.json:" in steps.evidence(1)


def test_every_entry_of_a_tuned_file_has_its_own_line() -> None:
    """The line is that of the entry for so many tokens, of the last one however many there are."""
    steps = RESOLVER.moe(layer(experts=8, top_k=2, d_ff=7168, device_name="NVIDIA H200"))
    cited = [steps.evidence(tokens) for tokens in (1, 64, 4096, 2_000_000)]
    assert len({*cited}) == len(cited) - (cited[2] == cited[3])
    assert cited[0] != cited[1] != cited[2]
    assert cited[3].partition(":")[0] == cited[2].partition(":")[0]


def test_the_pinned_triton_chooses_the_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """SGLang 0.5.10 has files for several; one whose Triton is not pinned here is refused."""
    shape = {"backend": "sglang", "experts": 8, "top_k": 2, "d_ff": 7168}
    h100 = layer(**shape, backend_version="0.5.10", device_name="NVIDIA H100 80GB HBM3")
    steps = RESOLVER.moe(h100)
    assert (steps.at(1).source, steps.at(64).source) == ("tuned", "tuned")
    monkeypatch.setattr("nearfree.derive.granularity.resolve.PINNED_TRITON", {})
    with pytest.raises(EvidenceError, match="depends on the running Triton"):
        Resolver(LOG).moe(h100)


@pytest.mark.parametrize(
    ("version", "kernel", "path"),
    [
        ("0.14.0", None, "naive"),
        ("0.14.0", "vllm_triton_tritonexperts", "aligned"),
        ("0.20.2", "vllm_triton_tritonexperts", "naive"),
    ],
)
def test_the_class_of_serving_has_paths_of_its_own(
    version: str, kernel: str | None, path: str
) -> None:
    """The kernel's name tells it from the function; it aligned few tokens too, up to 0.19."""
    steps = RESOLVER.moe(layer(backend_version=version, kernel=kernel))
    assert steps.at(1).path == path


def test_an_override_is_the_settings_own() -> None:
    """A block that the setting fixes holds for any number of tokens."""
    steps = RESOLVER.moe(layer(block_size_m=32))
    assert steps.at(1).value == steps.at(4000).value == 32
    assert steps.evidence(1) == "the caller"
    assert steps.tau(1) is None


shapes = st.fixed_dictionaries(
    {
        "experts": st.sampled_from([8, 128, 256]),
        "top_k": st.sampled_from([2, 8]),
        "d_ff": st.sampled_from([512, 1024, 7168]),
    }
)


@pytest.mark.slow
@given(
    st.sampled_from([("vllm", "0.9.1"), ("vllm", "0.20.2"), ("sglang", "0.5.9")]),
    shapes,
    st.sampled_from(["NVIDIA H20", "NVIDIA H200", "NVIDIA B200"]),
    st.sampled_from(
        [
            ("bfloat16", None, "bf16"),
            ("float8", None, "fp8"),
            ("float8_block", None, "fp8_block"),
            ("bfloat16", "int8", "int8_w8a16"),
            ("bfloat16", "int4", "int4"),
        ]
    ),
    st.lists(st.integers(1, 5000), min_size=1, max_size=5),
)
@settings(deadline=None, max_examples=40)
def test_shared_answers_are_each_layers_own(
    release: tuple[str, str],
    shape: dict[str, Any],
    device: str,
    formats: tuple[str, str | None, Any],
    tokens: list[int],
) -> None:
    """Layers share what rules say of them; each gets what its release says of it alone."""
    backend, version = release
    extraction = recorded_extraction(LOG, *release)
    assert extraction is not None
    query = MoeQuery(
        **shape,
        d_model=4096,
        dtype=formats[2],
        device=device,
        triton=PINNED_TRITON.get(Release(*release)),
        sm=90,
        smem_per_block=227 * 1024,
    )
    question = layer(
        **shape,
        backend=backend,
        backend_version=version,
        kernel="fused_moe_triton",
        dtype=formats[0],
        weights=formats[1],
        device_name=device,
    )
    try:
        alone = MoeRules(extraction.by_name(), TunedFiles(extraction.tuned), query, 4096)
    except EvidenceError as error:
        with pytest.raises(EvidenceError, match=error.what.split(";")[0].replace("+", ".")):
            RESOLVER.moe(question)
        return
    blocks = [alone.at(token) for token in tokens]
    shared = [RESOLVER.moe(question).at(token) for token in tokens]
    for block, own in zip(shared, blocks, strict=True):
        assert (block.value, block.block_n, block.block_k) == (own.value, own.block_n, own.block_k)
        assert block.path == own.path


@pytest.mark.parametrize(
    ("changes", "missing"),
    [
        ({"backend_version": "0.0.1"}, "no rules of vllm 0.0.1 in the log"),
        ({"dtype": "float32"}, "no MoE rules of vllm for float32"),
        ({"weights": "mxfp8"}, "no MoE rules of vllm for bfloat16 with mxfp8 weights"),
        ({"weights": "mxfp4"}, "which MoE kernel vllm 0.9.1 runs for mxfp4 weights is not read"),
        ({"kernel": "marlin"}, "no rules of the MoE kernel marlin"),
        ({"top_k": 257}, "top_k 257 is larger than experts 256"),
        ({"experts": 8, "top_k": 2, "d_ff": 7168, "device_name": None}, "depends on the device"),
    ],
)
def test_what_a_layer_lacks_is_named_each_time(changes: dict[str, Any], missing: str) -> None:
    """Refusals are cached like answers."""
    for _ in range(2):
        with pytest.raises(EvidenceError, match=missing):
            RESOLVER.moe(layer(**changes))


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        (
            {"backend_version": "0.33.0", "sm": 100},
            r"0.33.0 runs FlashInfer's TRTLLM .* 100 \(.*/oracle/fp8.py:79-145\).* on 89 to 90",
        ),
        ({"backend_version": "0.14.0"}, "one of several kernels .DeepGEMM where"),
        ({"backend_version": "0.20.2", "dtype": "float8"}, "CUTLASS where the file is one of comp"),
        ({"backend_version": "0.20.2", "sm": 70}, "runs no kernel that is read for float8_block"),
        (
            {"backend_version": "0.21.0"},
            "which MoE kernel vllm 0.21.0 .* is not read; it is read for 0",
        ),
        (
            {"dtype": "bfloat16", "weights": "int4", "backend_version": "0.33.0"},
            "runs Humming for int4 weights",
        ),
        ({"dtype": "bfloat16", "weights": "int4"}, "no rule of Marlin's blocks is read"),
        (
            {"dtype": "bfloat16", "weights": "int4", "backend_version": "0.24.0", "d_ff": 1056},
            "multiples of 128, not d_model 4096 and d_ff 1056",
        ),
        ({"backend": "sglang", "backend_version": "0.5.23", "sm": 103}, "TRTLLM where the archit"),
    ],
)
def test_another_kernel_than_tritons_is_refused(changes: dict[str, Any], refusal: str) -> None:
    """An engine chooses its kernel by format, device and release; only Triton's blocks are read."""
    with pytest.raises(EvidenceError, match=refusal):
        RESOLVER.moe(layer(**{"dtype": "float8_block", **changes}))


@pytest.mark.parametrize(
    ("backend", "version", "place"),
    [
        ("vllm", "0.14.0", "fused_marlin_moe.py:305-305"),
        ("vllm", "0.24.0", "experts/marlin_moe.py:317-317"),
        ("sglang", "0.5.23", "fused_marlin_moe.py:248-248"),
    ],
)
def test_weights_of_four_bits_have_marlins_blocks(backend: str, version: str, place: str) -> None:
    """They follow the routed tokens an expert: 256 experts of 8 a token have up to 7.2 in 8."""
    moe_layer = layer(backend=backend, backend_version=version, weights="int4")
    steps = RESOLVER.moe(moe_layer)
    values = [steps.at(tokens).value for tokens in (1, 230, 231, 460, 461, 921, 922, 1382, 1383)]
    assert values == [8, 8, 16, 16, 32, 32, 48, 48, 64]
    assert place in steps.evidence(1)
    assert [steps.tau(tokens) for tokens in (1, 231)] == [230, 460]


@pytest.mark.parametrize("changes", [{}, {"kernel": "fused_moe"}, {"block_size_m": 64}])
@pytest.mark.parametrize("weights", ["mxfp4", "nvfp4"])
def test_floats_of_four_bits_run_marlin_where_no_unit_takes_them(
    weights: str, changes: dict[str, Any]
) -> None:
    """Its blocks are those of int4, and never Triton's, whatever a question names."""
    common = {"dtype": "bfloat16", "backend_version": "0.24.0", "sm": 80}
    steps = RESOLVER.moe(layer(**common, weights=weights, **changes))
    granularity = RESOLVER.moe(layer(**common, weights="int4"))
    tokens = (1, 230, 231, 922)
    assert [steps.at(token).value for token in tokens] == [
        granularity.at(token).value for token in tokens
    ]


@pytest.mark.parametrize(
    ("dtype", "weights", "sm", "why"),
    [
        ("bfloat16", "mxfp4", 90, "triton_kernels where the model is gpt-oss"),
        ("bfloat16", "mxfp4", 100, "runs FlashInfer's TRTLLM for mxfp4 weights"),
        ("nvfp4", None, 100, "FlashInfer's CuteDSL or CUTLASS where it does not"),
    ],
)
def test_floats_of_four_bits_elsewhere_name_their_kernels(
    dtype: str, weights: str | None, sm: int, why: str
) -> None:
    """With the devices on which Marlin runs, whose blocks are read."""
    with pytest.raises(EvidenceError, match=rf"{why}.*Marlin, whose blocks are, runs on 80"):
        RESOLVER.moe(layer(dtype=dtype, weights=weights, sm=sm, backend_version="0.24.0"))


@pytest.mark.parametrize(
    "changes",
    [
        {"dtype": "float8_block", "backend_version": "0.33.0"},
        {"dtype": "float8_block", "backend_version": "0.33.0", "sm": 100, "kernel": "fused_moe"},
        {"dtype": "float8_block", "backend_version": "0.33.0", "sm": 100, "block_size_m": 64},
        {"dtype": "float8", "backend": "vllm_0_9_1", "backend_version": None},
        {"dtype": "bfloat16", "backend_version": "0.33.0", "sm": 100},
        {"dtype": "int8", "backend_version": "0.33.0", "sm": 100},
    ],
)
def test_where_triton_runs_its_blocks_are_answered(changes: dict[str, Any]) -> None:
    """So they are where a kernel, a block or the paper's backend is named, and for 16 bits."""
    assert RESOLVER.moe(layer(**changes)).at(1).value >= 16


@settings(deadline=None)
@given(st.integers(1, 4096), st.sampled_from(("0.9.1", "0.20.2", "0.33.0")))
def test_a_step_is_the_block_of_its_tokens(tokens: int, version: str) -> None:
    """Each number of tokens has its own block, though equal ones are computed once."""
    extraction = recorded_extraction(LOG, "vllm", version)
    assert extraction is not None
    query = MoeQuery(experts=256, top_k=8, d_ff=1024, d_model=4096, device="NVIDIA H20", sm=90)
    rules = MoeRules(extraction.by_name(), TunedFiles(extraction.tuned), query, 4096)
    block = rules.at(tokens)
    assert rules.step(tokens) == (block.path, block.value)
    assert block == rules._at(rules._chunk(tokens))  # resolved by itself


@settings(deadline=None, max_examples=20)
@given(
    release=st.sampled_from((("vllm", "0.9.1"), ("vllm", "0.14.0"), ("vllm", "0.33.0"),
                             ("sglang", "0.5.9"), ("sglang", "0.5.23"))),
    shape=st.sampled_from(((8, 2, 14336), (128, 8, 768), (256, 8, 256), (512, 1, 512))),
    dtype=st.sampled_from(("bf16", "fp8_block")),
    device=st.sampled_from(("NVIDIA H20", "NVIDIA L40S")),
)  # fmt: skip
def test_steps_change_where_a_layer_says(
    release: tuple[str, str], shape: tuple[int, int, int], dtype: Any, device: str
) -> None:
    """Between two numbers of tokens that a layer names, path and BLOCK_SIZE_M stay the same."""
    extraction = recorded_extraction(LOG, *release)
    assert extraction is not None
    experts, top_k, d_ff = shape
    query = MoeQuery(
        experts=experts, top_k=top_k, d_ff=d_ff, d_model=4096, dtype=dtype, device=device, sm=90,
        smem_per_block=227 * 1024, triton=PINNED_TRITON.get(Release(*release)),
    )  # fmt: skip
    rules = MoeRules(extraction.by_name(), TunedFiles(extraction.tuned), query, 4096)
    steps = [rules.step(tokens) for tokens in range(1, 1201)]
    real = {n for n in range(2, 1201) if steps[n - 1] != steps[n - 2]}
    assert real <= {*rules.changes(1200)}


@pytest.mark.parametrize("shape", [(8, 2), (128, 8), (512, 10)])
def test_steps_of_marlin_change_where_it_says(shape: tuple[int, int]) -> None:
    """The rows of Marlin's blocks stay the same between the numbers that are named."""
    extraction = recorded_extraction(LOG, "vllm", "0.33.0")
    assert extraction is not None
    query = MoeQuery(experts=shape[0], top_k=shape[1], d_ff=1024, d_model=4096, dtype="int4")
    rules = BlockRowRules(extraction.by_name(), query, MARLIN)
    steps = [rules.step(tokens) for tokens in range(1, 1201)]
    real = {n for n in range(2, 1201) if steps[n - 1] != steps[n - 2]}
    assert real
    assert real <= {*rules.changes(1200)}
