"""The resolver, over the releases that the repository has on record."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from nearfree.core.modules.attention import AttentionQuestion
from nearfree.core.modules.moe_ffn import MoeQuestion
from nearfree.derive.granularity.releases import PINNED_TRITON, Release
from nearfree.derive.granularity.resolve import Resolver
from nearfree.derive.granularity.steps import tile_evidence
from nearfree.derive.granularity.tile_grid import tile_sizes
from nearfree.errors import EvidenceError, NearfreeError
from nearfree.sources.answers.lookup import TunedFiles
from nearfree.sources.answers.marlin import MarlinRules
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
CALL = AttentionQuestion(
    backend="flash_attn_2",
    backend_version=None,
    dtype="bfloat16",
    batch=1,
    context=4096,
    heads=32,
    kv_heads=32,
    head_dim=128,
    api=None,
    page_size=None,
    cuda_graph=False,
    most=256,
    sm=90,
    sm_count=78,
)


def layer(**changes: Any) -> MoeQuestion:
    """Return the paper's layer with some of its fields changed."""
    return replace(LAYER, **changes)


def call(**changes: Any) -> AttentionQuestion:
    """Return the paper's call with some of its fields changed."""
    return replace(CALL, **changes)


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


@pytest.mark.parametrize(
    ("changes", "tile", "m_attn"),
    [
        ({}, 64, 64),
        ({"backend": "flashinfer"}, 16, 16),
        ({"backend": "flashinfer", "kv_heads": 8}, 16, 4),
        ({"backend": "flashinfer", "batch": 8, "context": 128}, 16, 16),
        ({"backend": "flash_attn_3", "backend_version": "0.0.34", "api": "varlen"}, 128, 128),
    ],
)
def test_the_tile_ends_where_size_or_count_changes(
    changes: dict[str, Any], tile: int, m_attn: int
) -> None:
    """FlashInfer packs query heads, so g of them share its first 16 rows."""
    steps = RESOLVER.attention(call(**changes))
    first, last, after = (steps.at(n) for n in (1, m_attn, m_attn + 1))
    assert (first.tile, first.tiles) == (last.tile, last.tiles) == (tile, 1)
    assert (after.tile, after.tiles) != (tile, 1)
    assert steps.last_alike() == m_attn


def test_a_cuda_graph_is_looked_at_up_to_its_capture() -> None:
    """The tile follows the captured positions, so nothing changes below them."""
    steps = RESOLVER.attention(call(backend="flashinfer", cuda_graph=True, most=200))
    assert steps.at(1).tile == 128
    assert steps.last_alike() == 128


@pytest.mark.parametrize(
    ("changes", "missing"),
    [
        (
            {"backend": "flash_attn", "backend_version": "2.8.3", "context": 0},
            r"which call of flash_attn .*api",
        ),
        ({"backend": "vllm"}, "no rules of the attention kernels of vllm"),
        ({"dtype": "float8"}, "no tile rules of flash-attn for float8"),
        (
            {"kv_dtype": "float8"},
            "flash-attn has no kernel .* float8 cache: ask with .* or --attention flashinfer",
        ),
        (
            {"kv_dtype": "int8", "backend": "flashinfer"},
            r"no tile rules of flashinfer .* a int8 cache are read: ask with .* bfloat16\.",
        ),
        (
            {
                "kv_dtype": "float8",
                "backend": "flash_attn_4",
                "backend_version": "4.0.0b36",
                "sm": 100,
            },
            "no tile rules of flash-attn-4 for bfloat16 over a float8 cache are read: ask with",
        ),
        (
            {"kv_dtype": "float8", "backend": "flashinfer_fa3", "backend_version": "0.6.13"},
            "flashinfer-fa3 has no kernel for bfloat16 over a float8 cache",
        ),
        ({"sm_count": None}, "number of SMs"),
        ({"kv_heads": 5}, "32 heads are no multiple of 5 kv_heads"),
    ],
)
def test_missing_fields_of_a_call_are_named(changes: dict[str, Any], missing: str) -> None:
    """A call without a required field is refused with the field's name."""
    with pytest.raises(EvidenceError, match=missing):
        RESOLVER.attention(call(**changes)).last_alike()


@pytest.mark.parametrize(("cache", "tile"), [(None, 64), ("bfloat16", 64), ("float8", 16)])
def test_the_bytes_of_a_cache_are_asked_for(cache: str | None, tile: int) -> None:
    """Since 0.7 FlashInfer chooses by what a step of keys takes in shared memory."""
    attention_call = call(
        backend="flashinfer_fa2",
        backend_version="0.7.2.post1",
        kv_dtype=cache,
        head_dim=384,
        sm=89,
    )
    assert RESOLVER.attention(attention_call).at(1).tile == tile


def test_the_tile_over_a_float8_cache_is_that_of_common_heads() -> None:
    """FlashInfer's fa2 kernels unpack the keys: the tile of usual heads stays."""
    for version in ("0.5.3", "0.6.13", "0.7.2.post1"):
        own = call(backend="flashinfer_fa2", backend_version=version)
        eight = replace(own, kv_dtype="float8")
        for n in (1, 16, 17, 128):
            assert RESOLVER.attention(eight).at(n) == RESOLVER.attention(own).at(n)


def test_over_a_cache_the_call_is_that_for_a_cache() -> None:
    """FlashAttention by its own name and version answers as the paper's backend."""
    printed = RESOLVER.attention(call(backend="flash_attn_2"))
    named = RESOLVER.attention(call(backend="flash-attn", backend_version="2.8.3"))
    for n in (1, 65):
        assert (named.at(n), named.evidence(n)) == (printed.at(n), printed.evidence(n))
    assert named.last_alike() == printed.last_alike() == 64


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
    rules = MarlinRules(extraction.by_name(), query)
    steps = [rules.step(tokens) for tokens in range(1, 1201)]
    real = {n for n in range(2, 1201) if steps[n - 1] != steps[n - 2]}
    assert real
    assert real <= {*rules.changes(1200)}


RELEASES = (
    ("flash_attn", "2.8.3"),
    ("flash_attn_3", "0.0.34"),
    ("flashinfer_fa2", "0.5.3"),
    ("flashinfer_fa2", "0.6.13"),
    ("flashinfer_fa2", "0.7.2.post1"),
    ("flashinfer_fa3", "0.6.13"),
)
CACHED_CALL = AttentionQuestion(
    backend="flash_attn",
    backend_version="2.8.3",
    dtype="bfloat16",
    batch=1,
    context=4096,
    heads=32,
    kv_heads=4,
    head_dim=128,
    api="kvcache",
    page_size=None,
    cuda_graph=False,
    most=300,
    sm=90,
    sm_count=132,
)
call_shapes = st.fixed_dictionaries(
    {
        "kv_heads": st.sampled_from([1, 4, 8, 28]),
        "heads": st.sampled_from([28, 56]),
        "head_dim": st.sampled_from([64, 100, 128, 192, 256, 512]),
        "api": st.sampled_from(["kvcache", "varlen", "dense", None]),
        "page_size": st.sampled_from([None, None, 1, 16, 128, 256]),
        "cuda_graph": st.booleans(),
        "most": st.sampled_from([40, 300]),
        "sm": st.sampled_from([80, 90, 90, 100, None]),
        "sm_count": st.sampled_from([78, 132, None]),
    }
)
contexts = st.integers(0, 3) | st.integers(4, 60_000)
large = st.integers(2**30, 2**64)
small = st.lists(st.tuples(st.integers(1, 300), contexts), min_size=1, max_size=4)
calls = small | st.lists(st.tuples(st.integers(1, 300), contexts | large), min_size=1, max_size=4)
grids = st.lists(st.integers(1, 300), min_size=3, max_size=3)


def alone(call: AttentionQuestion, positions: list[int]) -> Any:
    """Return the answer of one call at each N, or its error."""
    try:
        steps = RESOLVER.attention(call)
        tiles = [steps.at(n) for n in positions]
    except NearfreeError as error:
        return str(error)
    sizes = ((t.tile, t.rows_per_position, int(t.unsplit)) for t in tiles)
    return tuple(zip(*sizes, strict=True))


@pytest.mark.parametrize(("backend", "version"), RELEASES)
@settings(deadline=None)
@given(shape=call_shapes, points=calls, grid=grids)
def test_many_calls_at_once_answer_as_each_alone(
    backend: str,
    version: str,
    shape: dict[str, Any],
    points: list[tuple[int, int]],
    grid: list[int],
) -> None:
    """Rows of a tile and of a position, splits and errors are equal."""
    call = replace(CACHED_CALL, backend=backend, backend_version=version, **shape)
    calls = [replace(call, batch=batch, context=context) for batch, context in points]
    sizes, errors = tile_sizes(RESOLVER, calls, np.array([grid] * len(calls), np.int64))
    for place, single_call in enumerate(calls):
        error = errors[place]
        point_sizes = tuple(tuple(of.tolist()) for of in sizes[:, place])
        assert alone(single_call, grid) == (point_sizes if error is None else str(error))


def test_calls_of_several_releases_come_back_in_their_order() -> None:
    """Calls are sorted by what they share, and their answers put back."""
    calls = [
        replace(CACHED_CALL, backend=backend, backend_version=version, batch=batch)
        for batch in (1, 8)
        for backend, version in RELEASES[:4]
    ]
    sizes, errors = tile_sizes(RESOLVER, calls, np.array([[1, 17, 200]] * len(calls)))
    assert errors == [None] * len(calls)
    for place, call in enumerate(calls):
        assert tuple(tuple(of) for of in sizes[:, place]) == alone(call, [1, 17, 200])


def test_one_point_without_a_tile_refuses_its_call_alone() -> None:
    """A capability without rules, or N past a captured graph, is no answer of the others."""
    graph = replace(
        CACHED_CALL, backend="flashinfer_fa2", backend_version="0.6.13", cuda_graph=True
    )
    calls = [
        replace(graph, most=100),
        replace(graph, most=200),
        replace(CACHED_CALL, dtype="float8"),
    ]
    sizes, errors = tile_sizes(RESOLVER, calls, np.array([[1, 150]] * 3))
    assert "captured for 100" in str(errors[0])
    assert errors[1] is None
    assert "float8" in str(errors[2])
    assert sizes[:, 1].tolist() == [[128, 128], [8, 8], [0, 0]]


def test_no_calls() -> None:
    """An empty list of calls gives no answers."""
    sizes, errors = tile_sizes(RESOLVER, [], np.zeros((0, 0), np.int64))
    assert sizes.shape == (3, 0, 0)
    assert errors == []


def test_where_keys_are_split_is_what_stops_them_from_being() -> None:
    """Of the first call that splits none it is the line that sets splits for one position less."""
    call = replace(CACHED_CALL, backend="flash_attn", backend_version="2.8.3", batch=1)
    steps = RESOLVER.attention(replace(call, api="varlen", page_size=256))
    assert [steps.at(n).unsplit for n in (1, 2, 3)] == [False, True, True]
    assert tile_evidence(steps, 2).startswith("csrc/flash_attn/flash_api.cpp:317-317 (")
    assert tile_evidence(steps, 1) == steps.evidence(1)
    assert tile_evidence(steps, 3) == steps.evidence(3)
    cached = RESOLVER.attention(call)
    assert tile_evidence(cached, 2) == cached.evidence(2)
