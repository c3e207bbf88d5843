"""How to read FlashAttention 4's rules: rows of a block, splits, and whether heads are packed.

All of it is decided in one long function, for a call without block sparsity, windows, custom
masks or scores: what a question does not speak of keeps its default.
"""

import ast
from collections.abc import Mapping
from typing import Any

from nearfree.sources.alike import returning
from nearfree.sources.expressions import UnknownConstructError
from nearfree.sources.leaves import replace_leaves
from nearfree.sources.program import Function, Program, at, defaults
from nearfree.sources.python_cuts import made
from nearfree.sources.python_source import Modules
from nearfree.sources.reading import Reading
from nearfree.sources.records import Record, find_record

FORWARD = "_flash_attn_fwd"
PUBLIC = ("flash_attn_func", "flash_attn_varlen_func")
TILE = ("tile_m", "m_block_size")
"""What the rows of a block are called: the newest name first."""
SETTLED = ("q_stage", "num_splits", "pack_gqa")
LEAVES = {
    r"(q_shape|q\.shape)\[-2:\]": "(heads, head_size)",
    r"(q_shape|q\.shape)\[:2\]": "(batch, positions)",
    r"(q_shape|q\.shape)\[0\]": "batch * positions",
    r"cu_seqlens_q\.shape\[0\]": "(batch + 1)",
    r"[kv]\.shape\[-3\]": "context",
    r"[kv]\.shape\[-2\]": "kv_heads",
    r"[kv]\.shape\[-1\]": "head_size",
    r"_get_device_arch\(\)": "sm",
    r"(torch\.cuda\.get_device_properties\(.*\)\.multi_processor_count|get_num_sms_\w+\(.*\))": "sms",
    r"[qkv]\.dtype": "'bfloat16'",
    r"[qkv]\.device": "None",
    r"[qkv]\.element_size\(\)": "2",
    r"_?validate_\w+\(.*\)": "None",
    r"maybe_contiguous\((\w+)(, .*)?\)": r"\1",
    r"torch\.(float\w+|bfloat16)": r"'\1'",
    r"torch\.is_tensor\(.*\)": "False",
    r"is_fake_mode\(\)": "False",
    r"any\(.*requires_grad.*\)": "False",
    r"\w+\.requires_grad": "False",
    r"get_sparse_q_block_size\(.*\)": "None",
    r"partial\(.*\)": "None",
    r"(q|k|v)": r"'\1'",
}
"""A call in 16 bit without gradients, on real tensors."""


def readings(files: Mapping[str, str]) -> list[Reading]:
    """Return how to read a release's rules from its files."""
    modules = Modules(files)
    return [_tile(modules), _splits(modules)]


def _tile(modules: Modules) -> Reading:
    """Read rows of a tile, tiles of a block, splits, and whether heads are packed."""
    path, forward = modules.locate([FORWARD])
    record = find_record(modules, "FwdConfig")
    name = next((each for each in TILE if _named(forward, each)), TILE[-1])
    short = _Settled().visit(returning(forward, name, *SETTLED))
    program, root = modules.program_of(path, short, LEAVES)
    functions = {
        each: function if record is None else record.as_tuples(function)
        for each, function in program.functions.items()
    }
    return Reading(
        rule="tile",
        program=Program(functions, program.constants),
        root=root,
        axis="positions",
        contexts=[facts(sm, d, group) for sm in SMS for d in HEAD_DIMS for group in (1, 4)],
        also=[facts(90, 128, 1, causal=False), facts(100, 128, 6), facts(100, 128, 4, num_splits=0)],
        whole=False,
    )


SMS = (80, 90, 100, 120)
HEAD_DIMS = (64, 96, 128, 192, 256)


def facts(sm: int | None, head_dim: int, group: int, **changes: Any) -> dict[str, Any]:
    """Return a call of one request on one capability, with some of it changed."""
    return {
        "sm": sm,
        "sms": 132,
        "head_size": head_dim,
        "heads": 8 * group,
        "kv_heads": 8,
        "batch": 1,
        "context": 4096,
        "causal": True,
        "cu_seqlens_q": None,
        "max_seqlen_q": None,
        "num_splits": 1,
    } | changes


def _named(function: Function, name: str) -> bool:
    return any(isinstance(each, ast.Name) and each.id == name for each in ast.walk(function))


class _Settled(ast.NodeTransformer):
    """A call that is answered for the first time: it compiles, and no earlier end is its own."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:  # noqa: N802
        if node.name == FORWARD:
            end = node.body.pop()
            self.generic_visit(node)
            node.body.append(end)
        return node

    def visit_If(self, node: ast.If) -> ast.AST:  # noqa: N802
        if ast.unparse(node.test).startswith("compile_key not in "):
            node.test = at(ast.Constant(value=True), node.test)
        return self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> ast.AST:  # noqa: N802
        """Leave out `q, k = [maybe_contiguous(t) for t in (q, k)]`: the shapes stay."""
        value, target = node.value, node.targets[0]
        if isinstance(value, ast.ListComp) and isinstance(target, ast.Tuple):
            same = ast.unparse(value.generators[0].iter) == ast.unparse(target)
            if same and ast.unparse(value.elt).startswith("maybe_contiguous("):
                return ast.copy_location(ast.Pass(), node)
        return node

    def visit_Return(self, node: ast.Return) -> ast.AST:  # noqa: N802
        end = ast.copy_location(ast.Raise(None, None), node)
        end.origin = getattr(node, "origin", None)  # type: ignore[attr-defined]
        return end


def _splits(modules: Modules) -> Reading:
    """Read how many splits a call asks for that does not say: 0 leaves it to the heuristic."""
    values = []
    for name in PUBLIC:
        path, function = modules.locate([name])
        default = defaults(function).get("num_splits")
        if default is None:
            raise UnknownConstructError(f"{name} has no default of num_splits", function)
        values.append((path, default))
    (_, dense), (_, varlen) = values
    choice = at(ast.IfExp(at(ast.Name("varlen", ast.Load()), varlen), varlen, dense), dense)
    end = ast.copy_location(ast.Return(choice), dense)
    end.origin = dense.origin  # type: ignore[attr-defined]
    function = made("num_splits", [end], dense)
    return Reading(
        rule="num_splits",
        program=Program({"num_splits": function}),
        root="num_splits",
        axis=None,
        contexts=[{"varlen": False}, {"varlen": True}],
    )
