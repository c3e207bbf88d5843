"""How to read FlashAttention 4's rules: rows of a block, splits, and whether heads are packed.

All of it is decided in one long function. It is read for each family of capabilities on its own,
and for a call without block sparsity, windows, custom masks or scores: what a question does not
speak of keeps its default.
"""

import ast
import re
from collections.abc import Mapping
from typing import Any

from nearfree.errors import SourceError
from nearfree.sources.language.cuts import returning, without_options
from nearfree.sources.language.expressions import UnknownConstructError, parse
from nearfree.sources.language.program import (
    Function,
    Program,
    at,
    copied,
    defaults,
    names_in,
    placed,
)
from nearfree.sources.language.python_source import Modules, find_record
from nearfree.sources.language.reading import Reading, reached
from nearfree.sources.language.slicing import slice_to

KEPT = frozenset({"arch", "head_dim", "head_dim_v", "alignment", "is_split_kv", "num_splits"})
"""Names of checks that decide whether a kernel exists; others are about the tensors."""
EMPTY = r"(seqlen_k|total_q) == 0( or (seqlen_k|total_q) == 0)?"
COMPILED = r"compile_key not in .*"
HEAD_CHECK = "_validate_head_dims"
KERNEL = "fa_fwd"
LONGEST = "max_seqlen_q"


def cut_call(function: Function) -> Function:
    """Return a function as a call takes it that goes through it; it is changed in place.

    A call of no rows is not asked for. Any other way that ends before the last statement goes
    elsewhere, and has no tile here. The first call of its kind compiles its kernel.
    """
    *body, end = function.body
    function.body = [_Call().visit(each) for each in body] + [end]
    return function


def calling(function: Function, name: str, value: ast.expr) -> Function:
    """Return a function that is given an argument by default; it is changed in place."""
    spec = function.args
    names = [each.arg for each in spec.args]
    place = names.index(name) - len(names) + len(spec.defaults)
    spec.defaults[place] = placed(value, spec.defaults[place])
    return function


def with_checks(function: Function, names: frozenset[str] | None = KEPT) -> Function:
    """Return a function whose assertions about these names, or all, refuse; changed in place."""
    changed: Function = _Checks(names).visit(function)
    return changed


def only_families(function: Function) -> None:
    """Check that a function asks for a capability's tens alone.

    Raises
    ------
    UnknownConstructError
        It asks for more, so that capabilities of one family may differ.
    """
    tens = {
        id(each.left)
        for each in ast.walk(function)
        if isinstance(each, ast.BinOp) and ast.unparse(each) == "arch // 10"
    }
    passed = {
        id(given)
        for each in ast.walk(function)
        if isinstance(each, ast.Call)
        for given in (*each.args, *(keyword.value for keyword in each.keywords))
    }
    for each in ast.walk(function):
        if not isinstance(each, ast.Name) or isinstance(each.ctx, ast.Store):
            continue
        if each.id == "arch" and id(each) not in tens | passed:
            raise UnknownConstructError("more of arch is asked for than arch // 10", each)


class _Call(ast.NodeTransformer):
    def visit_If(self, node: ast.If) -> ast.AST:
        text = ast.unparse(node.test)
        if re.fullmatch(EMPTY, text) and not node.orelse:
            return ast.copy_location(ast.Pass(), node)
        if text == f"{LONGEST} is None":
            # A caller who packs requests of several lengths says the longest one.
            name = at(ast.Name(LONGEST, ast.Store()), node)
            return at(ast.Assign([name], at(ast.Name("positions", ast.Load()), node)), node)
        if re.fullmatch(COMPILED, text):
            node.test = at(ast.Constant(value=True), node.test)
        return self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        """Name a kernel where it is built; leave out copies, whose shapes stay."""
        value, target = node.value, node.targets[0]
        if isinstance(target, ast.Name) and target.id == KERNEL and isinstance(value, ast.Call):
            node.value = value.func
        kept = isinstance(target, ast.Name | ast.Tuple)
        if not kept or _contiguous(value) == ast.unparse(target):
            return ast.copy_location(ast.Pass(), node)
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        """Leave out what writes into tensors: all that settles a tile is numbers."""
        if isinstance(node.value, ast.Call) and ast.unparse(node.value.func) != HEAD_CHECK:
            return ast.copy_location(ast.Pass(), node)
        return node

    def visit_Return(self, node: ast.Return) -> ast.AST:
        return at(ast.Raise(None, None), node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return node


def _contiguous(value: ast.expr) -> str | None:
    """Return what `maybe_contiguous(x, ...)` or a list of such is made from; else None."""
    match value:
        case ast.Call(func=ast.Name(id="maybe_contiguous"), args=[given, *_]):
            return ast.unparse(given)
        case ast.ListComp(elt=ast.Call(func=ast.Name(id="maybe_contiguous")), generators=[only]):
            return ast.unparse(only.iter)
    return None


class _Checks(ast.NodeTransformer):
    def __init__(self, names: frozenset[str] | None) -> None:
        self.names = names

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        return at(ast.Raise(None, None), node)

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        names = {each.id for each in ast.walk(node.test) if isinstance(each, ast.Name)}
        if self.names is not None and not names <= self.names:
            return node
        refused = at(ast.UnaryOp(ast.Not(), node.test), node)
        return at(ast.If(refused, [at(ast.Raise(None, None), node)], []), node)


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
    name = next((each for each in TILE if each in names_in(forward)), TILE[-1])
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
    short = calling(copied(program.functions[root]), "_arch", parse(str(sm)))
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
        raise SourceError(f"{' and '.join(PUBLIC)} have not one default of num_splits: {texts}")
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
