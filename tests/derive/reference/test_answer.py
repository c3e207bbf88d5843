"""The hypothesis that an answer of the work model names where no rule is read."""

import polars as pl
import pytest
from nearfree.derive.reference.places import NO_RULE, rule_places
from nearfree.derive.work_model.gemm import GEMM

from derive.questions import RESOLVER


@pytest.mark.parametrize(
    ("dtype", "weights", "message"),
    [
        ("bfloat16", None, NO_RULE),
        ("float8_block", None, "DeepGEMM, CUTLASS, Marlin or Triton by release"),
        ("bfloat16", "int4", "Machete, Marlin or CUTLASS by release"),
    ],
)
def test_a_quantised_product_names_its_kernels_and_their_hypothesis(
    dtype: str, weights: str | None, message: str
) -> None:
    """In 16 bits a library picks the tile; in fewer bits kernels are known, tiles assumed."""
    columns = {"backend": ["torch"], "batch": [1], "dtype": [dtype], "weights": [weights]}
    rows = pl.DataFrame(columns, schema_overrides={"weights": str})
    (place,) = rule_places(GEMM, rows, [1], RESOLVER)
    assert message in place
    assert ("tiles of 16 to 128 rows assumed" in place) == (message != NO_RULE)
