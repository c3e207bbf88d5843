"""Cut FlashAttention 4's long function down to one call that runs to its end."""

import ast
import re

from nearfree.sources.language.expressions import UnknownConstructError
from nearfree.sources.language.program import Function, at, placed

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
            return _placed(ast.Assign([name], at(ast.Name("positions", ast.Load()), node)), node)
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
        return _placed(ast.Raise(None, None), node)

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
        return _placed(ast.Raise(None, None), node)

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        names = {each.id for each in ast.walk(node.test) if isinstance(each, ast.Name)}
        if self.names is not None and not names <= self.names:
            return node
        refused = at(ast.UnaryOp(ast.Not(), node.test), node)
        return _placed(ast.If(refused, [_placed(ast.Raise(None, None), node)], []), node)


def _placed(new: ast.stmt, old: ast.AST) -> ast.stmt:
    ast.copy_location(new, old)
    new.origin = getattr(old, "origin", None)  # type: ignore[attr-defined]
    return new
