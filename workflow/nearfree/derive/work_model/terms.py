"""What stops a prediction between two N, in words: a step of a rule, or what grows without one."""

from collections.abc import Sequence

import numpy as np
import polars as pl

from nearfree.core.modules.attention import AttentionQuestion
from nearfree.core.modules.moe_ffn import MoeQuestion
from nearfree.derive.granularity.resolve import Resolver
from nearfree.derive.work_model.family import Array, Family, Places
from nearfree.derive.work_model.prepare import Prepared

_PLAIN = {
    "gemm": "compute of padded rows against the weights' traffic",
    "moe_triton": "padded expert blocks and traffic between L2 and SMs",
    "moe_library": "padded expert blocks and traffic between L2 and SMs",
    "attention_prefill": "waves of query tiles",
    "attention_cached": "padded query tiles over the cache",
}
_STEPS = {
    "block_m": "BLOCK_SIZE_M",
    "tile_rows": "query tile",
    "rows_per_position": "query heads packed in a tile",
}


def stop_terms(part: Prepared, rows: Places, last: Places, after: Places) -> list[str]:
    """Return what stops some rows between two places of their grids.

    Parameters
    ----------
    part
        Questions of one family.
    rows
        Which of them.
    last, after
        The last place within the tolerance, and the one after it.
    """
    sizes = {word: part.features[name] for name, word in _STEPS.items() if name in part.features}
    if part.family.name.startswith("moe"):
        sizes = {"active experts": _active_experts(part), **sizes}
    terms = [_PLAIN[part.family.name]] * len(rows)
    for word, each in reversed(sizes.items()):
        before, then = each[rows, last].astype(int), each[rows, after].astype(int)
        terms = [
            term if a == b else f"{word} {a} -> {b}"
            for term, a, b in zip(terms, before, then, strict=True)
        ]
    return terms


def _active_experts(part: Prepared) -> Array:
    """Return how many experts have a token, [rows, grid]; each more has weights to be read."""
    features = part.features
    pairs = features["tokens"] * features["top_k"]
    balanced = np.minimum(features["experts"], pairs)
    return np.asarray(np.where(features["skewed"] > 0, features["top_k"], balanced))


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
            resolver.moe(MoeQuestion(**row)).evidence(n)
            for row, n in zip(asked, tokens, strict=True)
        ]
    if family.name == "attention_cached":
        fields = AttentionQuestion.__struct_fields__
        given = rows.with_columns(pl.col("grid").list.max().alias("most")).select(fields)
        return [
            resolver.attention(AttentionQuestion(**row)).evidence(n)
            for row, n in zip(given.iter_rows(named=True), positions, strict=True)
        ]
    return [NO_RULE] * rows.height
