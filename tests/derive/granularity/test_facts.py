"""Facts of platforms: a row a format, with the peak of its products."""

import polars as pl
from nearfree.core.precision import FORMATS
from nearfree.derive.granularity.facts import datasheet_facts, sheet_facts
from nearfree.derive.tables.platforms import PLATFORMS, platform_rows

from derive.curves import SHEETS


def test_a_format_has_its_peak_and_the_row_that_it_is_from() -> None:
    """Formats that multiply alike have one peak, one balance point and one row of `platforms`."""
    sheets = {"b200": SHEETS["b200"], "h100": SHEETS["h100"]}
    table = PLATFORMS.frame(platform_rows(sheets, [], "b200"))
    ids = pl.format("{}:{}", "platform", "dtype").alias("row_id")
    facts = sheet_facts(sheets, table.with_columns(ids))
    assert facts.drop("fact_id").equals(datasheet_facts(sheets))
    assert facts.height == len(sheets) * len(FORMATS)
    rows = {(row["platform"], row["dtype"]): row for row in facts.iter_rows(named=True)}
    for one, other in (("float8", "float8_block"), ("nvfp4", "mxfp4")):
        assert {**rows["b200", one], "dtype": other} == rows["b200", other]
    assert rows["b200", "nvfp4"]["fact_id"] == "b200:float4"
    assert rows["h100", "nvfp4"]["peak_tflops"] is rows["h100", "nvfp4"]["fact_id"] is None
