"""Which lines of a release's source decide where a prediction ends."""

from collections.abc import Sequence

import polars as pl

from nearfree.core.modules.attention import AttentionQuestion
from nearfree.core.modules.moe_ffn import MoeQuestion
from nearfree.derive.granularity.resolve import Resolver
from nearfree.derive.work_model.family import Family

NO_RULE = "no rule: the library picks its own tile"


def rule_places(
    family: Family, rows: pl.DataFrame, positions: Sequence[int], resolver: Resolver
) -> list[str]:
    """Return file, lines and digest of the rule at a number of positions, one a row.

    Parameters
    ----------
    rows
        Questions of the family with the facts of their platform, whose rules were found.
    positions
        N of each row: the first one past its boundary, or its last one.
    """
    if family.name == "moe_triton":
        names = MoeQuestion.__struct_fields__
        tokens = (rows["batch"] * pl.Series(list(positions))).to_list()
        asked = rows.select(names).iter_rows(named=True)
        return [
            resolver.moe(MoeQuestion(**row)).at([n]).evidence[0]
            for row, n in zip(asked, tokens, strict=True)
        ]
    if family.name == "attention_cached":
        fields = AttentionQuestion.__struct_fields__
        given = rows.with_columns(pl.col("grid").list.max().alias("most")).select(fields)
        return [
            resolver.attention(AttentionQuestion(**row)).at([n]).evidence[0]
            for row, n in zip(given.iter_rows(named=True), positions, strict=True)
        ]
    return [NO_RULE] * rows.height
