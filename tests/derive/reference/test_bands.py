"""Bands: which error bound a question of a regime gets."""

from typing import Any

import polars as pl
import pytest
from msgspec.structs import replace
from nearfree.derive.reference.record import (
    RecordedReference,
    rows_of_bands,
)
from nearfree.derive.reference.regimes import Reference
from nearfree.log.events import RegimeBand

from derive.reference.bands import BANDS
from derive.reference.made import (
    CHIPS,
    HEADS,
    LAYER,
    ROWS,
    only_curves,
)


def with_bands(*rows: RegimeBand) -> RecordedReference:
    """Return a reference that has only these bands."""
    return RecordedReference(
        reference=Reference({}, CHIPS), events={},
        bands={(row.regime, row.module, row.formats, row.routing): row for row in rows},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("regime", "question", "band"),
    [
        ("R2", ROWS, 0.1),
        ("R0", ROWS, 0.5),
        ("R2", {**ROWS, "dtype": "float16"}, 0.1),
        ("R2", {**ROWS, "weights": "int4"}, 0.15),
        ("R2", {**LAYER, "routing": "power_law:1.2"}, 0.3),
        ("R2", {**LAYER, "routing": "skewed"}, 0.3),
        ("R2", {**LAYER, "dtype": "float8"}, 0.4),
        ("R2", {**LAYER, "dtype": "float8", "routing": "power_law:1.01"}, 0.4),
        ("R2", {**LAYER, "weights": "int4"}, 0.4),
        ("R3", LAYER, 0.2),
        ("R2", HEADS, 0.5),
    ],
)
def test_a_question_has_the_band_of_its_kind(
    regime: str, question: dict[str, Any], band: float
) -> None:
    """A question takes its own kind's band in its regime, or else one of a regime that knows less.

    If neither exists it takes the widest band of its formats, then of its module, then of all.
    """
    rows = only_curves(question).part.rows
    assert with_bands(*BANDS.bands).bands_of([regime], rows).tolist() == [band]


def test_formats_that_were_not_scored_have_the_band_of_like_rows() -> None:
    """Weights in unscored few-bit formats have the widest band of similar formats."""
    of = BANDS.bands[0]
    scored = [
        replace(of, regime="R0", module="moe_ffn", formats=formats, routing="balanced", band=band)
        for formats, band in (("bfloat16/int4", 0.2), ("bfloat16/mxfp4", 0.3), ("nvfp4", 0.7))
    ]
    known = with_bands(*scored)
    for formats, band in (({"weights": "float8"}, 0.3), ({"dtype": "float8"}, 0.7)):
        rows = only_curves({**LAYER, **formats}).part.rows
        assert known.bands_of(["R0"], rows).tolist() == [band]


def test_dense_products_in_formats_that_were_not_scored_have_the_widest_band() -> None:
    """Weights in a format that was not scored have the widest band of all, even with equal rows."""
    of = BANDS.bands[0]
    scored = [
        replace(of, regime="R0", module="gemm", formats=formats, routing="", band=band)
        for formats, band in (("bfloat16/int8", 0.1), ("bfloat16", 0.12), ("nvfp4", 0.3))
    ]
    known = with_bands(*scored)
    for weights, band in (("int8", 0.1), ("int4", 0.3), ("mxfp4", 0.3)):
        rows = only_curves({**ROWS, "weights": weights}).part.rows
        assert known.bands_of(["R0"], rows).tolist() == [band]


def test_bands_are_row_by_row() -> None:
    """Each question gets the band of its own regime; without bands the factor is 1."""
    rows = pl.concat(only_curves(question).part.rows for question in (ROWS, LAYER, ROWS))
    bands = with_bands(*BANDS.bands).bands_of(["R0", "R2", "R2"], rows)
    assert bands.tolist() == [0.5, 0.2, 0.1]
    assert with_bands().bands_of(["R3", "R3", "R3"], rows).tolist() == [1.0] * 3


def test_the_kind_of_a_question() -> None:
    """The kind of a question is its module, its formats and its routing law."""
    ffn = {**ROWS, "module": "dense_ffn", "weights": "int4"}
    rows = pl.concat(
        only_curves(question).part.rows for question in (ffn, {**LAYER, "routing": "power_law:1.2"})
    )
    assert rows_of_bands(rows) == [
        ("gemm", "bfloat16/int4", ""), ("moe_ffn", "bfloat16", "power_law"),
    ]  # fmt: skip
