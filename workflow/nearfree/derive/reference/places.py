"""What stops a question's T(N), and where the rule behind it stands: file, lines and digest."""

from collections.abc import Sequence

import numpy as np
import polars as pl

from nearfree.core.modules.attention import AttentionQuestion
from nearfree.core.modules.moe_ffn import MoeQuestion
from nearfree.derive.granularity.resolve import Resolver
from nearfree.derive.granularity.steps import tile_evidence
from nearfree.derive.work_model.all_reduce import ALGORITHMS, SWITCHES
from nearfree.derive.work_model.collective import (
    COLLECTIVE,
    COLLECTIVE_FAMILIES,
    SWITCHED_FAMILIES,
)
from nearfree.derive.work_model.dense_rows import dense_place
from nearfree.derive.work_model.family import Family, Places
from nearfree.derive.work_model.mla import MLA_CACHED
from nearfree.derive.work_model.mla_rows import mla_places
from nearfree.derive.work_model.prepare import Prepared

_PLAIN = {
    "gemm": "compute of padded rows against the weights' traffic",
    "moe_triton": "padded expert blocks and traffic between L2 and SMs",
    "moe_library": "padded expert blocks and traffic between L2 and SMs",
    "attention_prefill": "waves of query tiles",
    "attention_cached": "padded query tiles over the cache",
    "mla_prefill": "waves of query tiles",
    "mla_cached": "tiles of heads over the latents",
    "mla_selected": "waves of positions, a tile each",
    "layer_attention": "projections, indexer and selected positions over the launches",
    "indexer_logits": "numbers over all entries",
    "indexer_select": "a pass over all numbers",
    **dict.fromkeys(("delta_net", "mamba2"), "states that are written, one for each position"),
    "decode_layer": "projections, indexer and selected positions over the launches",
    "short_conv": "rows that enter and leave a convolution",
    "stream_mixing": "residual streams that are read and written",
    **dict.fromkeys(COLLECTIVE_FAMILIES, "bytes between GPUs"),
}
_STEPS = {
    "block_m": "BLOCK_SIZE_M",
    "tile_rows": "query tile",
    "rows_per_position": "query heads packed in a tile",
    "weight_passes": "passes over the weights",
    "row_tile": "rows of a tile",
}


_UNSPLIT = "one block reads all keys of a head, which are split over SMs for "


def stop_terms(part: Prepared, rows: Places, last: Places, after: Places) -> list[str]:
    """Return what stops some rows between two places of their grids.

    Parameters
    ----------
    last, after
        The last place within the tolerance, and the one after it.
    """
    sizes = {word: part.features[name] for name, word in _STEPS.items() if name in part.features}
    if part.family.name.startswith("moe"):
        sizes = {"active experts": part.features["active"], **sizes}
    terms = [_PLAIN[part.family.name]] * len(rows)
    for word, each in reversed(sizes.items()):
        before, then = each[rows, last].astype(int), each[rows, after].astype(int)
        terms = [
            term if a == b else f"{word} {a} -> {b}"
            for term, a, b in zip(terms, before, then, strict=True)
        ]
    if "unsplit" in part.features:
        alone = part.features["unsplit"]
        changes = alone[rows, last] != alone[rows, after]
        few = np.where(part.features["n"][rows, last] > 1, "fewer positions", "one position alone")
        terms = [
            f"{_UNSPLIT}{fewer}" if each else term
            for term, each, fewer in zip(terms, changes, few.tolist(), strict=True)
        ]
    if "algorithm" in part.features:
        chosen = part.features["algorithm"].astype(int)
        terms = [
            term if a == b else f"all-reduce {ALGORITHMS[a]} -> {ALGORITHMS[b]}"
            for term, a, b in zip(terms, chosen[rows, last], chosen[rows, after], strict=True)
        ]
    return terms


NO_RULE = "no rule: the library picks its own tile"
NO_SWITCH = "no rule: the library picks its own protocol"
_LIBRARIES = {
    "float8": "FlashInfer, CUTLASS or torch",
    "float8_block": "DeepGEMM, CUTLASS, Marlin or Triton",
    "int8": "CUTLASS, Triton, Machete or Marlin",
    "int4": "Machete, Marlin or CUTLASS",
    "nvfp4": "CuteDSL, CUTLASS or Marlin",
    "mxfp4": "FlashInfer or Marlin",
}
"""What serving runs dense products by, by the weights' format; which of them depends on release and
device. It is vLLM's order: vllm/model_executor/kernels/linear/__init__.py of 0.33.0, from 446."""


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
            tile_evidence(resolver.attention(AttentionQuestion(**row)), n)
            for row, n in zip(given.iter_rows(named=True), positions, strict=True)
        ]
    if family.modules == MLA_CACHED.modules:
        return mla_places(rows, positions)
    if family.modules == COLLECTIVE:
        ruled = family.name in SWITCHED_FAMILIES
        return [SWITCHES.get(each, NO_SWITCH) if ruled else NO_SWITCH for each in rows["backend"]]
    if family.name != "gemm":
        return [NO_RULE] * rows.height
    return [
        dense_place(row, row["batch"] * n, resolver) or _no_rule(row["weights"] or row["dtype"])
        for row, n in zip(rows.iter_rows(named=True), positions, strict=True)
    ]


def _no_rule(weights: str) -> str:
    """Return what the tile of a dense product rests on: for quantised weights a hypothesis."""
    if weights not in _LIBRARIES:
        return NO_RULE
    return f"no rule: {_LIBRARIES[weights]} by release, tiles of 16 to 128 rows assumed"
