"""ggml's kernels on NVIDIA GPUs: each number of a rule is read from the text."""

from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest
from nearfree.errors import SourceError
from nearfree.sources.backends import ggml_cuda, ggml_cuda_text
from nearfree.sources.language.reading import read_rule
from nearfree.sources.language.rule import Rule

from sources.backends.ggml_cuda_snippets import FILES, TABLE

MATRIX = {"columns": 80, "depth": 128}


def rules(files: Mapping[str, str], *names: str) -> dict[str, Rule]:
    """Return the rules of a made-up release by name, all or some."""
    return {
        reading.rule: Rule(read_rule(reading, "llama-cpp-cuda", "9.9"))
        for reading in ggml_cuda.readings(files)
        if not names or reading.rule in names
    }


@cache
def made() -> dict[str, Rule]:
    """Return the rules of the whole made-up release."""
    return rules(FILES)


def value(name: str, **known: Any) -> Any:
    """Return the answer of a rule of the made-up release."""
    return made()[name].value(known).value


def kernels(rule: str, rows: int, **known: Any) -> list[str]:
    """Return the kernels of 1 to some rows."""
    return [value(rule, rows=n, **MATRIX | known) for n in range(1, rows + 1)]


def changed(path: str, old: str, new: str) -> dict[str, str]:
    """Return the files with a text of one of them changed."""
    assert old in FILES[path]
    return {**FILES, path: FILES[path].replace(old, new)}


def test_floats_go_from_vectors_to_tiles_to_the_library() -> None:
    """Made-up numbers: up to 2 rows from Ampere on, up to 1 before; tiles up to 5 rows."""
    assert kernels("product", 6, weight="F16", cc=800) == [*["mmvf"] * 2, *["mmf"] * 3, "cublas"]
    assert kernels("product", 3, weight="F16", cc=750) == ["mmvf", "mmf", "mmf"]


def test_floats_whose_rows_no_tile_divides_have_none() -> None:
    """Made-up number: 40 outputs a tile; a depth in 64s, which two bytes an element make."""
    known = {"weight": "F16", "cc": 800}
    assert kernels("product", 3, **known, columns=90) == ["mmvf", "mmvf", "cublas"]
    assert kernels("product", 3, **known, depth=96) == ["mmvf", "mmvf", "cublas"]
    assert kernels("product", 1, **known, depth=127) == ["cublas"]


def test_blocks_go_from_vectors_to_tiles_by_type_and_capability() -> None:
    """Made-up numbers: up to 3 rows, of Q2_K on 8.9 only 1; a type without tiles has none."""
    assert kernels("product", 4, weight="Q4_0", cc=890) == [*["mmvq"] * 3, "mmq"]
    assert kernels("product", 3, weight="Q2_K", cc=890) == ["mmvq", "mmq", "mmq"]
    assert kernels("product", 3, weight="Q2_K", cc=900) == ["mmvq"] * 3
    assert kernels("product", 4, weight="IQ1_M", cc=890)[3:] == ["cublas"]


def test_experts_have_limits_of_their_own() -> None:
    """Made-up numbers: blocks up to 3 tokens, Q2_K before 8.9 up to 2; floats up to 20."""
    assert kernels("experts", 4, weight="Q4_0", cc=800) == [*["mmvq"] * 3, "mmq"]
    assert kernels("experts", 3, weight="Q2_K", cc=800) == ["mmvq", "mmvq", "mmq"]
    assert kernels("experts", 3, weight="Q2_K", cc=890) == ["mmvq"] * 3
    assert kernels("experts", 21, weight="F16", cc=890) == [*["mmf"] * 20, "sorted"]


def test_a_kernel_is_compiled_for_a_number_of_columns() -> None:
    """Made-up numbers: three columns of blocks, two of floats; experts' tokens one by one."""
    assert [value("mmvq_columns", rows=n, ids=False) for n in (1, 3, 4)] == [1, 3, 0]
    assert [value("mmvq_columns", rows=n, ids=True) for n in (1, 2, 3)] == [1, 1, 1]
    assert [value("mmvf_columns", rows=n, ids=False) for n in (1, 2, 3)] == [1, 2, 0]
    assert [value("mmf_columns", rows=n, ids=False) for n in (3, 4)] == [3, 0]
    assert value("mmf_columns", rows=9, ids=True) == 3


def test_a_table_has_widths_by_type_and_by_what_tiles_divide() -> None:
    """Made-up numbers; Blackwell's table has one type, and refers to Ampere's for others."""
    assert value("mmq_config_ampere", weight="Q4_0", fallback=False) == (
        (8, 24, 40), 256, 128, "Q8_0",
    )  # fmt: skip
    assert value("mmq_config_ampere", weight="Q4_0", fallback=True)[0] == (16,)
    assert value("mmq_config_ampere", weight="Q2_K", fallback=True) is None
    assert value("mmq_config_blackwell", weight="Q4_0", fallback=True) == "ampere"
    assert value("mmq_config_blackwell", weight="MXFP4", fallback=True) == ((8,), 512, 64, "FP4")
    assert [value("mmq_fallback", columns=n) for n in (192, 200)] == [False, True]


def test_rows_of_four_bits_take_blackwells_table() -> None:
    """Only where a capability multiplies them; the format of rows is asked for by no graph."""
    assert value("mmq_family", weight="MXFP4", cc=1200) == "blackwell"
    assert value("mmq_family", weight="Q4_0", cc=1200) == "blackwell"
    assert value("mmq_family", weight="MXFP4", cc=890) == "ampere"
    path = ggml_cuda_text.MMQ
    eight = rules(changed(path, "return GGML_PREC_Q4;", "return GGML_PREC_Q8;"), "mmq_family")
    assert eight["mmq_family"].value({"weight": "MXFP4", "cc": 1200}).value == "ampere"


def test_the_search_ends_with_one_tile_or_the_last_width() -> None:
    """Made-up numbers: in eights up to 40."""
    assert value("mmq_next", width=0, tiles=100) == 8
    assert value("mmq_next", width=32, tiles=2) == 40
    assert value("mmq_next", width=40, tiles=2) == 0
    assert value("mmq_next", width=8, tiles=1) == 0
    assert [value("mmq_tiles", rows=n, width=24) for n in (24, 25)] == [1, 2]


def test_a_tiles_bytes_are_those_of_its_parts() -> None:
    """Ids, weights with padding, and rows of 144 bytes per 128 values, padded to the threads."""
    facts = {"threads": 256, "tile_rows": 128, "layout": "Q8_0"}
    stride = 2 * 32 + 2 * 32 // (32 // 4) + 4
    assert value("mmq_shared", width=8, **facts) == 8 * 4 + 128 * stride * 4 + 2 * 1024


def test_fused_products_are_of_one_row() -> None:
    """The mechanism quotes both tests."""
    (fusion,) = ggml_cuda.mechanisms(FILES)
    assert [quote.lines for quote in fusion.quotes] == [(5, 6), (10, 11)]


def test_the_line_of_a_limit_is_on_record() -> None:
    """A number of rows is decided on the line that has it."""
    branch = made()["product"].value({**MATRIX, "weight": "Q2_K", "cc": 890, "rows": 2}).branch
    path = ggml_cuda_text.MMVQ
    line = 1 + FILES[path].split("\n").index("                return ne11 <= 1;")
    assert (path, (line, line)) in {(quote.file, quote.lines) for quote in branch.quotes}


CHANGES = {
    "another kernel": (
        ggml_cuda_text.CUDA,
        "        ggml_cuda_mul_mat_vec_q(ctx, src0, src1, nullptr, dst);",
        "        ggml_cuda_mul_mat_new(ctx, src0, src1, nullptr, dst);",
        "a kernel that is not known",
    ),
    "another test of strides": (
        ggml_cuda_text.MMF,
        "src0_nb[i] % (2*ts) != 0",
        "src0_nb[i] % (4*ts) != 0",
        "has 0 matches",
    ),
    "a case that holds other columns": (
        ggml_cuda_text.MMVQ,
        "constexpr int c_ncols_dst = 3;",
        "constexpr int c_ncols_dst = 4;",
        "cases of an unknown form",
    ),
    "tiles that differ in rows": (
        TABLE,
        "256, 1, 128,  24,",
        "256, 1, 64,  24,",
        "differ in more than width",
    ),
    "another search": (
        ggml_cuda_text.MMQ_KERNEL,
        "if (ntiles_x < ntiles_J_best) {",
        "if (ntiles_x <= ntiles_J_best) {",
        "has 0 matches",
    ),
    "another padding": (
        ggml_cuda_text.HEADER,
        "(((x) + (n) - 1) & ~((n) - 1))",
        "(((x) + (n)) & ~((n) - 1))",
        "has 0 matches",
    ),
    "another capability": (
        ggml_cuda_text.CUDA,
        "100*prop.major + 10*prop.minor",
        "100*prop.major + prop.minor",
        "has 0 matches",
    ),
    "a macro of unknown meaning": (
        ggml_cuda_text.MMQ,
        "#ifdef GGML_CUDA_FORCE_CUBLAS",
        "#ifdef GGML_CUDA_NEW_OPTION",
        "of which nothing is known",
    ),
    "no number": (
        ggml_cuda_text.MMVQ_HEADER,
        "MMVQ_MAX_BATCH_SIZE 3",
        "MMVQ_MAX_BATCH_SIZE three()",
        "is no arithmetic",
    ),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_text_of_another_form_is_refused(change: tuple[str, str, str, str]) -> None:
    """What a rule takes for granted is compared with the text."""
    path, old, new, reason = change
    with pytest.raises(SourceError, match=reason):
        ggml_cuda.readings(changed(path, old, new))


def test_a_missing_file_is_refused() -> None:
    """Each file that a rule reads must be there."""
    files = {path: text for path, text in FILES.items() if path != ggml_cuda_text.MMF}
    with pytest.raises(SourceError, match=r"there is no .*mmf\.cu"):
        ggml_cuda.readings(files)


def test_files_of_the_python_package_are_quoted_by_their_own_paths() -> None:
    """There llama.cpp is in a folder."""
    inside = {f"{ggml_cuda.VENDORED}{path}": text for path, text in FILES.items()}
    product = rules(inside, "product")["product"]
    branch = product.value({**MATRIX, "weight": "Q4_0", "cc": 890, "rows": 4}).branch
    assert all(quote.file.startswith(ggml_cuda.VENDORED) for quote in branch.quotes)
