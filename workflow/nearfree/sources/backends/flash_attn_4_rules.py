"""How to read FlashAttention 4's rules: rows of a block, splits, and whether heads are packed.

One long function decides all of these. It is read separately for each family of compute
capabilities, for a call without block sparsity, windows, custom masks or scores: arguments that a
query does not contain keep their defaults.
"""

import ast
import re
from collections.abc import Mapping
from typing import Any

from nearfree.errors import SourceError
from nearfree.sources.language.cuts import returning_names, with_defaults
from nearfree.sources.language.expressions import UnknownConstructError, parse
from nearfree.sources.language.program import (
    Function,
    Program,
    at,
    copied,
    defaults,
    names_in,
    placed,
    statement_at,
)
from nearfree.sources.language.python_source import Modules, find_record
from nearfree.sources.language.reading import Reading, reachable
from nearfree.sources.language.slicing import slice_to

KERNEL_CHECKS = frozenset(
    {"arch", "head_dim", "head_dim_v", "alignment", "is_split_kv", "num_splits"}
)
"""Names in assertions that decide whether a kernel exists; other assertions check tensors."""
EMPTY = r"(seqlen_k|total_q) == 0( or (seqlen_k|total_q) == 0)?"
COMPILED = r"compile_key not in .*"
HEAD_CHECK = "_validate_head_dims"
KERNEL = "fa_fwd"
LONGEST = "max_seqlen_q"


def cut_call(function: Function) -> Function:
    """Return a function, changed in place, as a call runs it that reaches its last statement.

    Queries never have zero rows. Any other path that returns earlier calls another function, and
    has no tile here. The call compiles its kernel, as the first one of its kind.
    """
    *body, last_statement = function.body
    function.body = [_Call().visit(statement) for statement in body] + [last_statement]
    return function


def calling(function: Function, name: str, value: ast.expr) -> Function:
    """Return a function, changed in place, whose parameter `name` has another default."""
    arguments = function.args
    parameters = [argument.arg for argument in arguments.args]
    index = parameters.index(name) - len(parameters) + len(arguments.defaults)
    arguments.defaults[index] = placed(value, arguments.defaults[index])
    return function


def only_families(function: Function) -> None:
    """Check that a function uses only the family of a compute capability, `arch // 10`.

    Raises
    ------
    UnknownConstructError
        It uses `arch` otherwise, so that capabilities of one family may differ.
    """
    family_nodes = {
        id(node.left)
        for node in ast.walk(function)
        if isinstance(node, ast.BinOp) and ast.unparse(node) == "arch // 10"
    }
    passed_nodes = {
        id(argument)
        for node in ast.walk(function)
        if isinstance(node, ast.Call)
        for argument in (*node.args, *(keyword.value for keyword in node.keywords))
    }
    for node in ast.walk(function):
        if not isinstance(node, ast.Name) or isinstance(node.ctx, ast.Store):
            continue
        if node.id == "arch" and id(node) not in family_nodes | passed_nodes:
            raise UnknownConstructError("arch is used otherwise than by arch // 10", node)


class _Call(ast.NodeTransformer):
    def visit_If(self, node: ast.If) -> ast.AST:
        text = ast.unparse(node.test)
        if re.fullmatch(EMPTY, text) and not node.orelse:
            return ast.copy_location(ast.Pass(), node)
        if text == f"{LONGEST} is None":
            # A caller who packs requests of several lengths passes the longest length.
            return statement_at(f"{LONGEST} = positions", node)
        if re.fullmatch(COMPILED, text):
            node.test = at(ast.Constant(value=True), node.test)
        return self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        """Replace the construction of a kernel by its class; drop copies, which keep shapes."""
        value, target = node.value, node.targets[0]
        if isinstance(target, ast.Name) and target.id == KERNEL and isinstance(value, ast.Call):
            node.value = value.func
        sets_local = isinstance(target, ast.Name | ast.Tuple)
        if not sets_local or _contiguous(value) == ast.unparse(target):
            return ast.copy_location(ast.Pass(), node)
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        """Drop calls that write into tensors: the tile depends on numbers alone."""
        if isinstance(node.value, ast.Call) and ast.unparse(node.value.func) != HEAD_CHECK:
            return ast.copy_location(ast.Pass(), node)
        return node

    def visit_Return(self, node: ast.Return) -> ast.AST:
        return at(ast.Raise(None, None), node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return node


def _contiguous(value: ast.expr) -> str | None:
    """Return the argument of `maybe_contiguous(x, ...)`, or of a list of such; None otherwise."""
    match value:
        case ast.Call(func=ast.Name(id="maybe_contiguous"), args=[argument, *_]):
            return ast.unparse(argument)
        case ast.ListComp(
            elt=ast.Call(func=ast.Name(id="maybe_contiguous")), generators=[generator]
        ):
            return ast.unparse(generator.iter)
    return None


class _Checks(ast.NodeTransformer):
    """Makes assertions about some names, or all, raise."""

    def __init__(self, names: frozenset[str] | None) -> None:
        self.names = names

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        return at(ast.Raise(None, None), node)

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        names = {name.id for name in ast.walk(node.test) if isinstance(name, ast.Name)}
        if self.names is not None and not names <= self.names:
            return node
        negation = at(ast.UnaryOp(ast.Not(), node.test), node)
        return at(ast.If(negation, [at(ast.Raise(None, None), node)], []), node)


FORWARD = "_flash_attn_fwd"
PUBLIC = ("flash_attn_func", "flash_attn_varlen_func")
FAMILIES = (80, 90, 100, 110, 120)
"""The compute capability that represents each family, those with the same tens."""
SHAPES = ((64, 1), (96, 4), (128, 4), (128, 6), (256, 6))
"""Head sizes, and query heads per key-value head."""
DENSE = range(1, 34)
TILE = ("tile_m", "m_block_size")
"""Names of the rows of a tile in releases, the newest first."""
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
"""The values of expressions for a call in 16 bits without gradients, on real tensors."""


SWITCHES = {"clc_scheduler": False, "single_ctas": False, "no_ping_pong": False}
"""Environment switches; an answer that depends on one lacks a fact, and is refused."""


def readings(files: Mapping[str, str]) -> list[Reading]:
    """Return the readings of a release's rules from its files, one per family."""
    modules = Modules(files)
    program, root = _program(modules)
    return [_tile(program, root, sm) for sm in FAMILIES]


def _program(modules: Modules) -> tuple[Program, str]:
    """Return the program that computes tile rows, tiles per block, splits, packing and kernel."""
    path, forward = modules.locate([FORWARD])
    name = next((rows for rows in TILE if rows in names_in(forward)), TILE[-1])
    cut = cut_call(returning_names(forward, name, *SETTLED))
    cut = calling(cut, "num_splits", _splits(modules))
    program, root = modules.program_of(path, cut, LEAVES)
    record = find_record(modules, "FwdConfig")
    functions = {}
    for function_name, function in program.functions.items():
        names = None if function_name == HEAD_CHECK else KERNEL_CHECKS
        checked: Function = _Checks(names).visit(function)
        without_record: Function = checked if record is None else record.visit(checked)
        functions[function_name] = slice_to(without_record, checks=False)
        only_families(functions[function_name])
    return Program(functions, program.constants), root


def _tile(program: Program, root: str, sm: int) -> Reading:
    """Read the rule of one family."""
    inputs = frozenset(call_facts(0, 1))
    rooted = calling(copied(program.functions[root]), "_arch", parse(str(sm)))
    root_functions = {root: slice_to(with_defaults(rooted, inputs), checks=False)}
    functions = {**program.functions, **root_functions}
    reachable_functions = {
        function_name: functions[function_name]
        for function_name in reachable(Program(functions), {root})
    }
    return Reading(
        rule=f"tile_sm{sm}",
        program=Program(reachable_functions, program.constants),
        root=root,
        axis="positions",
        contexts=[call_facts(head_dim, group) | SWITCHES for head_dim, group in SHAPES],
        extra_contexts=[
            call_facts(128, 4, causal=False) | SWITCHES,
            call_facts(128, 4, cu_seqlens_q="given", batch=4) | SWITCHES,
        ],
        interpret_whole=False,
        dense=DENSE,
    )


def _splits(modules: Modules) -> ast.expr:
    """Return the default of `num_splits` in the public functions."""
    default_values = [defaults(modules.locate([name])[1]).get("num_splits") for name in PUBLIC]
    texts = {
        None if default_value is None else ast.unparse(default_value)
        for default_value in default_values
    }
    if len(texts) != 1 or default_values[0] is None:
        raise SourceError(f"{' and '.join(PUBLIC)} have not one default of num_splits: {texts}")
    return default_values[0]


def call_facts(head_dim: int, group: int, **changes: Any) -> dict[str, Any]:
    """Return the facts of a call of one request, with some of them changed."""
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
