"""FlashAttention-3 in vLLM's fork: the rows of a query tile, splits, packed heads.

The fork has a special tile of one warp group for few rows. It is read at the commit that the
release pins, as its `CMakeLists.txt` builds it for vLLM. The call is vLLM's: a length per request,
and keys in pages.
"""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec.structs import replace

from nearfree.errors import EvidenceError, MovedError
from nearfree.sources.attention import (
    AttentionQuery,
    Point,
    RuleQuery,
    Tile,
    point_of,
    require_mechanism,
    rule_answer,
)
from nearfree.sources.backends import flash_attn_3 as upstream
from nearfree.sources.language.reading import Mechanism, Reading
from nearfree.sources.language.rule import Rule

if TYPE_CHECKING:
    from nearfree.sources.cpp.source import CppFiles

BUILD = "CMakeLists.txt"
WANTED = (
    rf"{BUILD}|hopper/(tile_size|heuristics|static_switch|flash_fwd_launch_template)\.h"
    r"|hopper/flash_api\.cpp"
)
WAY = "varlen_paged"
KERNEL = ("kBlockM", "Split", "PackGQA")
KERNEL_LEAVES = (
    upstream.TILE_LEAVES
    | upstream.LAUNCH_LEAVES
    | {
        "params_cu_seqlens_q": "True",
        "params_is_bf16": "True",
        "params_seqlen_q": "positions",
        "params_h": "heads",
        "params_h_k": "kv_heads",
        # Ragged lengths use no clusters, and the heads per load do not change rows.
        r"quotient\(params_seqlen_q \* .*kBlockM\)": "1",
        r"quotient\(params_h \+ params_h_k - 1, params_h_k\)": "1",
        r"opaque\('cute::is_same_v<\w+, cutlass::half_t>'\)": "False",
    }
)
WINDOWS = True
WINDOW_KERNEL = "window_kernel"
_LOCAL = {"params_is_local": "True", "params_is_causal": "False"}
WINDOW_LEAVES = _LOCAL | {name: leaf for name, leaf in KERNEL_LEAVES.items() if name not in _LOCAL}
"""The leaves of a launch with a window, if some position does not see all earlier ones."""


def readings(files: Mapping[str, str]) -> list[Reading]:
    """Return the readings of one release's rules."""
    parsed = built(files)
    extra_tensors = ("max_seqlen_q_", "max_seqlen_k_")
    return [
        reading
        for window in (False, True)
        for reading in (
            upstream.call_rule(parsed, WAY, extra_tensors, window=window),
            kernel_rule(parsed, window=window),
        )
    ]


def built(files: Mapping[str, str]) -> "CppFiles":
    """Return the C++ files as vLLM builds them, with its preprocessor definitions.

    The reader takes the branch for an undefined name, so conditions on defined names are inverted.
    Lines keep their numbers.

    Raises
    ------
    SourceError
        The build has no definitions for the extension.
    """
    from nearfree.sources.cpp.source import CppFiles

    definitions = re.search(
        r"target_compile_definitions\(\s*_vllm_fa3_C\s+PRIVATE([^)]*)\)", files[BUILD]
    )
    listed = definitions[1] if definitions else ""
    names = re.findall(r"^\s*(FLASHATTENTION_\w+)", listed, re.MULTILINE)
    if not names:
        raise MovedError(f"{BUILD} defines nothing for _vllm_fa3_C")
    condition = re.compile(rf"#if(n?)def(?= (?:{'|'.join(names)})\b)")
    return CppFiles(
        {
            path: condition.sub(lambda directive: "#ifdef" if directive[1] else "#ifndef", text)
            for path, text in files.items()
            if path != BUILD
        }
    )


def kernel_rule(files: "CppFiles", *, window: bool) -> Reading:
    """Return the reading of rows, splits and packing, from the launch down to the kernel's grid."""
    from nearfree.sources.cpp.expressions import Meaning
    from nearfree.sources.cpp.program import cpp_reading

    return cpp_reading(
        WINDOW_KERNEL if window else "kernel",
        files,
        "run_mha_fwd",
        leaves=WINDOW_LEAVES if window else KERNEL_LEAVES,
        meaning=Meaning(
            answers={"get_grid_shape": KERNEL},
            tails=frozenset({"run_mha_fwd_", "run_flash_fwd"}),
            harmless=frozenset({"prepare_varlen_num_blocks"}),
        ),
        constants={"params": "None", "stream": "None", "T_out": "None"},
        axis="d",
        contexts=[
            {"arch": 90, "num_splits": splits, "paged": True, "pagedkv_tma": tma, "pack_gqa": pack}
            | {"is_causal": causal, "positions": positions, "heads": 32, "kv_heads": 8}
            for splits, tma, pack in ((1, True, False), (1, False, True), (2, False, True))
            for causal in ((False,) if window else (False, True))
            for positions in (16, 17)
        ],
        dense=range(8, 265, 8),
    )


def mechanisms(files: Mapping[str, str]) -> list[Mechanism]:
    """Return the lines that make the tile matter to the kernel."""
    from nearfree.sources.backends.flash_attn_grid import packed_grid

    return [packed_grid(built(files))]


FOLLOWING_RULES = dict.fromkeys(("kernel", WINDOW_KERNEL), ("heads", "kv_heads"))
"""The rules whose inputs are the arguments that a call passes on."""


def rule_queries(query: AttentionQuery, point: Point) -> tuple[RuleQuery, ...]:
    """Return the call's rule and facts; for an unknown page size, also for one that fits all."""
    queries = upstream.rule_queries(replace(query, api="varlen", paged=True), point)
    if query.window is None:
        return queries
    return tuple(
        RuleQuery(f"{WAY}_window_call", {**call_facts, "window": query.window})
        for _, call_facts in queries
    )


def tile(rules: Mapping[str, Rule], query: AttentionQuery, positions: int) -> Tile:
    """Return the tile of a call; packed heads share it, so a position takes several rows."""
    if query.api == "dense":
        raise EvidenceError(
            "vLLM makes no dense call of FlashAttention-3", remedy="Ask for a varlen call"
        )
    require_mechanism(rules, "grid")
    passed, call = upstream.passed_on(rules, rule_queries(query, point_of(query, positions)))
    kernel = rule_answer(rules, WINDOW_KERNEL if passed["is_local"] else "kernel", passed)
    rows, split, packed = kernel.value
    path = ("split_kv" if split else "standard") + "+pack_gqa" * packed
    branches = (kernel.branch, call.branch)
    return Tile.of(path, rows, query.group if packed else 1, positions, *branches)


def notes(query: AttentionQuery) -> tuple[str, ...]:
    """Return the assumptions of an answer."""
    pages = query.page_size or "any number of"
    window = f"a window of {query.window}" if query.window else "no window"
    assumptions = (
        f"of vLLM's call: lengths of each request, pages of {pages} keys, {window}, 16 bits"
    )
    return (
        assumptions,
        "splits are left to the launch; vLLM's captured graphs set a number of them",
    )
