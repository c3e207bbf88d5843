"""The term that limits T(N) of a question, and the source of its rule: file, lines and digest."""

from collections.abc import Sequence

import numpy as np
import polars as pl

from nearfree.derive.granularity.query_frame import attention_questions, moe_questions
from nearfree.derive.granularity.resolve import Resolver
from nearfree.derive.granularity.steps import tile_evidence
from nearfree.derive.work_model.all_reduce import ALGORITHMS, SWITCHES
from nearfree.derive.work_model.collective import (
    COLLECTIVE,
    SWITCHED_FAMILIES,
)
from nearfree.derive.work_model.family import Family, Integers
from nearfree.derive.work_model.gemm import dense_place
from nearfree.derive.work_model.mla import MLA_CACHED, mla_places
from nearfree.derive.work_model.prepare import Prepared

_STEP_NAMES = {
    "block_m": "BLOCK_SIZE_M",
    "tile_rows": "query tile",
    "rows_per_position": "query heads packed in a tile",
    "weight_passes": "passes over the weights",
    "row_tile": "rows of a tile",
}


_UNSPLIT = "one block reads all keys of a head, which are split over SMs for "


def stop_terms(part: Prepared, rows: Integers, last: Integers, after: Integers) -> list[str]:
    """Return the terms that change between two points of the grid, one per row.

    `rows` are indices of rows, `last` and `after` into their grids: the last point within the
    tolerance, and the one after it.
    """
    sizes = {
        label: part.features[name] for name, label in _STEP_NAMES.items() if name in part.features
    }
    if part.family.name.startswith("moe"):
        sizes = {"active experts": part.features["active"], **sizes}
    terms = [part.family.limit.term] * len(rows)
    for label, size in reversed(sizes.items()):
        at_last, at_after = size[rows, last].astype(int), size[rows, after].astype(int)
        terms = [
            term if old == new else f"{label} {old} -> {new}"
            for term, old, new in zip(terms, at_last, at_after, strict=True)
        ]
    if "unsplit" in part.features:
        unsplit = part.features["unsplit"]
        changes = unsplit[rows, last] != unsplit[rows, after]
        subjects = np.where(
            part.features["n"][rows, last] > 1, "fewer positions", "one position alone"
        )
        terms = np.where(changes, np.char.add(_UNSPLIT, subjects), terms).tolist()
    if "algorithm" in part.features:
        algorithms = part.features["algorithm"].astype(int)
        terms = [
            term if old == new else f"all-reduce {ALGORITHMS[old]} -> {ALGORITHMS[new]}"
            for term, old, new in zip(
                terms, algorithms[rows, last], algorithms[rows, after], strict=True
            )
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
"""The libraries of dense products in serving, by the weights' format, in vLLM's order; release and
device decide (vllm/model_executor/kernels/linear/__init__.py of 0.33.0, from 446)."""


def rule_places(
    family: Family, rows: pl.DataFrame, positions: Sequence[int], resolver: Resolver
) -> list[str]:
    """Return the source of each row's rule: file, lines and digest.

    `rows` are questions of the family with the facts of their platform, whose rules exist;
    `positions` are N of each row: the first one past its boundary, or its last one.
    """
    if family.name == "moe_triton":
        tokens = (rows["batch"] * pl.Series(list(positions))).to_list()
        return [
            resolver.moe(question).evidence(n)
            for question, n in zip(moe_questions(rows), tokens, strict=True)
        ]
    if family.name == "attention_cached":
        return [
            tile_evidence(resolver.attention(question), n)
            for question, n in zip(attention_questions(rows), positions, strict=True)
        ]
    if family.modules == MLA_CACHED.modules:
        return mla_places(rows, positions)
    if family.modules == COLLECTIVE:
        switched = family.name in SWITCHED_FAMILIES
        return [
            SWITCHES.get(backend, NO_SWITCH) if switched else NO_SWITCH
            for backend in rows["backend"]
        ]
    if family.name != "gemm":
        return [NO_RULE] * rows.height
    return [
        dense_place(row, row["batch"] * n, resolver) or _no_rule(row["weights"] or row["dtype"])
        for row, n in zip(rows.iter_rows(named=True), positions, strict=True)
    ]


def _no_rule(weights: str) -> str:
    """Return the text of a product without a rule; quantised weights have assumed tiles."""
    if weights not in _LIBRARIES:
        return NO_RULE
    return f"no rule: {_LIBRARIES[weights]} by release, tiles of 16 to 128 rows assumed"
