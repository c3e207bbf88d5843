"""FlashAttention 4: the lines that make a tile matter to its kernels."""

import ast
import re
from collections.abc import Mapping

from nearfree.log.events import Quote
from nearfree.sources.language.mechanism import Mechanism
from nearfree.sources.language.program import quote
from nearfree.sources.language.python_source import Modules

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
"""The class whose lines show how each kernel tiles; that for 120 is derived from that for 80."""


def mechanisms(files: Mapping[str, str]) -> list[Mechanism]:
    """Return the links from the rules to the kernels, with the lines that were found."""
    modules = Modules({path: text for path, text in files.items() if "flash_fwd" in path})
    return [
        Mechanism(name, says, _lines(modules, name.split("_")[1], pattern))
        for name, says, pattern in LINKS
    ]


def _lines(modules: Modules, kernel: str, pattern: str) -> tuple[Quote, ...]:
    """Return where a statement or call stands in the class of a kernel."""
    found = [
        quote(node)
        for path, content in sorted(modules.files.items())
        if f"class FlashAttentionForwardSm{kernel[2:]}" in content
        for group in modules.tree(path).body
        if isinstance(group, ast.ClassDef) and group.name.lower().endswith(f"forward{kernel}")
        for node in ast.walk(group)
        if isinstance(node, ast.Assign | ast.Call) and re.fullmatch(pattern, ast.unparse(node))
    ]
    return tuple(dict.fromkeys(found))
