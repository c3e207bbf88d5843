"""vLLM's own attention in Triton: rows of a block of queries, and whether keys are split.

One kernel serves decoding and prefill, with windows, sinks and caps. The g query heads of a
key-value head are packed, so that a block of 16 rows holds 16 // g positions.
"""

from collections.abc import Mapping

from nearfree.errors import EvidenceError
from nearfree.sources.attention import (
    AttentionQuery,
    Point,
    RuleQuery,
    Tile,
    facts,
    point_of,
    rule_answer,
)
from nearfree.sources.language.cuts import assignments, returning_names
from nearfree.sources.language.program import signature
from nearfree.sources.language.python_source import Modules
from nearfree.sources.language.reading import Mechanism, Reading
from nearfree.sources.language.rule import Rule

PACKAGE = "vllm-triton"
WANTED = r"vllm/(v1/)?attention/ops/triton_unified_attention\.py"
FUNCTION = "unified_attention"
ROWS, SPLIT = "block_m", "split_keys"
LEAVES = {
    r"q\.shape\[0\]": "(batch * positions)",
    r"q\.shape\[1\]": "heads",
    r"k\.shape\[2\]": "kv_heads",
    r"q\.shape\[2\]": "head_dim",
    r"v\.shape\[1\]": "16",
    r"max_seqlen_q": "positions",
    r"len\(seqused_k\)": "batch",
    r"triton\.next_power_of_2\((.+)\)": r"(1 << bit_length(\1 - 1))",
    r"triton\.cdiv\(max_seqlen_q, (\w+)\)": r"quotient(positions + \1 - 1, \1)",
    r"current_platform\.is_device_capability_family\((\d+)\)": r"(sm // 10 == \1 // 10)",
    # Keys of 16 bits, or of 8 bits with one scale; causal text requests; scratch that engines
    # allocate.
    r"KVQuantMode\.(\w+)": r"'\1'",
    r"kv_quant_mode": "'NONE'",
    r"isinstance\(causal, torch\.Tensor\)": "False",
    r"bool\(causal\)": "True",
    r"is_batch_invariant": "False",
    r"sinks|qq_bias|alibi_slopes|mm_prefix_range|rswa_window|rswa_prefix_lens": "None",
    r"window_size\[0\]|chunk_lookback": "-1",
    r"use_td": "False",
    r"_get_tile_size\(.+\)": "32",
    r"softmax_segm_\w+\.shape\[0\]": "1 << 30",
    r"num_par_softmax_segments|softmax_segm_(output|max|expsum)": "True",
    r"seq_threshold_3D": "blocks_of_2d",
}
WINDOWS = True
"""A window changes neither the block of queries nor the splits of keys."""
_SPLIT_BLOCKS = 128
"""Blocks, over all key-value heads, up to which keys are split: MIN_LAUNCH_GRID_SIZE_2D of
vllm/v1/attention/backends/triton_attn.py, lines 40 (0.14.0) and 58 (0.33.0). vLLM moves it to the
nearest captured batch size, which is not modelled here."""
_CONTEXTS = [
    {"heads": heads, "kv_heads": kv_heads, "head_dim": width, "sm": sm}
    for heads, kv_heads in ((16, 16), (32, 8), (64, 8), (28, 4), (40, 1))
    for width in (64, 128, 256)
    for sm in (80, 90, 100)
]


def readings(files: Mapping[str, str]) -> list[Reading]:
    """Return the readings of one release's rules; old releases have no variable for the split."""
    modules = Modules(files)
    path, function = modules.locate([FUNCTION])

    def read(rule: str, name: str, contexts: list[dict[str, int]]) -> Reading:
        cut = returning_names(function, name)
        cut.args = signature()
        program, root = modules.program_of(path, cut, LEAVES)
        return Reading(
            rule, program, root, axis="positions", contexts=contexts, interpret_whole=False,
            minimums={"positions": 1},
        )  # fmt: skip

    rules = [read(ROWS, "BLOCK_M", _CONTEXTS)]
    if assignments(function, "use_3d"):
        contexts = [
            context | {"batch": batch, "blocks_of_2d": 16}
            for context in _CONTEXTS[:2]
            for batch in (1, 16, 17)
        ]
        rules.append(read(SPLIT, "use_3d", contexts))
    return rules


def mechanisms(files: Mapping[str, str]) -> list[Mechanism]:
    """Return the links from the rules to the kernel: none is read."""
    del files
    return []


FOLLOWING_RULES: Mapping[str, tuple[str, ...]] = {}


def rule_queries(query: AttentionQuery, point: Point) -> tuple[RuleQuery, ...]:
    """Return the rules for a call, and their facts."""
    call_facts = facts(query, point) | {
        "sm": query.sm,
        "blocks_of_2d": _SPLIT_BLOCKS // query.kv_heads,
    }
    return (RuleQuery(ROWS, call_facts), RuleQuery(SPLIT, call_facts))


def tile(rules: Mapping[str, Rule], query: AttentionQuery, positions: int) -> Tile:
    """Return the tile of a call: heads of a group share a block's rows."""
    rows_query, split_query = rule_queries(query, point_of(query, positions))
    rows = rule_answer(rules, *rows_query)
    branches, path, unsplit = [rows.branch], "unified", False
    if SPLIT in rules:
        split = rule_answer(rules, *split_query)
        branches.append(split.branch)
        path, unsplit = ("split_kv", False) if split.value else ("standard", True)
    # Whole positions: the other rows of a block are unused.
    positions_per_block = rows.value // query.group
    if not positions_per_block:
        raise EvidenceError(
            f"{PACKAGE}: {query.group} heads of a group are more than a block's {rows.value} rows",
            remedy="Ask for 0.10.2 or newer, whose blocks grow with the group",
        )
    used_rows = positions_per_block * query.group
    return Tile.of(path, used_rows, query.group, positions, *branches, unsplit=unsplit)


def notes(query: AttentionQuery) -> tuple[str, ...]:
    """Return the assumptions of an answer."""
    del query
    return ("of keys in 16 bits or with one scale; splits as if each batch size were captured",)
