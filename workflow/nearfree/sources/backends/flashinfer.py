"""FlashInfer: the query tile of its prefill kernels.

Two schedulers tile the queries. That of `fa2` packs the query heads of a key-value head and selects
its tile by the packed length. That of `fa3` (sm90) has one tile per head size and packs no heads.
"""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from nearfree.errors import EvidenceError
from nearfree.hardware.occupancy import shared_memory
from nearfree.sources.attention import (
    AttentionQuery,
    Point,
    RuleQuery,
    Tile,
    capability,
    is_absent,
    point_of,
    require_mechanism,
    rule_answer,
)
from nearfree.sources.backends.flashinfer_rules import CUDA, backend_facts, mechanisms, readings
from nearfree.sources.language.rule import Answer, Rule

__all__ = ["PACKAGE", "WANTED", "mechanisms", "notes", "readings", "tile"]

PACKAGE = "flashinfer-python"
WANTED = (
    r"(flashinfer/data/)?include/flashinfer/(utils|attention/scheduler)\.cuh"
    r"|flashinfer/(utils|prefill)\.py"
)
WINDOWS = True
"""Neither planner depends on a window."""
NO_PROMISE = 0
"""The uniform length of requests if the caller promises none, the default."""


FOLLOWING_RULES: Mapping[str, tuple[str, ...]] = {"tile": (), "sm90_tile": ()}
"""The rules that do not depend on the point, or take a length from another rule's answer."""


def rule_queries(query: AttentionQuery, point: Point) -> tuple[RuleQuery, ...]:
    """Return the rule of `fa2` for a call, and its facts; `fa3` has none that depends on it."""
    captured = query.capture_positions
    facts = {
        "qo_len": point.positions,
        "batch_size": point.batch,
        "num_qo_heads": query.heads,
        "num_kv_heads": query.kv_heads,
        "head_dim": query.head_dim,
        "enable_cuda_graph": captured is not None,
        "total_num_rows": (point.positions if captured is None else captured) * point.batch,
        "uniform_q_len": NO_PROMISE,
    }
    return () if query.backend == "fa3" else (RuleQuery("packed_length", facts),)


def tile(rules: Mapping[str, Rule], query: AttentionQuery, positions: int) -> Tile:
    """Return the tile of the queries, if all requests have the same number of positions."""
    backend_answer = _backend_answer(rules, query) if query.backend == "auto" else None
    backend = query.backend if backend_answer is None else str(backend_answer.value)
    reasons = () if backend_answer is None else (backend_answer.branch,)
    tiling = _fa3(rules, query, positions) if backend == "fa3" else _fa2(rules, query, positions)
    return replace(tiling, branches=(*tiling.branches, *reasons))


def notes(query: AttentionQuery) -> tuple[str, ...]:
    """Return the assumptions of an answer."""
    if query.backend != "auto":
        return ()
    return (f"backend=auto is answered for CUDA {'.'.join(map(str, CUDA))} or newer",)


def _backend_answer(rules: Mapping[str, Rule], query: AttentionQuery) -> Answer:
    """Return the kernel that backend="auto" selects."""
    facts = backend_facts(query.sm, head_dim_qk=query.head_dim, head_dim_vo=query.head_dim)
    answer = rule_answer(rules, "backend", facts)
    replaced = "mechanism_ragged_auto" in rules and not is_absent(rules, "ragged_auto")
    if replaced and query.api == "varlen" and not query.paged and answer.value == "fa2":
        raise EvidenceError(
            "backend=auto of the ragged wrapper may become neither fa2 nor fa3 in this release",
            remedy="Ask for the backend that runs, or for the paged wrapper",
        )
    return answer


def _fa2(rules: Mapping[str, Rule], query: AttentionQuery, positions: int) -> Tile:
    for mechanism in ("tiles", "packed_rows"):
        require_mechanism(rules, mechanism)
    captured = query.capture_positions
    if captured is not None and positions > captured:
        raise EvidenceError(
            f"a CUDA graph captured for {captured} positions does not take {positions}",
            remedy="Ask for at most as many positions as were captured",
        )
    ((name, call_facts),) = rule_queries(query, point_of(query, positions))
    length_answer = rule_answer(rules, name, call_facts)
    length, head_dim = length_answer.value
    facts = {
        "avg_packed_qo_len": length,
        "head_dim": head_dim,
        "head_dim_qk": query.head_dim,
        "kv_dtype_bytes": query.kv_bytes,
        **_device(query.sm),
    }
    tile_answer = rule_answer(rules, "tile", facts)
    path = "fa2" if captured is None else "fa2_cuda_graph"
    branches = (tile_answer.branch, length_answer.branch)
    return Tile.of(path, tile_answer.value, query.group, positions, *branches)


def _fa3(rules: Mapping[str, Rule], query: AttentionQuery, positions: int) -> Tile:
    for mechanism in ("sm90_tiles", "sm90_rows"):
        require_mechanism(rules, mechanism)
    answer = rule_answer(rules, "sm90_tile", {"head_dim": query.head_dim})
    return Tile.of("fa3", answer.value, 1, positions, answer.branch)


def _device(sm: int | None) -> dict[str, Any]:
    if sm is None:
        return {}
    facts = capability(sm)
    try:
        return facts | {"smem_per_block": shared_memory(sm).per_block}
    except EvidenceError:
        # Most tiles do not depend on it; if one does, the error names the missing fact.
        return facts
