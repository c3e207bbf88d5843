"""FlashAttention 4: rows of a block, for each family of capabilities.

A block is `q_stage` tiles of `tile_m` rows. With packed heads, a position takes one row per query
head of its key-value head.
"""

import ast
import re
from collections.abc import Mapping

from nearfree.errors import EvidenceError
from nearfree.sources.attention import (
    AttentionQuery,
    Point,
    RuleQuery,
    Tile,
    point_of,
    require_mechanism,
    rule_answer,
)
from nearfree.sources.backends.flash_attn_4_rules import FAMILIES, call_facts, readings
from nearfree.sources.language.functions import nodes_of
from nearfree.sources.language.program import quote
from nearfree.sources.language.python_source import Modules
from nearfree.sources.language.reading import Mechanism
from nearfree.sources.language.rule import Rule

ROWS = r"(cute\.size\(mQ\.shape\[0\]\)|mQ\.shape\[0\]|\w*seqlen_q\w*)"
TILES = rf"cute\.ceil_div\({ROWS}, self\.tile_m\)"
PACKED = (
    r"shape_Q_packed = \(\(self\.qhead_per_kvhead, mQ\.shape\[0\]\), .*"
    r"|mQ = pack_gqa_layout\(mQ, self\.qhead_per_kvhead.*"
)
LINKS = (
    ("tiles_sm80", "a request takes ceil(rows / tile) blocks", TILES),
    ("tiles_sm90", "a request takes ceil(rows / tile) blocks", TILES),
    (
        "tiles_sm100",
        "a request takes ceil(rows / block) blocks",
        rf"cute\.ceil_div\({ROWS}, (self\.cta_tiler\[0\]|_num_block_divisor)\)",
    ),
    (
        "stages_sm100",
        "a block is q_stage tiles",
        r"self\.cta_tiler = \(self\.q_stage \* (m_block_size|self\.m_block_size), .*\)",
    ),
    *(
        (f"packed_{kernel}", "a position takes a row for each query head of its group", PACKED)
        for kernel in ("sm80", "sm90", "sm100")
    ),
)
KERNELS = {
    "FlashAttentionForwardSm80": "sm80",
    "FlashAttentionForwardSm90": "sm90",
    "FlashAttentionForwardSm100": "sm100",
    "FlashAttentionForwardSm120": "sm80",
}
"""The family whose class has each kernel's tiling code; the class for 120 derives from 80's."""


def mechanisms(files: Mapping[str, str]) -> list[Mechanism]:
    """Return the links from the rules to the kernels, with their lines."""
    modules = Modules({path: text for path, text in files.items() if "flash_fwd" in path})
    texts = {kernel: _texts(modules, kernel) for kernel in ("sm80", "sm90", "sm100")}
    found = []
    for name, says, pattern in LINKS:
        nodes = texts[name.split("_")[1]]
        quotes = (quote(node) for text, node in nodes if re.fullmatch(pattern, text))
        found.append(Mechanism(name, says, tuple(dict.fromkeys(quotes))))
    return found


def _texts(modules: Modules, kernel: str) -> list[tuple[str, ast.AST]]:
    """Return the statements and calls of the class of a kernel, each with its text."""
    return [
        (ast.unparse(node), node)
        for _, group in modules.definitions(
            ast.ClassDef, f"class FlashAttentionForwardSm{kernel[2:]}"
        )
        if group.name.lower().endswith(f"forward{kernel}")
        for node in nodes_of(group)
        if isinstance(node, ast.Assign | ast.Call)
    ]


__all__ = ["PACKAGE", "WANTED", "mechanisms", "readings", "tile"]

PACKAGE = "flash-attn-4"
WANTED = r"(flash_attn/cute/)?(interface|flash_fwd(_sm90|_sm100)?)\.py"


FOLLOWING_RULES: Mapping[str, tuple[str, ...]] = {}
"""No rule takes another rule's answer as input."""


def rule_queries(query: AttentionQuery, point: Point) -> tuple[RuleQuery, ...]:
    """Return the rule of the compute capability's family, and its facts."""
    facts = call_facts(
        query.head_dim,
        query.group,
        positions=point.positions,
        heads=query.heads,
        kv_heads=query.kv_heads,
        batch=point.batch,
        context=point.context,
        causal=query.causal,
        cu_seqlens_q="given" if query.api == "varlen" else None,
    )
    family = None if query.sm is None else query.sm // 10 * 10
    return (RuleQuery(f"tile_sm{family}", facts | {"sms": query.sms}),)


def tile(rules: Mapping[str, Rule], query: AttentionQuery, positions: int) -> Tile:
    """Return the tile of the queries; for packed requests the caller passes the longest length."""
    if query.sm is None:
        raise EvidenceError(
            f"{PACKAGE} has a kernel per compute capability, and the query names no capability",
            remedy="Name the device with --device, or give --sm and --sms",
        )
    family = query.sm // 10 * 10
    if family not in FAMILIES:
        raise EvidenceError(
            f"{PACKAGE} has no kernel for compute capability {query.sm}",
            remedy=f"Ask about a device of {', '.join(map(str, FAMILIES))} and the like",
        )
    ((name, facts),) = rule_queries(query, point_of(query, positions))
    answer = rule_answer(rules, name, facts)
    rows, stages, splits, packed, kernel_class = answer.value
    _checked(rules, kernel_class, packed=bool(packed), has_stages=stages > 1)
    path = f"sm{family}" + "+split" * (splits > 1) + "+pack_gqa" * bool(packed)
    return Tile.of(path, rows * stages, query.group if packed else 1, positions, answer.branch)


def _checked(
    rules: Mapping[str, Rule], kernel_class: str, *, packed: bool, has_stages: bool
) -> None:
    """Raise EvidenceError unless the kernel's tiling is known and its lines were read."""
    if kernel_class not in KERNELS:
        raise EvidenceError(
            f"how {kernel_class} tiles is not read",
            remedy="Ask for another head size or capability",
        )
    links = ["tiles"] + ["packed"] * packed + ["stages"] * has_stages
    for link in links:
        require_mechanism(rules, f"{link}_{KERNELS[kernel_class]}")
