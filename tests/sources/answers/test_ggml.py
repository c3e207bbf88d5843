"""ggml's passes over the weights of a product on a CPU."""

from functools import cache

import pytest
from derive.questions import LOG
from nearfree.errors import ConfigError, EvidenceError
from nearfree.sources.answers.ggml import TYPES, Product, ProductQuery
from nearfree.sources.answers.ggml_cpu import (
    best_variant,
    facts_of,
    known_flags,
    loaded_features,
    loaded_flags,
    with_implied,
)
from nearfree.sources.answers.ggml_granularity import product_granularity
from nearfree.sources.extraction import Extraction
from nearfree.sources.record import recorded_extraction

BUILT, PREBUILT = "0.3.36", "3.22.1"
HASWELL = with_implied({"avx2", "fma", "f16c"})
ZEN4 = with_implied({*HASWELL, "avx512bf16", "avx512vnni", "avx512dq", "avx512vl"})


IN_PANELS = frozenset(weight for weight in TYPES if weight.startswith("iq")) - {"iq4_nl"}
"""Types that the prebuilt release takes by panels."""


@cache
def recorded(version: str) -> Extraction:
    """Return a release's recorded rules."""
    extraction = recorded_extraction(LOG, "llama-cpp", version)
    assert extraction is not None
    return extraction


def query(weight: str, *, flags: frozenset[str] = ZEN4, **changes: object) -> ProductQuery:
    """Return a matrix of a small model's size."""
    facts: dict[str, object] = {"weight": weight, "columns": 1536, "depth": 576, "flags": flags}
    return ProductQuery(**facts | changes)


@cache
def product(version: str, weights: ProductQuery) -> Product:
    """Return the rules of one matrix."""
    return Product(recorded(version), weights)


def taken(version: str, rows: int, weights: ProductQuery) -> list[tuple[str, int, int, int]]:
    """Return way, rows per pass, rows served and number of each kind of pass."""
    passes = product(version, weights).passes(rows)
    return [(one_pass.path, one_pass.holds, one_pass.serves, one_pass.times) for one_pass in passes]


def repacked(rows: int) -> list[tuple[str, int, int, int]]:
    """Return the passes over repacked weights, computed independently."""
    several = rows - rows % 4 if rows > 3 else 0
    kinds = [
        ("repack_gemm", 16, several // 16 * 16, several // 16),
        ("repack_gemm", 4, several % 16, several % 16 // 4),
        ("repack_gemv", 1, rows - several, rows - several),
    ]
    return [kind for kind in kinds if kind[3]]


@pytest.mark.parametrize("version", [BUILT, PREBUILT])
@pytest.mark.parametrize("weight", ["q4_0", "q4_k", "iq4_nl"])
@pytest.mark.parametrize("flags", [HASWELL, ZEN4], ids=["haswell", "zen4"])
def test_repacked_rows_go_by_16_by_4_and_one_by_one(
    version: str, weight: str, flags: frozenset[str]
) -> None:
    """Repacked weights take 16 rows a pass, then 4, then one."""
    weights = query(weight, flags=flags)
    for rows in (*range(1, 70), 511, 512):
        assert taken(version, rows, weights) == repacked(rows)
    assert len(repacked(16)) < len(repacked(15)), "16 rows are cheaper than 15"


def test_rows_of_a_matrix_that_no_group_divides_are_not_repacked() -> None:
    """A matrix whose outputs eight does not divide is not repacked."""
    assert taken(PREBUILT, 4, query("q4_0", columns=1540))[0][0] == "sgemm"
    assert taken(PREBUILT, 4, query("q4_0", flags=frozenset({"avx"})))[0][0] == "sgemm"


def test_a_type_that_is_not_repacked_stays() -> None:
    """On x86-64 weights of 5 and 6 bits are never repacked."""
    for weight in ("q5_k", "q6_k", "q8_0", "q5_0", "bf16"):
        assert taken(BUILT, 9, query(weight)) == taken(BUILT, 9, query(weight, repack=False))


@pytest.mark.parametrize("weight", ["q2_k", "q3_k", "q4_k", "q5_k", "q6_k"])
def test_tiles_of_16_rows_from_8_on(weight: str) -> None:
    """K-quants that are not repacked take one dot product a row up to 7 rows, then microtiles."""
    weights = query(weight, repack=False)
    for rows in range(1, 8):
        assert taken(BUILT, rows, weights) == [("vector", 1, rows, rows)]
    for rows in range(8, 129):
        assert taken(BUILT, rows, weights) == [("tiled", 16, rows, -(-rows // 16))]
    steps = product(BUILT, weights).steps(40)
    assert [(s.rows, s.rule) for s in steps if s.rows > 7] == [
        (8, "tiled"),
        (17, "tiled_micro"),
        (33, "tiled_micro"),
    ]


def test_a_tile_s_rows_are_divided_where_threads_lack_work() -> None:
    """With many threads a small matrix's rows are divided, too: 17 into 9 and 8."""
    weights = query("q6_k", columns=64, threads=64)
    assert taken(BUILT, 17, weights) == [("tiled", 16, 17, 2)]
    assert taken(BUILT, 33, weights) == [("tiled", 16, 33, 3)]
    assert taken(BUILT, 300, query("q6_k")) == [("tiled", 16, 300, 20)]


def test_the_prebuilt_release_has_no_tiles() -> None:
    """Without the tiled path, K-quants that are not repacked take a dot product a row."""
    for rows in (1, 8, 33):
        assert taken(PREBUILT, rows, query("q4_k", repack=False)) == [("vector", 1, rows, rows)]


@pytest.mark.parametrize("version", [BUILT, PREBUILT])
@pytest.mark.parametrize("weight", ["q8_0", "q5_0", "q4_0", "iq4_nl"])
def test_blocks_go_by_four_columns(version: str, weight: str) -> None:
    """With 32 registers a tile holds up to four rows, and the rest has its own."""
    weights = query(weight, repack=False)
    assert taken(version, 1, weights) == [("vector", 1, 1, 1)]
    for rows in range(2, 70):
        full, left = divmod(rows, 4)
        kinds = [("sgemm", 4, full * 4, full), ("sgemm", left, left, 1)]
        assert taken(version, rows, weights) == [kind for kind in kinds if kind[2]]
    fewer = [
        sum(one_pass[3] for one_pass in taken(version, rows, weights))
        for rows in (4, 5, 8, 9, 16, 15)
    ]
    assert fewer == [1, 2, 2, 3, 4, 4]


def test_blocks_go_by_two_columns_with_fewer_registers() -> None:
    """With 16 registers a tile holds two rows."""
    weights = query("q8_0", flags=HASWELL)
    assert taken(PREBUILT, 9, weights) == [("sgemm", 2, 8, 4), ("sgemm", 1, 1, 1)]


@pytest.mark.parametrize(
    ("weight", "flags", "most"),
    [
        ("f32", ZEN4, 6),
        ("bf16", ZEN4, 6),
        ("f16", ZEN4, 6),
        ("f16", HASWELL, 3),
        ("bf16", HASWELL, 3),
    ],
)
def test_floats_go_by_even_tiles(weight: str, flags: frozenset[str], most: int) -> None:
    """Rows are divided into the fewest tiles of up to six or three, equal within one."""
    weights = query(weight, flags=flags)
    assert taken(PREBUILT, 1, weights) == [("vector", 1, 1, 1)]
    for rows in range(2, 70):
        passes = taken(PREBUILT, rows, weights)
        tiles = sum(times for *_, times in passes)
        assert tiles == -(-rows // most)
        assert sum(serves for _, _, serves, _ in passes) == rows
        sizes = [holds for _, holds, _, _ in passes]
        assert max(sizes) - min(sizes) <= 1


def test_floats_of_an_odd_depth_take_a_dot_product() -> None:
    """A depth that vectors do not divide, or an odd number of outputs, takes dot products."""
    for changes in ({"depth": 580}, {"columns": 1537}):
        assert taken(PREBUILT, 8, query("bf16", **changes)) == [("vector", 1, 8, 8)]


@pytest.mark.parametrize("weight", ["q4_1", "q5_1"])
def test_types_that_nobody_serves_take_a_dot_product(weight: str) -> None:
    """Weights with a minimum per block go row by row in both releases."""
    for version in (BUILT, PREBUILT):
        assert taken(version, 33, query(weight)) == [("vector", 1, 33, 33)]


def test_without_vectors_all_go_one_by_one() -> None:
    """A library for any x86-64 goes row by row."""
    plain: frozenset[str] = frozenset()
    for version, weights in ((BUILT, TYPES), (PREBUILT, TYPES.keys() - IN_PANELS)):
        for weight in weights:
            assert taken(version, 9, query(weight, flags=plain)) == [("vector", 1, 9, 9)]


def test_steps_are_the_rows_at_which_passes_change() -> None:
    """The steps are exactly the rows at which kind or number of passes changes, with their rule."""
    steps = product(PREBUILT, query("q8_0")).steps(9)
    assert [(s.rows, s.rule, s.before, s.after) for s in steps[:1]] == [(2, "sgemm", 1, 1)]
    assert [s.rows for s in steps if s.after > s.before] == [5, 9]
    above = product(BUILT, query("q4_k")).steps(20)
    assert [(s.rows, s.rule) for s in above if s.rows in {4, 16}] == [
        (4, "repack_rows"),
        (16, "repack_gemm_q4_K_8x8_q8_K"),
    ]


@pytest.mark.parametrize("version", [BUILT, PREBUILT])
def test_each_pass_names_the_line_that_says_so(version: str) -> None:
    """Each rule of an answer has a file, lines, and the fetched file's hash."""
    hashes = {m.path: m.sha256 for f in recorded(version).fetched for m in f.members}
    for weight in TYPES if version == BUILT else TYPES.keys() - IN_PANELS:
        for rows in (1, 5, 17):
            for one_pass in product(version, query(weight)).passes(rows):
                assert one_pass.places
                for _, branch in one_pass.places:
                    assert branch.quotes
                    assert all(quote.file in hashes for quote in branch.quotes)
    answer = product_granularity(recorded(version), query("q8_0"), 1, 9)
    located = answer.intervals[4].passes[0].rules[0]
    assert located.rule == "block_tile"
    assert located.sha256 == hashes[located.file]
    assert located.quote == "nc = 4;"


def test_intervals_cover_the_rows() -> None:
    """Rows with equal passes are one interval; each after the first names its step."""
    answer = product_granularity(recorded(BUILT), query("q6_k"), 5, 40)
    spans = [(interval.first, interval.last, interval.step) for interval in answer.intervals]
    assert spans[-3:] == [(8, 16, "tiled"), (17, 32, "tiled_micro"), (33, 40, "tiled_micro")]
    assert spans[0] == (5, 5, "vector")


@pytest.mark.parametrize("weight", ["q4_k_m", "tq1_0", "nvfp4", "", "Q4"])
def test_another_type_is_refused_by_name(weight: str) -> None:
    """A type without rules is refused, and the known ones are listed."""
    with pytest.raises(ConfigError, match=f"'{weight}'.*q4_k"):
        product(PREBUILT, query(weight))


@pytest.mark.parametrize("weight", sorted(IN_PANELS))
def test_types_in_panels_are_refused_where_they_are_and_read_elsewhere(weight: str) -> None:
    """The refusal names a release that takes them by tiles."""
    with pytest.raises(EvidenceError, match=f"{weight.upper()} by panels.*0.3.36"):
        product(PREBUILT, query(weight)).passes(2)
    assert taken(BUILT, 17, query(weight)) == [("tiled", 16, 17, 2)]


def test_kernels_that_are_not_read_are_refused() -> None:
    """A CPU with matrix instructions is refused for repacked weights."""
    amx = frozenset({*ZEN4, "amxint8"})
    with pytest.raises(EvidenceError, match="amxint8 that are not read"):
        product(PREBUILT, query("q4_0", flags=amx))
    assert taken(PREBUILT, 4, query("q4_0", flags=amx, repack=False))[0][0] == "sgemm"


OLD = ("sse4_2", "avx", "f16c", "fma", "avx2", "bmi2")
WIDE = (*OLD, "avx512f", "avx512cd", "avx512vl", "avx512dq", "avx512bw")


@pytest.mark.parametrize(
    ("has", "name"),
    [
        (OLD, "haswell"),
        (WIDE, "skylakex"),
        ((*WIDE, "avx512vbmi", "avx512_vnni", "avx512_bf16"), "zen4"),
        ((*OLD, "avx_vnni"), "alderlake"),
        (OLD[:2], "sandybridge"),
        ((), "x64"),
    ],
)
def test_the_variant_of_the_highest_score_is_loaded(has: tuple[str, ...], name: str) -> None:
    """Of the libraries that the machine can run, the one with the highest score is loaded."""
    variant = best_variant(recorded(PREBUILT).by_name(), has)
    assert variant.name == name
    assert facts_of(variant.flags)["avx512f"] == ("avx512f" in has)
    assert all(branch.quotes for _, branch in variant.branches)


def test_flags_are_those_that_rules_ask_for() -> None:
    """Flags are accepted in any spelling; one that no rule uses is refused by name."""
    assert known_flags("AVX2, avx512_bf16,f16c") == {"avx2", "avx512bf16", "f16c"}
    with pytest.raises(ConfigError, match=r"'neon'.*avx512f"):
        known_flags("avx2,neon")


def test_attention_has_tiles_from_64_query_rows_on() -> None:
    """Fewer than 64 query rows, or a quantised cache, go one by one."""
    for version in (BUILT, PREBUILT):
        rule = recorded(version).by_name()["flash_tile"]
        calls = [{"positions": n, "cache": "F16"} for n in (1, 63, 64, 65)]
        assert [rule.value(call).value for call in calls] == [0, 0, 64, 64]
        assert rule.value({"positions": 64, "cache": "Q8_0"}).value == 0


def test_a_loaded_library_tells_what_it_is_compiled_for() -> None:
    """The report of zen4's library gives exactly the flags of that variant."""
    system_info = (
        "CPU : SSE3 = 1 | SSSE3 = 1 | AVX = 1 | AVX2 = 1 | F16C = 1 | FMA = 1 | BMI2 = 1 | "
        "AVX512 = 1 | AVX512_VBMI = 1 | AVX512_VNNI = 1 | AVX512_BF16 = 1 | AMX_INT8 = 0 | "
        "LLAMAFILE = 1 | REPACK = 1 |"
    )
    assert loaded_features(system_info)[-2:] == ["LLAMAFILE", "REPACK"]
    rules = recorded(PREBUILT).by_name()
    machine = loaded_flags(rules, system_info)
    variant = best_variant(rules, {*machine, "sse42", "bmi2", "avx512vbmi", "avx512cd"})
    assert variant.name == "zen4"
    assert facts_of(machine) == facts_of(variant.flags)
    assert facts_of(loaded_flags({}, "AVX2 = 1 | AVX512F = 0")) == facts_of({"avx2"})
