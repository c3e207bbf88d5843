"""How to read FlashAttention 4's rules: rows of a block, splits, and whether heads are packed.

All of it is decided in one long function. It is read for each family of capabilities on its own,
and for a call without block sparsity, windows, custom masks or scores: what a question does not
speak of keeps its default.
"""

import ast
import copy
from collections.abc import Mapping
from typing import Any

from nearfree.errors import SourceError
from nearfree.sources.backends.flash_attn_4_cuts import (
    HEAD_CHECK,
    KEPT,
    KERNEL,
    calling,
    cut_call,
    only_families,
    with_checks,
)
from nearfree.sources.language.alike import returning
from nearfree.sources.language.expressions import parse
from nearfree.sources.language.known import without_options
from nearfree.sources.language.program import Function, Program, defaults
from nearfree.sources.language.python_source import Modules
from nearfree.sources.language.reading import Reading, reached
from nearfree.sources.language.records import find_record
from nearfree.sources.language.slicing import slice_to

FORWARD = "_flash_attn_fwd"
PUBLIC = ("flash_attn_func", "flash_attn_varlen_func")
FAMILIES = (80, 90, 100, 110, 120)
"""Capabilities that stand for all with the same tens."""
SHAPES = ((64, 1), (96, 4), (128, 4), (128, 6), (256, 6))
"""Head sizes, and query heads that share a key-value head."""
DENSE = range(1, 34)
TILE = ("tile_m", "m_block_size")
"""What the rows of a tile are called: the newest name first."""
SETTLED = ("q_stage", "num_splits", "pack_gqa", KERNEL)
LEAVES = {
    r"(q_shape|q\.shape)\[-2:\]": "(heads, head_size)",
    r"(q_shape|q\.shape)\[:2\]": "(batch, positions)",
    r"(q_shape|q\.shape)\[0\]": "batch * positions",
    r"cu_seqlens_q\.shape\[0\]": "(batch + 1)",
    r"[kv]\.shape\[-3\]": "context",
    r"[kv]\.shape\[-2\]": "kv_heads",
    r"[kv]\.shape\[-1\]": "head_size",
    r"torch\.cuda\.get_device_properties\(.*\)\.multi_processor_count": "sms",
    r"get_num_sms_\w+\(.*\)": "sms",
    r"[qkv]\.dtype": "'bfloat16'",
    r"[qkv]\.device": "None",
    r"[qkv]\.element_size\(\)": "2",
    r"torch\.(float\w+|bfloat16)": r"'\1'",
    r"torch\.is_tensor\(.*\)": "False",
    r"utils\._get_use_clc_scheduler_default\(.*\)": "clc_scheduler",
    r"utils\._get_disable_2cta_default\(.*\)": "single_ctas",
    r"utils\._get_disable_s_ping_pong_default\(.*\)": "no_ping_pong",
    r"cute\.ceil_div\(([^,()]+), ([^,()]+)\)": r"-(-(\1) // (\2))",
    r"math\.ceil\((.+)\)": r"ceil(\1)",
    r"is_fake_mode\(\)": "False",
    r"any\(.*requires_grad.*\)": "False",
    r"\w+\.requires_grad": "False",
    r"get_sparse_q_block_size\(.*\)": "None",
    r"partial\(.*\)": "None",
    r"_get_device_arch\(\)": "None",
    r"([A-Z]\w*Forward\w*)": r"'\1'",
    r"(q|k|v)": r"'\1'",
}
"""A call in 16 bit without gradients, on real tensors that are all given."""


SWITCHES = {"clc_scheduler": False, "single_ctas": False, "no_ping_pong": False}
"""Switches of the environment; where an answer rests on one, that is a fact nobody says."""


def readings(files: Mapping[str, str]) -> list[Reading]:
    """Return how to read a release's rules from its files: one for each family."""
    modules = Modules(files)
    program, root = _program(modules)
    return [_tile(program, root, sm) for sm in FAMILIES]


def _program(modules: Modules) -> tuple[Program, str]:
    """Return what settles rows of a tile, tiles of a block, splits, packed heads and kernel."""
    path, forward = modules.locate([FORWARD])
    name = next((each for each in TILE if _named(forward, each)), TILE[-1])
    short = cut_call(returning(forward, name, *SETTLED))
    short = calling(short, "num_splits", _splits(modules))
    program, root = modules.program_of(path, short, LEAVES)
    record = find_record(modules, "FwdConfig")
    functions = {}
    for each, function in program.functions.items():
        checked = with_checks(function, None if each == HEAD_CHECK else KEPT)
        plain = checked if record is None else record.as_tuples(checked)
        functions[each] = slice_to(plain, checks=False)
        only_families(functions[each])
    return Program(functions, program.constants), root


def _tile(program: Program, root: str, sm: int) -> Reading:
    """Read the rule of one family."""
    inputs = frozenset(call_facts(0, 1))
    short = calling(copy.deepcopy(program.functions[root]), "_arch", parse(str(sm)))
    known = {root: slice_to(without_options(short, inputs), checks=False)}
    functions = {**program.functions, **known}
    needed = {each: functions[each] for each in reached(Program(functions), {root})}
    return Reading(
        rule=f"tile_sm{sm}",
        program=Program(needed, program.constants),
        root=root,
        axis="positions",
        contexts=[call_facts(head_dim, group) | SWITCHES for head_dim, group in SHAPES],
        also=[
            call_facts(128, 4, causal=False) | SWITCHES,
            call_facts(128, 4, cu_seqlens_q="given", batch=4) | SWITCHES,
        ],
        whole=False,
        dense=DENSE,
    )


def _splits(modules: Modules) -> ast.expr:
    """Return how many splits the public functions ask for where a caller does not say."""
    found = [defaults(modules.locate([name])[1]).get("num_splits") for name in PUBLIC]
    texts = {None if each is None else ast.unparse(each) for each in found}
    if len(texts) != 1 or found[0] is None:
        raise SourceError(
            f"{' and '.join(PUBLIC)} have not one default of num_splits: {texts}",
            remedy="This release needs a reader of its own: report it",
        )
    return found[0]


def call_facts(head_dim: int, group: int, **changes: Any) -> dict[str, Any]:
    """Return a call of one request, with some of it changed."""
    return {
        "sms": 128,
        "head_size": head_dim,
        "heads": group,
        "kv_heads": 1,
        "batch": 1,
        "context": 4096,
        "causal": True,
        "cu_seqlens_q": None,
    } | changes


def _named(function: Function, name: str) -> bool:
    return any(isinstance(each, ast.Name) and each.id == name for each in ast.walk(function))
