"""ggml's kernels for a product on an NVIDIA GPU, by recorded rules."""

from functools import cache
from itertools import groupby

import pytest
from derive.questions import LOG
from nearfree.errors import ConfigError, EvidenceError
from nearfree.sources.answers.ggml_cuda import TYPES, CudaProduct, CudaQuery
from nearfree.sources.answers.ggml_cuda_granularity import cuda_granularity
from nearfree.sources.extraction import Extraction
from nearfree.sources.record import recorded_extraction

VERSIONS = ("0.3.36", "3.22.1")
CAPABILITIES = (75, 80, 86, 87, 89, 90, 100, 103, 120, 121)
FLOATS = ("F32", "F16", "BF16")
WIDTHS = (8, 16, 24, 32, 40, 48, 64, 80, 96, 112, 128)
CHECKED_WIDTHS = (8, 16, 32, 64, 128)
"""Widths of tiles for matrices that tiles of weights do not divide."""
each_version = pytest.mark.parametrize("version", VERSIONS)


@cache
def recorded(version: str) -> Extraction:
    """Return a release's recorded rules."""
    extraction = recorded_extraction(LOG, "llama-cpp-cuda", version)
    assert extraction is not None
    return extraction


@cache
def product(version: str, weight: str, sm: int, columns: int = 4096, depth: int = 4096, *,
            routed: bool = False) -> CudaProduct:  # fmt: skip
    """Return the rules of one matrix."""
    query = CudaQuery(weight=weight, columns=columns, depth=depth, sm=sm, routed=routed)
    return CudaProduct(recorded(version), query)


def paths(rules: CudaProduct, most: int) -> list[tuple[str, int]]:
    """Return each kernel with the last number of rows that it takes, in order."""
    by_rows = [(rules.launch(n).path, n) for n in range(1, most + 1)]
    return [(path, [n for _, n in run][-1]) for path, run in groupby(by_rows, lambda pair: pair[0])]


def most_vectors(weight: str, sm: int) -> int:
    """Return the largest number of rows that vectors of blocks take, as written by hand."""
    tuned = {
        87: dict.fromkeys(("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"), 1),
        89: {"Q2_K": 4, "Q3_K": 6},
        120: {"Q2_K": 5, "Q3_K": 5, "Q4_K": 5, "Q5_K": 6, "Q6_K": 7},
        121: {"Q2_K": 6},
    }
    return tuned.get(sm, {}).get(weight, 8)


@each_version
@pytest.mark.parametrize("weight", [name for name in TYPES if name not in FLOATS])
def test_blocks_are_vectors_up_to_a_limit_and_tiles_above(version: str, weight: str) -> None:
    """No type that has tiles goes to cuBLAS from compute capability 7.5 on."""
    for sm in CAPABILITIES:
        limit = most_vectors(weight, sm)
        assert paths(product(version, weight, sm), 140) == [("mmvq", limit), ("mmq", 140)]


@each_version
def test_floats_are_vectors_tiles_of_up_to_16_and_cublas(version: str) -> None:
    """Tensor cores of 8.0 and newer take all three, those of 7.5 take F16 only."""
    for sm in CAPABILITIES[1:]:
        for weight, vectors in (("F16", 1), ("BF16", 1), ("F32", 3)):
            rules = product(version, weight, sm)
            assert paths(rules, 40) == [("mmvf", vectors), ("mmf", 16), ("cublas", 40)]
    assert paths(product(version, "F16", 75), 40) == [("mmvf", 3), ("mmf", 16), ("cublas", 40)]
    assert paths(product(version, "BF16", 75), 40) == [("mmvf", 8), ("cublas", 40)]
    assert paths(product(version, "F32", 75), 40) == [("mmvf", 4), ("cublas", 40)]


@each_version
def test_tiles_of_floats_need_outputs_in_32s(version: str) -> None:
    """And 128 bytes of a matrix's row."""
    assert paths(product(version, "F16", 90, columns=4090), 9) == [("mmvf", 1), ("cublas", 9)]
    assert paths(product(version, "F16", 90, depth=4096 + 32), 9) == [("mmvf", 1), ("cublas", 9)]
    assert paths(product(version, "F16", 90, depth=4096 + 64), 9) == [("mmvf", 1), ("mmf", 9)]


@each_version
@pytest.mark.parametrize(("columns", "widths"), [(4096, WIDTHS), (4000, CHECKED_WIDTHS)])
def test_a_tile_is_the_narrowest_with_the_fewest_passes(
    version: str, columns: int, widths: tuple[int, ...]
) -> None:
    """The widths depend on whether 128 rows of weights divide the matrix."""
    rules = product(version, "Q4_K", 90, columns=columns)
    for n in (*range(9, 140), 256, 257, 1000):
        launch = rules.launch(n)
        passes = min(-(-n // width) for width in widths)
        narrowest = min(width for width in widths if -(-n // width) == passes)
        assert (launch.holds, launch.passes, launch.per) == (narrowest, passes, "matrix")


@each_version
def test_shared_memory_limits_the_width(version: str) -> None:
    """A block of 7.5 may have 64 KiB: 80 columns of Q2_K at most, and 128 of Q4_K."""
    assert {product(version, "Q2_K", 75).launch(n).holds for n in (80, 81, 1000)} == {80, 48}
    assert product(version, "Q2_K", 75).launch(1000).holds == 80
    assert product(version, "Q2_K", 80).launch(128).holds == 128
    assert product(version, "Q4_K", 75).launch(128).holds == 128


@each_version
def test_vectors_hold_all_their_rows_at_once(version: str) -> None:
    """A kernel is compiled for each number of columns."""
    for weight in ("Q8_0", "F32"):
        for n in (1, 2, 3):
            launch = product(version, weight, 86).launch(n)
            assert (launch.holds, launch.passes, launch.per) == (n, 1, "matrix")


@each_version
def test_experts_are_vectors_by_token_and_tiles_by_expert(version: str) -> None:
    """Up to a limit of its own each token reads its experts, above it tokens are sorted."""
    for weight, sm, limit in (("Q4_K", 89, 8), ("Q4_K", 120, 8), ("Q2_K", 89, 8), ("Q2_K", 86, 7),
                              ("Q3_K", 80, 5), ("MXFP4", 75, 7), ("MXFP4", 90, 8)):  # fmt: skip
        rules = product(version, weight, sm, columns=1536, routed=True)
        assert paths(rules, 200) == [("mmvq", limit), ("mmq", 200)]
        assert [rules.launch(n).passes for n in (1, limit)] == [1, limit]
        assert {rules.launch(n).per for n in range(1, limit + 1)} == {"token"}
        launch = rules.launch(129)
        assert (launch.holds, launch.passes, launch.per) == (80, 2, "expert")


@each_version
def test_experts_of_floats_are_tiles_of_16_up_to_a_limit(version: str) -> None:
    """512 tokens for up to 1024 outputs, else 128; above it experts run one by one."""
    wide = product(version, "F16", 90, columns=1536, routed=True)
    assert paths(wide, 200) == [("mmf", 128), ("sorted", 200)]
    assert paths(product(version, "F16", 90, columns=1024, routed=True), 200) == [("mmf", 200)]
    assert [(wide.launch(n).holds, wide.launch(n).passes) for n in (9, 16, 17)] == [
        (9, 1), (16, 1), (16, 2),
    ]  # fmt: skip


def test_a_step_names_the_rule_of_a_kernel_or_of_a_tile() -> None:
    """Where the kernel stays, the tile's own rule decides."""
    steps = product("3.22.1", "Q4_K", 89).steps(130)
    assert [step.rows for step in steps] == [9, 17, 25, 33, 41, 49, 65, 81, 97, 113, 129]
    assert (steps[0].rule, steps[0].path) == ("product", "mmq")
    assert {step.rule for step in steps[1:]} == {"mmq_tiles"}
    assert [(step.before, step.after) for step in steps[-2:]] == [(1, 1), (1, 2)]


def test_a_librarys_call_counts_as_one_pass() -> None:
    """So that a change to it is a step, though its tiles are not read."""
    rules = product("3.22.1", "F16", 89)
    (kind,) = rules.passes(17)
    assert (kind.path, kind.serves, kind.times) == ("cublas", 17, 1)
    assert rules.launch(17).holds is None
    assert [step.rows for step in rules.steps(40)] == [2, 17]


def test_what_is_not_read_is_refused() -> None:
    """Unknown types, depths that blocks do not divide, and older GPUs."""
    with pytest.raises(ConfigError, match="type 'q9_9' are read"):
        product("3.22.1", "q9_9", 89)
    with pytest.raises(ConfigError, match="blocks of 256 elements, and the depth 100"):
        product("3.22.1", "Q4_K", 89, depth=100)
    for sm in (70, 99):
        with pytest.raises(EvidenceError, match=f"compute capability {sm} are not read"):
            product("3.22.1", "Q4_K", sm)


@each_version
def test_an_answer_has_files_lines_and_hashes(version: str) -> None:
    """A range's rules name the line that limits its rows, and the widths of its tiles."""
    query = CudaQuery(weight="Q2_K", columns=4096, depth=4096, sm=89)
    answer = cuda_granularity(recorded(version), query, 1, 20)
    assert [(i.first, i.last, i.path, i.holds) for i in answer.intervals] == [
        (1, 4, "mmvq", 4), (5, 8, "mmq", 8), (9, 16, "mmq", 16), (17, 20, "mmq", 24),
    ]  # fmt: skip
    vectors, tiles = answer.intervals[:2]
    assert vectors.rules[0].quote == tiles.rules[0].quote == "return ne11 <= 4;"
    assert vectors.rules[1].quote == "case 4: {"
    assert [rule.rule for rule in tiles.rules] == [
        "product", "mmq_config_ampere", "mmq_shared", "mmq_tiles",
    ]  # fmt: skip
    first, last = tiles.rules[1].lines or (0, 0)
    assert last - first == len(WIDTHS) - 1
    for interval in answer.intervals:
        assert all(len(rule.sha256 or "") == 64 for rule in interval.rules)
    fused, assumed = answer.notes
    assert fused == "products of gate and up are fused for one row (mechanism_fusion)"
    assert "compiled for this compute capability" in assumed
