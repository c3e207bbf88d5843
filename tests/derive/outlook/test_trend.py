"""Table `trend`: rho and the dense boundary of every GPU, with M_attn or a refusal beside it."""

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from nearfree.core.precision import ELEMENT_BYTES
from nearfree.derive.outlook.trend import (
    BATCHES,
    DTYPES,
    GROUPS,
    PAPER,
    REFERENCES,
    TREND,
    trend,
)
from nearfree.hardware.platforms import Platform

from derive.questions import answer
from derive.sheeted import ANSWERER, SHEETS, sheet_table, with_phi

DENSE = pl.col("term") == "rho s / 2 b"


def made(sheets: dict[str, Platform], *, references: bool = True) -> pl.DataFrame:
    """Return the table, checked against its schema."""
    table = sheet_table(sheets)
    references_ = REFERENCES if references else ()
    return TREND.build(trend(sheets, table, ANSWERER, references_), set(table["row_id"]))


@pytest.fixture(scope="module")
def rows() -> pl.DataFrame:
    """Return the table of all datasheets."""
    return made(SHEETS)


def test_every_gpu_has_every_row(rows: pl.DataFrame) -> None:
    """A platform has a row a term wherever its datasheet has phi of the type, and beta."""
    known = {(name, d) for name, sheet in SHEETS.items() for d in DTYPES if sheet.balance(d)}
    assert set(rows.select("platform", "dtype").rows()) == known
    terms = 2 + len(REFERENCES) * len(GROUPS)
    assert rows.height == len(known) * len(BATCHES) * terms
    assert rows["year"].null_count() == 0


@pytest.mark.slow
def test_the_dense_boundary_is_the_formula(rows: pl.DataFrame) -> None:
    """The term is rho s / 2 b, with rho = phi / beta of the datasheet."""
    for row in rows.filter(DENSE).to_dicts():
        sheet, size = SHEETS[row["platform"]], ELEMENT_BYTES[row["dtype"]]
        rho = 1000 * sheet.peak_tflops[row["dtype"]] / (sheet.bandwidth_gb_s or 0)
        assert row["balance_flop_per_byte"] == pytest.approx(rho)
        assert row["n_max"] == pytest.approx(rho * size / (2 * row["batch"]))


def test_a_term_is_a_number_or_a_refusal(rows: pl.DataFrame) -> None:
    """No row says nothing, and no row says both; a number has its rule."""
    known = rows["n_max"].is_not_null() | rows["unbounded"]
    assert (known == rows["refusal"].is_null()).all()
    assert (known == rows["rule"].is_not_null()).all()
    assert rows.filter(DENSE)["refusal"].null_count() == rows.filter(DENSE).height


def test_the_printed_tile_is_there_once_a_platform(rows: pl.DataFrame) -> None:
    """The paper prints M_attn = 64 for 16-bit types, nothing for float8 or for other makers."""
    every = rows.filter(~DENSE, reference=PAPER)
    capable = pl.col("platform").is_in([name for name, sheet in SHEETS.items() if sheet.sm])
    assert every.filter(~capable)["n_max"].null_count() == every.filter(~capable).height > 0
    paper = every.filter(capable)
    assert paper.filter(dtype="bfloat16")["n_max"].unique().to_list() == [64]
    refused = paper.filter(dtype="float8")
    assert refused["n_max"].null_count() == refused.height > 0
    assert refused["refusal"].str.contains("prints no M_attn of flash_attn_2 for float8").all()


@pytest.mark.parametrize(("backend", "version"), REFERENCES)
@pytest.mark.parametrize("group", GROUPS)
def test_releases_say_what_the_law_resolves(
    rows: pl.DataFrame, backend: str, version: str, group: int
) -> None:
    """M_attn of a release is that of principle_resolved for the same call."""
    law = answer(
        "principle_resolved", module="attention", backend=backend, backend_version=version,
        platform="b200", batch=8, context=4096, heads=32, kv_heads=32 // group, head_dim=128,
        page_size=256 if backend == "flash_attn" else None,
    )  # fmt: skip
    row = rows.row(
        by_predicate=(pl.col("platform") == "b200")
        & (pl.col("dtype") == "bfloat16")
        & (pl.col("batch") == 8)
        & (pl.col("reference") == f"{backend} {version}")
        & (pl.col("query_group") == group),
        named=True,
    )
    assert (row["n_max"], row["rule"]) == (law["n_max"], law["evidence"])


@given(st.sampled_from([name for name, sheet in SHEETS.items() if sheet.kind == "cuda"]),
       st.floats(1.0, 100.0))  # fmt: skip
@settings(deadline=None, max_examples=15)
def test_the_boundary_grows_with_phi(name: str, factor: float) -> None:
    """More phi at the same beta moves rho and the dense boundary up by the same factor."""
    before = made({name: SHEETS[name]}, references=False).filter(DENSE)
    after = made({name: with_phi(name, factor)[name]}, references=False).filter(DENSE)
    for column in ("balance_flop_per_byte", "n_max"):
        assert (after[column] >= before[column]).all()
        assert (after[column] / before[column]).to_list() == pytest.approx([factor] * after.height)


def test_a_platform_without_a_year_keeps_its_rows() -> None:
    """The year is a fact for the figure alone; without it nothing is dropped."""
    bare = {"h20": replace(SHEETS["h20"], year=None)}
    rows = made(bare, references=False)
    assert rows.height > 0 == rows["year"].count()


def test_a_platform_without_a_bandwidth_has_no_trend() -> None:
    """What has no rho has no place in a trend of rho."""
    bare = {"h20": replace(SHEETS["h20"], bandwidth_gb_s=None)}
    assert made(bare, references=False).is_empty()
