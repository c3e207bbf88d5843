"""FlashAttention-2: the rows of a query tile, and which kernel is launched.

The rule `<api>_call` gives the arguments that a call passes to the launch, `path` the kernel that
is launched, and `tile` the rows of its tile (kBlockM).
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from nearfree.errors import EvidenceError
from nearfree.hardware.occupancy import shared_memory
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
from nearfree.sources.language.rule import Rule

if TYPE_CHECKING:
    from nearfree.sources.cpp.source import CppFiles

PACKAGE = "flash-attn"
WANTED = (
    r"csrc/flash_attn/(flash_api\.cpp"
    r"|src/(flash_fwd_launch_template\.h|static_switch\.h|flash_fwd_hdim\w+\.cu))"
)
STANDARD, SPLIT = "run_mha_fwd_", "run_mha_fwd_splitkv_dispatch"
LEAVES = {
    # Half and brain floats have the same tiles: `dispatch` checks it.
    "params_is_bf16": "True",
    "params_d": "head_dim",
    "params_is_causal": "causal",
    "params_num_splits": "num_splits",
    "params_p_dropout": "keep_probability",
    r"get_compute_capability\(.*\)": "(cc_major, cc_minor)",
    r"at.*getCurrentDeviceProperties\(\)": "None",
    "dprops_major": "cc_major",
    "dprops_minor": "cc_minor",
    r"device_attribute\('cudaDevAttrMaxSharedMemoryPerMultiprocessor'\)": "smem_per_sm",
    r"device_attribute\('cudaDevAttrMaxSharedMemoryPerBlockOptin'\)": "smem_per_block",
}
NOTHING = {"params": "None", "stream": "None", "elem_type": "None"}
DEVICES = (80, 86, 90)
_OLDEST = 80
"""The lowest compute capability: each function of flash_api.cpp checks for Ampere or newer."""
DENSE = range(8, 265, 8)
PASSED = ("head_dim", "causal", "num_splits", "keep_probability", "rows", "force_split_kernel")
"""Arguments of a launch: the entries of the call rules' answers, in order."""
CALL_ANSWERS = (
    "params_d",
    "params_is_causal",
    "params_num_splits",
    "params_p_dropout",
    "quotient(params_seqlen_q, positions)",
    2,
)
"""The expressions that a call passes to `run_mha_fwd`, in that order: the last is its third
argument."""
SIZES = dict.fromkeys(("positions", "batch", "heads", "kv_heads", "head_dim", "context", "sms"), 1)
POSITIONS = [*range(1, 10), *(step + past for step in range(32, 545, 32) for past in (0, 1))]
"""Positions dense enough to detect changes of the number of splits at a source's constants."""
FUNCTIONS = {"dense": "mha_fwd", "varlen": "mha_varlen_fwd", "kvcache": "mha_fwd_kvcache"}
# A call without dropout, window, cap, ALiBi, rotation, appended keys or a chosen number of splits:
# features that a query does not contain are off.
CALL_CONSTANTS = {
    "is_causal": "causal",
    "p_dropout": "0.0",
    "softcap": "0.0",
    "window_size_left": "-1",
    "window_size_right": "-1",
    "num_splits": "0",
    "max_seqlen_q": "positions",
    "max_seqlen_k": "context",
    "return_softmax": "False",
    "zero_tensors": "False",
}
CALL_COMMON = {
    r"(block_table|page_table)_\.has_value\(\)": "paged",
    r"\w+_\.has_value\(\)": "False",
    r"get_num_sm\(.*\)|dprops_multiProcessorCount": "sms",
    r"get_compute_capability\(.*\)": "(cc_major, cc_minor)",
    r"dprops_major": "cc_major",
    r"dprops_minor": "cc_minor",
}
# A paged cache counts as one page that holds the context: the source uses only their product.
_SIZES = {
    r"sizes\[0\]": "batch",
    r"sizes\[1\]": "positions",
    r"sizes\[2\]": "heads",
    r"sizes\[3\]": "head_dim",
}
CALL_LEAVES: dict[str, dict[str, str]] = {
    "dense": {**_SIZES, r"k\.size\(1\)": "context", r"k\.size\(2\)": "kv_heads"},
    "varlen": {
        r"cu_seqlens_q\.numel\(\)": "batch + 1",
        r"sizes\[1\]": "heads",
        r"sizes\[2\]": "head_dim",
        r"k\.size\(1\)": "(context if paged else kv_heads)",
        r"k\.size\(2\)": "kv_heads",
    },
    "kvcache": {
        **_SIZES,
        r"kcache\.size\(1\)": "context",
        r"kcache\.size\(2\)": "kv_heads",
        r"block_table\.size\(1\)": "1",
    },
}


def readings(files: Mapping[str, str]) -> list[Reading]:
    """Return the readings of one release's rules."""
    from nearfree.sources.cpp.source import CppFiles

    parsed = CppFiles(files)
    return [tile_rule(parsed), path_rule(parsed), *(passed_on(parsed, api) for api in FUNCTIONS)]


def tile_rule(files: "CppFiles") -> Reading:
    """Return the reading of kBlockM, from the launch down to the kernel's traits."""
    from nearfree.sources.cpp.expressions import Meaning
    from nearfree.sources.cpp.program import cpp_reading, dispatch

    dispatcher, launches = dispatch(files, STANDARD)
    return cpp_reading(
        "tile",
        files,
        "run_mha_fwd",
        leaves=LEAVES,
        meaning=Meaning(
            sinks={"run_flash_fwd": (0, 1), "run_flash_splitkv_fwd": (0, 1)},
            tails=frozenset({STANDARD, SPLIT, *launches}),
        ),
        made={STANDARD: dispatcher},
        constants=NOTHING,
        axis="head_dim",
        contexts=[
            {"causal": causal, "num_splits": splits, "force_split_kernel": force}
            | {"keep_probability": keep}
            | device_facts(sm)
            for causal in (False, True)
            for splits, force in ((0, False), (2, False), (0, True))
            for keep in (1.0, 0.9)
            for sm in DEVICES
        ],
        dense=DENSE,
    )


def path_rule(files: "CppFiles") -> Reading:
    """Return the reading of the kernel that a launch runs."""
    from nearfree.sources.cpp.expressions import Meaning
    from nearfree.sources.cpp.program import cpp_reading

    return cpp_reading(
        "path",
        files,
        "run_mha_fwd",
        leaves=LEAVES,
        meaning=Meaning(answers={STANDARD: ("'standard'",), SPLIT: ("'split_kv'",)}),
        constants=NOTHING,
        axis="num_splits",
        contexts=[
            {"force_split_kernel": force, "causal": False, "head_dim": head_dim}
            for force in (False, True)
            for head_dim in (64, 128)
        ],
        dense=range(1, 9),
    )


def call_contexts(api: str) -> list[Mapping[str, Any]]:
    """Return the calls and devices at which a rule is compared."""
    shapes = [
        (1, 32, 32, 128, 2048, 108),
        (1, 32, 8, 128, 512, 132),
        (4, 32, 8, 64, 4096, 132),
        (8, 16, 4, 256, 512, 78),
        (2, 8, 8, 160, 128, 108),
    ]
    return [
        {"batch": b, "heads": h, "kv_heads": k, "head_dim": d, "context": length, "sms": sms}
        | {"causal": causal, "paged": paged, "cc_major": 8 if sms == 108 else 9, "cc_minor": 0}
        for b, h, k, d, length, sms in shapes
        for causal, paged in ((True, False), (False, api != "dense"))
    ]


def passed_on(files: "CppFiles", api: str) -> Reading:
    """Return the reading of the arguments that one public function passes to the launch."""
    from nearfree.sources.cpp.expressions import Meaning
    from nearfree.sources.cpp.program import cpp_reading

    return cpp_reading(
        f"{api}_call",
        files,
        FUNCTIONS[api],
        leaves=CALL_COMMON,
        own=CALL_LEAVES[api],
        meaning=Meaning(
            answers={"run_mha_fwd": CALL_ANSWERS},
            records=frozenset({"params"}),
            harmless=frozenset({"CHECK_SHAPE", "CHECK_DEVICE", "CHECK_CONTIGUOUS"}),
        ),
        constants=CALL_CONSTANTS,
        axis="positions",
        contexts=call_contexts(api),
        dense=POSITIONS,
        minimums=SIZES,
    )


def device_facts(sm: int | None) -> dict[str, Any]:
    """Return the facts of a compute capability that the source uses; None each if unknown."""
    if sm is None:
        return capability(sm) | {"smem_per_sm": None, "smem_per_block": None}
    memory = shared_memory(sm)
    return capability(sm) | {"smem_per_sm": memory.per_sm, "smem_per_block": memory.per_block}


def mechanisms(files: Mapping[str, str]) -> list[Mechanism]:
    """Return the lines that make the tile matter to the kernels."""
    from nearfree.sources.backends.flash_attn_grid import ceiling_grid, fixed_rows
    from nearfree.sources.cpp.source import CppFiles

    parsed = CppFiles(files)
    return [
        ceiling_grid(parsed, "run_flash_fwd", "grid"),
        ceiling_grid(parsed, "run_flash_splitkv_fwd", "split_grid"),
        fixed_rows(parsed, SPLIT, "run_flash_splitkv_fwd", "split_tile"),
    ]


FOLLOWING_RULES: Mapping[str, tuple[str, ...]] = {"path": (), "tile": ()}
"""The rules whose inputs are the arguments that a call passes on."""


WINDOWS = True
"""Over pages only: without pages the tile depends on the window, in a way that is not read."""


def rule_queries(query: AttentionQuery, point: Point) -> tuple[RuleQuery, ...]:
    """Return the call's rule and its facts.

    With a window, positions are not swapped with the heads of a group. Each head then counts as one
    without shared keys: csrc/flash_attn/flash_api.cpp of 2.8.3, lines 408, 592 and 1278, before
    the window's end is compared with the keys.
    """
    call_facts = facts(query, point) | device_facts(query.sm)
    if query.window is not None:
        if not query.paged:
            raise EvidenceError(
                f"{PACKAGE}: tiles of calls with a window are read of paged caches alone",
                remedy="Ask with --paged, or without --window",
            )
        call_facts["kv_heads"] = query.heads
    return (RuleQuery(f"{query.api}_call", call_facts),)


def tile(rules: Mapping[str, Rule], query: AttentionQuery, positions: int) -> Tile:
    """Return the tile of a call."""
    if query.sm is not None and query.sm < _OLDEST:
        raise EvidenceError(
            f"{PACKAGE} has no kernels for compute capability {query.sm}",
            remedy=f"Ask about a device from {_OLDEST} on, or about another backend",
        )
    ((name, call_facts),) = rule_queries(query, point_of(query, positions))
    call_answer = rule_answer(rules, name, call_facts)
    rule = rules[name].rule
    if query.paged and "paged" not in rule.inputs:
        raise EvidenceError(
            f"{rule.package} {rule.version} reads no page table in its {query.api} call",
            remedy="Ask without paged, or for a later release",
        )
    passed = {**call_facts, **dict(zip(PASSED, call_answer.value, strict=True))}
    path, rows = rule_answer(rules, "path", passed), rule_answer(rules, "tile", passed)
    kernel, rows_per_position = path.value[0], passed["rows"]
    require_mechanism(rules, "grid" if kernel == "standard" else "split_grid")
    name = f"{kernel}_swapped" if rows_per_position > 1 else kernel
    branches = (rows.branch, path.branch, call_answer.branch)
    # A call that sets a number of splits sets at least one.
    unsplit = passed["num_splits"] == 0
    return Tile.of(name, rows.value, rows_per_position, positions, *branches, unsplit=unsplit)
