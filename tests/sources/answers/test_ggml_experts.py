"""Passes over experts' weights by an expert's rows, from the recorded rules of both releases."""

import pytest
from nearfree.sources.answers.ggml_experts import ExpertProduct

from sources.answers.test_ggml import BUILT, HASWELL, PREBUILT, query, recorded


def taken(version: str, rows: int, weight: str, **changes: object) -> list[tuple[object, ...]]:
    """Return way, rows per pass, rows served, passes, and reads from memory."""
    product = ExpertProduct(recorded(version), query(weight, **changes))
    return [
        (passes.path, passes.holds, passes.serves, passes.times, passes.unpacked)
        for passes in product.passes(rows)
    ]


@pytest.mark.parametrize("version", [BUILT, PREBUILT])
@pytest.mark.parametrize("rows", [1, 2, 7, 8, 40])
def test_repacked_experts_take_each_row_by_itself(version: str, rows: int) -> None:
    """Dense products have passes of 16 and 4 rows; experts have none, from 8 rows on neither."""
    assert taken(version, rows, "q4_k") == [("expert_gemv", 1, rows, rows, 1)]
    assert taken(version, rows, "q4_0", flags=HASWELL) == [("expert_gemv", 1, rows, rows, 1)]


def test_stored_experts_have_tiles_from_8_rows_on_in_the_later_text() -> None:
    """Tiles of 16 rows, windows of 256; the prebuilt release has dot products alone."""
    assert taken(BUILT, 7, "q6_k") == [("expert_vector", 1, 7, 7, 1)]
    assert taken(BUILT, 8, "q6_k") == [("expert_tiled", 16, 8, 1, 1)]
    assert taken(BUILT, 17, "q6_k") == [("expert_tiled", 16, 17, 2, 1)]
    assert taken(BUILT, 257, "q4_k", repack=False) == [("expert_tiled", 16, 257, 17, 2)]
    assert taken(PREBUILT, 17, "q6_k") == [("expert_vector", 1, 17, 17, 2)]


def test_llamafile_s_tiles_take_no_experts() -> None:
    """A dense product of Q8_0 has them from two rows on."""
    assert taken(PREBUILT, 4, "q8_0") == [("expert_vector", 1, 4, 4, 1)]


@pytest.mark.parametrize("version", [BUILT, PREBUILT])
def test_each_pass_names_the_lines_of_experts(version: str) -> None:
    """The first rule of a pass is one of experts' own."""
    for weight, rule, file in (
        ("q4_k", "expert_repack_rows", "repack.cpp"),
        ("q8_0", "expert_block", "ggml-cpu.c"),
    ):
        product = ExpertProduct(recorded(version), query(weight))
        name, branch = product.passes(3)[0].places[0]
        assert name == rule
        assert branch.quotes[-1].file.endswith(file)
