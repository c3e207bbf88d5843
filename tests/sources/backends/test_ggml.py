"""ggml's products: each number of a rule is read from the text; unknown text is refused."""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import pytest
from nearfree.errors import SourceError
from nearfree.sources.backends import ggml, ggml_repack, ggml_sgemm, ggml_tiled
from nearfree.sources.backends.ggml_text import FLAGS
from nearfree.sources.extraction import Extraction
from nearfree.sources.language.reading import Reading, mechanism_rule, read_rule
from nearfree.sources.language.rule import Rule

from sources.backends.ggml_snippets import FILES, TILES

ALL = {**FILES, **TILES}
NEW, OLD, NONE = FLAGS[-1], FLAGS[-2], FLAGS[0]


def rules(files: Mapping[str, str]) -> dict[str, Rule]:
    """Return the rules of a made-up release, by name."""
    extracted = [read_rule(reading, "llama-cpp", "9.9") for reading in ggml.readings(files)]
    extracted += [
        mechanism_rule(mechanism, "llama-cpp", "9.9") for mechanism in ggml.mechanisms(files)
    ]
    return {rule.rule: Rule(rule) for rule in extracted}


@cache
def made() -> dict[str, Rule]:
    """Return the rules of the whole made-up release."""
    return rules(ALL)


def value(name: str, **known: Any) -> Any:
    """Return the answer of a rule of the made-up release."""
    return made()[name].value(known).value


def changed(path: str, old: str, new: str) -> dict[str, str]:
    """Return the files with a text of one of them changed."""
    assert old in ALL[path]
    return {**ALL, path: ALL[path].replace(old, new)}


def refused(reading: Callable[[], object], reason: str) -> None:
    """Check that a reader refuses for a reason."""
    with pytest.raises(SourceError, match=reason):
        reading()


def test_ways_are_in_the_order_of_the_text() -> None:
    """Repacked weights come first, then the ways in the order of their calls."""
    assert value("mechanism_order") == "repack, sgemm, vector"
    call = "    if (!llamafile_sgemm(params, dst)) {"
    first = "    if (ggml_compute_forward_mul_mat_tiled(params, dst)) { return; }\n"
    (order, *_) = ggml.mechanisms(changed(ggml.CPU, call, first + call))
    assert order.statement == "repack, tiled, sgemm, vector"
    assert [quote.lines for quote in order.quotes][1:] == [(50, 50), (51, 51), (52, 52)]


def test_experts_have_an_order_of_their_own() -> None:
    """Repacked experts come first, by the case of their operation, and dot products last."""
    assert value("mechanism_expert_order") == "repack, vector"
    call = "        ggml_compute_forward_mul_mat_id_one_chunk(params);"
    first = "        if (ggml_compute_forward_mul_mat_id_tiled(params)) { continue; }\n"
    order = ggml.mechanisms(changed(ggml.CPU, call, first + call))[1]
    assert order.statement == "repack, tiled, vector"
    assert [quote.file for quote in order.quotes] == [
        ggml.CPU,
        ggml_repack.PATH,
        ggml.CPU,
        ggml.CPU,
    ]
    refused(lambda: ggml.mechanisms(changed(ggml.CPU, call, "")), "no last path of dot products")
    case = "            case GGML_OP_MUL_MAT_ID:"
    refused(lambda: ggml.mechanisms(changed(ggml_repack.PATH, case, "")), "0 matches of")


def test_experts_have_rows_of_their_own() -> None:
    """Made-up numbers: 3 rows a call, 14 a block and 2 a dot product, tiles from 7 rows on."""
    assert value("expert_repack_rows") == 3
    assert value("expert_block") == (14, 2)
    known = {"weight": "Q4_K", "repacked": False, **NEW}
    assert [value("expert_tiled", rows=n, **known) for n in (6, 7)] == [False, True]
    assert not value("expert_tiled", rows=7, **{**known, "repacked": True})
    assert value("expert_tiled_window") == 72


def test_a_type_has_its_rows_and_the_type_of_activations() -> None:
    """Of conditional table entries those that x86-64 compiles count."""
    assert value("vector", weight="F32") == ("F32", 1)
    assert value("vector", weight="Q4_0") == ("Q8_0", 3)
    assert not value("vector", weight="Q8_1")
    assert value("vector_block") == 11


@pytest.mark.slow
def test_repacked_rows_are_divided_as_the_text_says() -> None:
    """Made-up numbers: groups of 5 from 7 rows on."""
    assert [value("repack_rows", rows=n) for n in (1, 6, 7, 12)] == [
        (0, 1),
        (0, 1),
        (5, 2),
        (10, 2),
    ]


def test_a_kernel_takes_groups_and_groups_of_groups() -> None:
    """Made-up numbers: three groups of five rows a pass, then one; none without AVX2."""
    name = "repack_gemm_q4_0_8x8_q8_0"
    assert value(name, rows=35, done=0, **NEW) == (3, 6, 5)
    assert value(name, rows=35, done=6, **NEW) == (1, 7, 5)
    assert value(name, rows=35, done=7, **OLD) == 0
    assert value(name, rows=35, done=0, **NONE) is None


def test_what_is_repacked_depends_on_type_columns_and_cpu() -> None:
    """Made-up number: columns in sevens; code for other processors does not count."""
    known = {"weight": "Q4_0", "columns": 14}
    assert value("repack", **known, **NEW) == "q4_0_8x8_q8_0"
    assert value("repack", **{**known, "columns": 8}, **NEW) == ""
    assert value("repack", **{**known, "weight": "F32"}, **NEW) == ""
    assert value("repack", **known, **NONE) == ""


def test_llamafile_serves_types_from_some_rows_on() -> None:
    """Made-up number: from five rows on; the CPU selects the template."""
    known = {"weight": "F32", "activation": "F32"}
    assert value("sgemm", rows=4, **known, **NEW) is False
    assert value("sgemm", rows=5, **known, **NEW) == ("tinyBLAS", 16)
    assert value("sgemm", rows=5, **known, **OLD) is False
    assert value("sgemm", rows=5, weight="Q4_0", activation="Q8_0", **NONE) == (
        "tinyBLAS_Q0_AVX",
        1,
    )
    assert value("sgemm", rows=5, weight="Q4_0", activation="F32", **NEW) is False


def test_tiles_of_floats_are_split_evenly() -> None:
    """Made-up numbers: up to three columns with many registers, up to two with few."""
    known = {"columns": 20, "depth": 32, "step": 16, "threads": 1}
    widths = [value("float_tile", rows=n, **known, **NEW)[1] for n in (2, 3, 4, 7)]
    assert widths == [2, 3, 2, 3]
    assert value("float_tile", rows=7, **known, **OLD)[1] == 2
    assert value("float_tile", rows=7, **{**known, "depth": 33}, **NEW) is False
    assert value("float_tile", rows=7, **{**known, "columns": 21}, **NEW) is False
    assert value("float_split", rows=7, tile=3) == (3, 3, 2)


def test_tiles_of_blocks_leave_a_rest() -> None:
    """Made-up numbers: three columns a tile, the rest one by one."""
    assert value("block_tile", rows=11, columns=100, **NEW) == (3, 9)
    assert value("block_tile", rows=2, columns=100, **NEW) == (1, 2)


def test_tiled_products_begin_at_some_rows() -> None:
    """Made-up numbers: five rows, microtiles of twelve, windows of 96."""
    known = {"weight": "Q4_K", "repacked": False}
    assert [value("tiled", rows=n, **known, **NEW) for n in (4, 5)] == [False, True]
    assert not value("tiled", rows=5, **{**known, "repacked": True}, **NEW)
    assert not value("tiled", rows=5, **{**known, "weight": "Q4_0"}, **NEW)
    assert not value("tiled", rows=5, **known, **NONE)
    assert (value("tiled_micro"), value("tiled_window")) == (12, 96)
    chunk = {"columns": 96, "rows": 30, "threads": 1}
    assert value("tiled_chunk", chunk=0, **chunk) == (96, 0)
    assert value("tiled_chunk", chunk=96, **chunk) == (48, 0)
    assert value("tiled_chunk", chunk=48, **chunk) == (0, 30)
    assert value("tiled_chunk", chunk=12, **chunk) == (0, 10)


def test_a_release_without_tiles_has_no_such_rules() -> None:
    """Earlier releases have no tiled products."""
    assert not ggml_tiled.tiled_rules(FILES)


def test_attention_has_a_tile_of_the_text() -> None:
    """Made-up number: 24 query rows."""
    assert [value("flash_tile", positions=n, cache="F16") for n in (23, 24)] == [0, 24]
    assert value("flash_tile", positions=24, cache="F32") == 0


def test_variants_and_features_are_listed() -> None:
    """Each library lists its features, each feature its options, needs and score."""
    assert value("mechanism_variants") == "any, old AVX, new AVX AVX2 AMX_TILE"
    assert value("mechanism_feature_AVX") == "avx; AVX; 1"
    assert value("mechanism_feature_AVX2") == "avx2 fma; AVX2 FMA; 64"


def test_files_of_the_python_package_are_quoted_where_they_are() -> None:
    """Quotes name the files by their path in the sdist."""
    vendored = {ggml.VENDORED + path: text for path, text in ALL.items()}
    by_name = rules(vendored)
    for name, rule in by_name.items():
        assert [b.value for b in rule.rule.branches] == [
            b.value for b in made()[name].rule.branches
        ]
        for branch in rule.rule.branches:
            assert {q.file for q in branch.quotes} <= vendored.keys()


def test_quotes_are_the_release_s_own_lines() -> None:
    """A branch's quote is the file's text on those lines."""
    for rule in made().values():
        for branch in rule.rule.branches:
            for quote in branch.quotes:
                first, last = quote.lines
                lines = ALL[quote.file].split("\n")[first - 1 : last]
                assert quote.text == " ".join(" ".join(lines).split())[:160]


def readings_of(files: Mapping[str, str]) -> list[Reading]:
    """Return a function that reads all rules of some files."""
    return ggml.readings(files)


ODD = [
    (ggml.CPU, "        .nrows = 1,\n    },\n    [GGML_TYPE_Q4_0]", "    },\n    [GGML_TYPE_Q4_0]",
     "does not set the rows"),
    (ggml.CPU, "#if defined(__AVX2__)\n    return 1;", "#if SOME\n    return 1;", "cpu_has_avx2"),
    (ggml.CPU, "iir1 += blck_1", "iir1 += step", "0 matches of"),
    (ggml.OPS, "if (use_tiled) {", "if (use_tiled || more) {", "0 matches of"),
    (ggml.COMMON, "GGML_FA_TILE_Q 24", "GGML_FA_TILE_Q (8 * 3)", "0 matches of"),
    (ggml_repack.PATH, "nrows - (nrows % 5), ncols", "round(nrows), ncols", "0 matches of"),
    (ggml_repack.PATH, "gemm<block_q4_0, 8, 8, ", "gemm<block_q4_0, 4, 8, ", "not run as it is"),
    (ggml_repack.X86, "y += 3", "y = next(y)", "loops of an unknown form"),
    (ggml_repack.X86, "#if defined(__AVX2__)", "#if defined(SOME)", "SOME, of which nothing"),
    (ggml_sgemm.PATH, "np = n0 + (n - n0) / nc * nc;", "np = n;", "0 matches of"),
    (ggml_sgemm.PATH, "bool llamafile_sgemm(", "bool other(", "0 definitions"),
    (ggml_sgemm.PATH, "const int64_t jj_RN =", "int jj_RN =", "0 matches of"),
    (ggml_tiled.PATH, "int64_t MICRO = 12;", "int64_t MICRO = 13;", "13 rows, .* says 12"),
    (ggml_tiled.PATH, "        case GGML_TYPE_Q4_K:\n            return tiled",
     "        case GGML_TYPE_Q5_K:\n            return tiled", "other types than it supports"),
    (ggml_repack.PATH, "src1_col, 3, src0", "src1_col, rows, src0", "0 matches of"),
    (ggml_repack.PATH, "int ir1 = 0; ir1 < nr1; ir1++", "int i = 0; i < nr1; i += 4", "0 matches"),
    (ggml.CPU, "src1_col, 0, 2)", "src1_col, 0, nrc)", "0 matches of"),
    (ggml_tiled.PATH, "k += TILED_TILE_K", "k += window", "0 matches of"),
    (ggml_tiled.PATH, "int chunk_size = 96;", "int chunk_size = most();", "0 matches of"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "old", "new", "reason"), ODD)
def test_an_unknown_form_is_refused(path: str, old: str, new: str, reason: str) -> None:
    """Text of another form is refused with what was looked for."""
    refused(lambda: readings_of(changed(path, old, new)), reason)


@pytest.mark.parametrize(
    ("path", "old", "new"),
    [
        (ggml.SCORE, "score += 1;", "score += points();"),
        (ggml.OPTIONS, "-mavx2", "/arch:AVX2"),
        (ggml.LIST, "(old              AVX)", '(old "AVX")'),
        (
            ggml.CPU,
            "    if (ggml_cpu_extra_compute_forward(params, tensor)) {",
            "    if (other()) {",
        ),
    ],
)
def test_odd_lists_are_refused(path: str, old: str, new: str) -> None:
    """Variants, options, scores and the order of ways of another form are refused."""
    refused(lambda: ggml.mechanisms(changed(path, old, new)), "ggml")


def test_a_missing_file_is_named() -> None:
    """A release without a file of rules is refused by the file's name."""
    less = {path: text for path, text in ALL.items() if path != ggml_sgemm.PATH}
    refused(lambda: ggml.readings(less), "there is no .*sgemm.cpp")


@pytest.mark.slow
@pytest.mark.parametrize(("version", "tiles"), [("0.3.36", True), ("3.22.1", False)])
def test_real_releases(
    release: Callable[[str, str], Extraction], version: str, *, tiles: bool
) -> None:
    """Both locked releases are read from their sources; only the later one has tiles."""
    by_name = release("llama-cpp", version).by_name()
    assert ("tiled" in by_name) is ("expert_tiled" in by_name) is tiles
    assert by_name["expert_repack_rows"].value({}).value == 1
    assert by_name["repack_rows"].value({"rows": 15}).value == (12, 3)
    assert by_name["vector"].value({"weight": "Q4_1"}).value == ("Q8_1", 1)
