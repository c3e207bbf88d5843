"""FlashAttention-3, as xformers carries it: the rows of a query tile, splits and packed heads.

The rule `<way>_call` gives the arguments that a call passes to the launch. `launch` and `tile` give
the launch's result: whether keys are split, whether the heads of a group share a tile, and the rows
of a tile (kBlockM).
"""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from nearfree.errors import EvidenceError
from nearfree.sources.attention import (
    AttentionQuery,
    Point,
    RuleQuery,
    Tile,
    capability,
    facts,
    point_of,
    require_mechanism,
    rule_answer,
)
from nearfree.sources.language.reading import Mechanism, Reading
from nearfree.sources.language.rule import Answer, Rule

if TYPE_CHECKING:
    from nearfree.sources.cpp.source import CppFiles

PACKAGE = "xformers"
WANTED = (
    r"third_party/flash-attention/hopper/"
    r"(tile_size|heuristics|static_switch|flash_fwd_launch_template)\.h"
    r"|third_party/flash-attention/hopper/flash_api\.cpp"
)
PASSED = {
    "arch": "params_arch",
    "d": "params_d",
    "dv": "params_dv",
    "is_causal": "params_is_causal",
    "is_local": "params_is_local",
    "num_splits": "params_num_splits",
    "paged": "bool(params_page_table)",
    "pagedkv_tma": "params_pagedkv_tma",
    "pack_gqa": "params_pack_gqa",
    "varlen": "bool(params_cu_seqlens_q or params_cu_seqlens_k or params_seqused_k)",
}
"""Arguments of a launch, and the fields that hold them."""
# A call without window, chunks, cap, rotation, appended keys, left padding, other value
# dimensions, or a chosen number of splits or packing.
CALL = {
    "is_causal": "causal",
    "window_size_left": "-1",
    "window_size_right": "-1",
    "attention_chunk": "0",
    "softcap": "0.0",
    "num_splits": "0",
    "sm_margin": "0",
}
WINDOWED = {"window_size_left": "window - 1", "window_size_right": "0"}
CALL_OWN = {
    r"\w+_\.has_value\(\)": "False",
    r"(opaque\(')?\w+(\.value\(\))?\.(mutable_)?data_ptr(<int>)?\(\)('\))?": "True",
    r"cu_seqlens_[qk]\.size\(0\)": "batch + 1",
    r"sizes\[0\]": "batch",
    r"sizes\[1\]|max_seqlen_q_\.value\(\)": "positions",
    r"max_seqlen_k_\.value\(\)": "context",
    r"q\.size\(-2\)": "heads",
    r"[qv]\.size\(-1\)": "head_dim",
    r"k\.size\(-2\)": "kv_heads",
    r"k\.size\(0\)": "(batch * context)",
    r"page_table\.size\(0\)": "batch",
    r"page_table\.size\(1\)": "quotient(context + tokens_per_page - 1, tokens_per_page)",
}
_DEVICE = r"opaque\('(?:at::cuda::getCurrentDeviceProperties|get_device_prop)\(\)"
CALL_LEAVES = {
    # Half precision, which is neither of the types that the source tests by name.
    r"q\.(dtype|scalar_type)\(\)": "'half'",
    r"opaque\('((?:at|torch|ScalarType)::[\w:]+)'\)": r"'\1'",
    rf"{_DEVICE}->major'\)": "cc_major",
    rf"{_DEVICE}->minor'\)": "cc_minor",
    rf"{_DEVICE}->multiProcessorCount'\)": "sms",
}
KERNEL = ("Arch", "Split", "PagedKVNonTMA", "PackGQA")
"""Template parameters that a launch fixes for the kernel, by their names in the source."""
LAUNCH_LEAVES = {f"params_{name}": name for name in ("arch", "num_splits")} | {
    "params_page_table": "paged",
    "params_pagedkv_tma": "pagedkv_tma",
    "params_pack_gqa": "pack_gqa",
    "params_softcap": "0.0",
}
TILE_LEAVES = {
    "params_dv?": "d",
    "params_is_causal": "is_causal",
    "params_cu_seqlens_q": "varlen",
    "params_(cu_seqlens_k|seqused_q|seqused_k|leftpad_k|qv_ptr|knew_ptr)": "False",
    "params_is_(e4m3|bf16|local)": "False",
    "params_v_dim_stride": "1",
    # Whether blocks share a cluster must not change the tile, so it is an input.
    r"quotient\(params_seqlen_q \* .*kBlockM\)": "blocks",
    r"sizeof\(.*\)": "2",
    r"opaque\('cute::is_same_v<\w+, cutlass::float_e\dm\d_t>'\)": "False",
}
SIZES = dict.fromkeys(
    ("positions", "batch", "heads", "kv_heads", "head_dim", "context", "sms", "tokens_per_page"), 1
)
DENSE = [*range(1, 10), *(step + past for step in range(16, 545, 16) for past in (0, 1))]
CALL_TENSORS = {
    "dense": (),
    "kvcache": ("seqused_k_",),
    "kvcache_paged": ("seqused_k_", "page_table_"),
    "varlen": ("cu_seqlens_q_", "cu_seqlens_k_"),
    "varlen_paged": ("cu_seqlens_q_", "seqused_k_", "page_table_"),
}
"""Optional tensors of each call; a cache comes with the used length of each request."""
ANY_BLOCK = math.lcm(*range(1, 33)) * 8
"""A page size that every block of keys divides, to test whether the page size matters."""


def readings(files: Mapping[str, str]) -> list[Reading]:
    """Return the readings of one release's rules."""
    from nearfree.sources.cpp.source import CppFiles

    parsed = CppFiles(files)
    for name in ("tile_size_fwd_sm90", "tile_size_fwd_sm8x", "num_splits_heuristic"):
        parsed.locate(name)
    calls = [call_rule(parsed, way) for way in CALL_TENSORS]
    return [*calls, launch_rule(parsed), tile_rule(parsed)]


def call_rule(
    files: "CppFiles", way: str, also: tuple[str, ...] = (), *, window: bool = False
) -> Reading:
    """Return the reading of the arguments that one kind of call passes on, with splits and packing.

    Parameters
    ----------
    way
        The kind of call, a key of `CALL_TENSORS`.
    also
        Further optional tensors of the call.
    window
        Whether a position sees only the last `window` positions, itself included.
    """
    from nearfree.sources.cpp.expressions import Meaning
    from nearfree.sources.cpp.program import cpp_reading

    page = "tokens_per_page" if "page_table_" in CALL_TENSORS[way] else "context"
    tensors = {rf"{name}\.has_value\(\)": "True" for name in (*CALL_TENSORS[way], *also)}
    return cpp_reading(
        f"{way}_window_call" if window else f"{way}_call",
        files,
        "mha_fwd",
        leaves=CALL_LEAVES,
        own=tensors | {r"k\.size\(1\)": page} | CALL_OWN,
        meaning=Meaning(
            answers={"run_mha_fwd": tuple(PASSED.values())},
            records=frozenset({"params"}),
            harmless=frozenset({"CHECK_SHAPE", "CHECK_DEVICE", "CHECK_CONTIGUOUS"}),
        ),
        constants=CALL | (WINDOWED if window else {}) | files.numbers,
        axis="positions",
        contexts=[
            {**context, **windows}
            for context in contexts(way)
            for windows in ([{"window": 128}, {"window": 1024}] if window else [{}])
        ],
        dense=DENSE,
        minimums=SIZES | ({"window": 1} if window else {}),
    )


def contexts(way: str) -> list[Mapping[str, Any]]:
    """Return the calls and devices at which the rule of one kind of call is compared."""
    shapes = [
        (1, 32, 32, 128, 1024, 132, 90, 16),
        (4, 32, 8, 64, 1024, 78, 90, 16),
        (1, 32, 8, 128, 1024, 132, 90, 128),
        (2, 16, 4, 256, 512, 108, 80, 128),
    ]
    paged = "page_table_" in CALL_TENSORS[way]
    return [
        {"batch": b, "heads": h, "kv_heads": k, "head_dim": d, "context": length, "sms": sms}
        | capability(sm)
        | {"tokens_per_page": page, "causal": h == k or paged}
        for b, h, k, d, length, sms, sm, page in (shapes[1:3] if paged else shapes)
    ]


def launch_rule(files: "CppFiles") -> Reading:
    """Return the reading of the kernel that a launch runs: split, packed, and its architecture."""
    from nearfree.sources.cpp.expressions import Meaning
    from nearfree.sources.cpp.program import cpp_reading

    return cpp_reading(
        "launch",
        files,
        "run_mha_fwd",
        leaves=LAUNCH_LEAVES,
        meaning=Meaning(answers={"run_mha_fwd_constexpr": tuple(KERNEL)}),
        constants={"params": "None", "stream": "None"},
        axis="arch",
        contexts=[
            {"num_splits": splits, "paged": paged, "pagedkv_tma": tma, "pack_gqa": pack}
            for splits in (1, 2)
            for paged, tma in ((False, False), (True, False), (True, True))
            for pack in (False, True)
        ],
        dense=range(75, 125),
    )


def tile_rule(files: "CppFiles") -> Reading:
    """Return the reading of the rows of a tile, from the kernel's selection down to its grid."""
    from nearfree.sources.cpp.expressions import Meaning
    from nearfree.sources.cpp.program import cpp_reading

    return cpp_reading(
        "tile",
        files,
        "run_mha_fwd_constexpr",
        leaves=TILE_LEAVES,
        meaning=Meaning(
            answers={"get_grid_shape": ("kBlockM",)},
            tails=frozenset({"run_mha_fwd_", "run_flash_fwd"}),
            harmless=frozenset({"prepare_varlen_num_blocks"}),
        ),
        constants={"params": "None", "stream": "None", "T_out": "None", "Has_softcap": "False"},
        axis="d",
        contexts=[
            {"Arch": arch, "Split": split, "PackGQA": True, "PagedKVNonTMA": paged}
            | {"is_causal": causal, "varlen": varlen, "blocks": blocks}
            for arch in (80, 86, 90)
            for split, paged in ((False, False), (True, False), (True, True))
            for causal, varlen, blocks in ((False, False, 2), (True, True, 1))
        ],
        dense=range(8, 265, 8),
    )


def mechanisms(files: Mapping[str, str]) -> list[Mechanism]:
    """Return the lines that make the tile matter to the kernel."""
    from nearfree.sources.backends.flash_attn_grid import packed_grid
    from nearfree.sources.cpp.source import CppFiles

    return [packed_grid(CppFiles(files))]


FOLLOWING_RULES: Mapping[str, tuple[str, ...]] = {"launch": (), "tile": ()}
"""The rules whose inputs are the arguments that a call passes on."""


def rule_queries(query: AttentionQuery, point: Point) -> tuple[RuleQuery, ...]:
    """Return the call's rule and facts; for an unknown page size, also for one that fits all."""
    name = f"{query.api}_paged_call" if query.paged else f"{query.api}_call"
    call_facts = facts(query, point) | capability(query.sm)
    sizes = (query.page_size,) if query.page_size else (1, ANY_BLOCK)
    return tuple(RuleQuery(name, call_facts | {"tokens_per_page": size}) for size in sizes)


def tile(rules: Mapping[str, Rule], query: AttentionQuery, positions: int) -> Tile:
    """Return the tile of a call; packed heads share it, so a position takes several rows."""
    way = f"{query.api}_paged" if query.paged else query.api
    if way not in CALL_TENSORS:
        raise EvidenceError(
            f"{PACKAGE}: a {query.api} call has no paged cache", remedy="Ask for another call"
        )
    require_mechanism(rules, "grid")
    passed, call = passed_on(rules, rule_queries(query, point_of(query, positions)))
    launch = rule_answer(rules, "launch", passed)
    kernel = dict(zip(KERNEL, launch.value, strict=True))
    one_block, two_blocks = (
        rule_answer(rules, "tile", passed | kernel | {"blocks": n}) for n in (1, 2)
    )
    if one_block.value != two_blocks.value:
        raise EvidenceError(
            f"{PACKAGE}: the tile depends on the number of blocks in a cluster",
            remedy="Report this: the rule does not apply",
        )
    packed, branches = kernel["PackGQA"], (one_block.branch, launch.branch, call.branch)
    path = ("split_kv" if kernel["Split"] else "standard") + "+pack_gqa" * packed
    return Tile.of(path, one_block.value[0], query.group if packed else 1, positions, *branches)


def passed_on(
    rules: Mapping[str, Rule], queries: tuple[RuleQuery, ...]
) -> tuple[dict[str, Any], Answer]:
    """Return the facts of a call with the arguments that it passes on, and the rule's answer.

    Raises
    ------
    EvidenceError
        A fact is missing, such as the page size if the tile depends on it.
    """
    query, *any_block_queries = queries
    passed, call = _passed(rules, query)
    if any(
        _passed(rules, any_block_query)[0]["pagedkv_tma"] for any_block_query in any_block_queries
    ):
        raise EvidenceError(
            f"{rules[query.name].rule.package}: at {passed['positions']} positions the tile depends"
            " on the cache's page size",
            remedy="Name it with --page-size",
        )
    return passed, call


def _passed(rules: Mapping[str, Rule], rule_query: RuleQuery) -> tuple[dict[str, Any], Answer]:
    call = rule_answer(rules, rule_query.name, rule_query.facts)
    return {**rule_query.facts, **dict(zip(PASSED, call.value, strict=True))}, call
