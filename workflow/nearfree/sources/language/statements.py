"""Statements of a rule's functions, run in order; the kind of values is left to subclasses.

The interpreter runs them over numbers, path enumeration over expressions. Each subclass defines the
value of an expression, the branch taken at a condition, and the items of a group; this class does
the rest.
"""

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from nearfree.sources.language.expressions import UnknownConstructError, name_of, outside
from nearfree.sources.language.functions import BUILTINS
from nearfree.sources.language.program import (
    Function,
    Program,
    at,
    bound_by,
    defaults,
    own_default,
    parameters,
    plain_nested,
)

REFUSED = "refused"
"""The value of a path that ends in an error of the backend."""
DEPTH_LIMIT = 40
Frame = dict[str, Any]
"""Values of local names."""


@dataclass
class Nested:
    """A function inside a function, with the names of its enclosing scope."""

    function: Function
    frame: Frame


@lru_cache(maxsize=1 << 10)
def _augmented_operation(node: ast.AugAssign) -> ast.BinOp:
    """Return the operation of `x += ...` on a name; cached, since closures are kept by node."""
    if not isinstance(node.target, ast.Name):
        raise outside(node)
    read = at(ast.Name(node.target.id, ast.Load()), node)
    return at(ast.BinOp(read, node.op, node.value), node)


@lru_cache(maxsize=1 << 12)
def _imported(node: ast.Import | ast.ImportFrom) -> frozenset[str]:
    return frozenset(bound_by(node))


class RefusedError(Exception):
    """The backend refuses the call, at a statement."""

    def __init__(self, node: ast.AST) -> None:
        super().__init__()
        self.node = node


End = tuple[Any, ...] | None
"""How a block ended: None at its last statement, (value,) by a return, or by break or continue."""
_BREAK: End = ("break", None)
_CONTINUE: End = ("continue", None)


class _Signature(NamedTuple):
    """A function's parameters and defaults; `line` is its result if the body is one return."""

    names: list[str]
    defaults: dict[str, ast.expr]
    line: ast.expr | None


@lru_cache(maxsize=1 << 12)
def _signature(function: Function) -> _Signature:
    match function.body:
        case [ast.Return(value=line)] | [
            ast.Expr(value=ast.Constant(value=str())),
            ast.Return(value=line),
        ]:
            return _Signature(parameters(function), defaults(function), line)
    return _Signature(parameters(function), defaults(function), None)


class Statements:
    """Runs the functions of one program."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.depth = 0
        self._methods: dict[type[ast.stmt], Callable[..., Any]] = {}

    def count(self, node: ast.AST) -> None:
        """Count a statement against the limit."""
        raise NotImplementedError

    def expr(self, node: ast.expr, frame: Frame) -> Any:
        """Return an expression's value."""
        raise NotImplementedError

    def condition(self, node: ast.expr, frame: Frame) -> bool:
        """Return the branch to take at a condition."""
        raise NotImplementedError

    def items(self, group: Any) -> Sequence[Any] | None:
        """Return the items of a list, tuple or range; None for any other value."""
        raise NotImplementedError

    def store_item(self, target: ast.Subscript, value: Any, frame: Frame) -> None:
        """Set an entry of a dictionary or list."""
        raise NotImplementedError

    def apply(self, nested: Nested, arguments: list[Any], node: ast.AST) -> Any:
        """Return a function's result for positional arguments."""
        names = _signature(nested.function).names
        if len(arguments) > len(names):
            name = nested.function.name
            raise UnknownConstructError(f"{name} is called with too many arguments", node)
        return self.enter(nested, dict(zip(names, arguments, strict=False)))

    def enter(self, nested: Nested, arguments: Frame) -> Any:
        """Return a function's result for named arguments; other parameters keep their defaults."""
        function = nested.function
        self.depth += 1
        if self.depth > DEPTH_LIMIT:
            raise UnknownConstructError(f"{function.name} calls itself without end", function)
        frame = self.frame(nested, arguments)
        _, default_values, line = _signature(function)
        for name, value in default_values.items():
            if name not in arguments:
                frame[name] = self.default(name, value)
        try:
            if line is not None:
                return self.expr(line, frame)
            end = self.block(function.body, frame)
        finally:
            self.depth -= 1
        if end is _BREAK or end is _CONTINUE:
            raise outside(function)
        return None if end is None else end[0]

    def frame(self, nested: Nested, arguments: Frame) -> Frame:
        """Return the names of a call before its defaults are set."""
        return nested.frame | arguments

    def default(self, name: str, value: ast.expr) -> Any:
        """Return a parameter's default."""
        return self.expr(own_default(name, value), {})

    def block(self, body: list[ast.stmt], frame: Frame) -> End:
        """Run statements; return how the block ended."""
        for statement in body:
            self.count(statement)
            kind = type(statement)
            method = self._methods.get(kind)
            if method is None:
                method = self._methods[kind] = getattr(self, f"s_{kind.__name__.lower()}", outside)
            if method is outside:
                raise outside(statement)
            end: End = method(statement, frame)
            if end is not None:
                return end
        return None

    def s_functiondef(self, node: Function, frame: Frame) -> None:
        """Bind a nested function, with the names of its scope."""
        frame[node.name] = Nested(plain_nested(node), frame)

    def s_assign(self, node: ast.Assign, frame: Frame) -> None:
        """Assign; a tuple display to a tuple item by item, so that its lists stay lists."""
        targets, value = node.targets, node.value
        if len(targets) == 1 and type(targets[0]) is ast.Name:
            frame[targets[0].id] = self.expr(value, frame)
            return
        if (
            isinstance(value, ast.Tuple)
            and len(targets) == 1
            and isinstance(targets[0], ast.Tuple)
            and len(targets[0].elts) == len(value.elts)
        ):
            targets = targets[0].elts
            values = [self.expr(part, frame) for part in value.elts]
        else:
            values = [self.expr(value, frame)] * len(targets)
        for target, part in zip(targets, values, strict=True):
            self.store(target, part, frame)

    def s_annassign(self, node: ast.AnnAssign, frame: Frame) -> None:
        """Assign, if there is a value."""
        if node.value is not None:
            self.store(node.target, self.expr(node.value, frame), frame)

    def s_augassign(self, node: ast.AugAssign, frame: Frame) -> None:
        """Assign the result of an operation on a name to that name."""
        self.store(node.target, self.expr(_augmented_operation(node), frame), frame)

    def s_if(self, node: ast.If, frame: Frame) -> End:
        """Run the branch that the condition selects."""
        return self.block(node.body if self.condition(node.test, frame) else node.orelse, frame)

    def s_for(self, node: ast.For, frame: Frame) -> End:
        """Run the body for each item of a group of known length."""
        items = self.items(self.expr(node.iter, frame))
        if items is None or node.orelse:
            raise UnknownConstructError(
                f"{name_of(node)} is outside the known set: it does not iterate over a list", node
            )
        for item in items:
            self.store(node.target, item, frame)
            end = self.block(node.body, frame)
            if end is _BREAK:
                break
            if end is not None and end is not _CONTINUE:
                return end
        return None

    def s_return(self, node: ast.Return, frame: Frame) -> End:
        """End the function with a value."""
        return (None if node.value is None else self.expr(node.value, frame),)

    def s_raise(self, node: ast.Raise, _: Frame) -> None:
        """End the call: the backend refuses it."""
        raise RefusedError(node)

    def s_assert(self, node: ast.Assert, frame: Frame) -> None:
        """End the call where the condition fails."""
        if not self.condition(node.test, frame):
            raise RefusedError(node)

    def s_break(self, *_: object) -> End:
        """Leave a loop."""
        return _BREAK

    def s_continue(self, *_: object) -> End:
        """Go to the next iteration of a loop."""
        return _CONTINUE

    def s_pass(self, *_: object) -> None:
        """Do nothing."""

    def s_import(self, node: ast.Import | ast.ImportFrom, frame: Frame) -> None:
        """Bind nothing: an imported name is unknown where it is used."""
        groups = (frame.keys(), self.program.constants, BUILTINS)
        if any(name in group for name in _imported(node) for group in groups):
            raise UnknownConstructError(f"{name_of(node)} hides another name", node)

    s_importfrom = s_import

    def s_expr(self, node: ast.Expr, frame: Frame) -> None:
        """Evaluate a call for its effects; a text alone is a comment."""
        if isinstance(node.value, ast.Call):
            self.expr(node.value, frame)
        elif not isinstance(node.value, ast.Constant):
            raise outside(node)

    def store(self, target: ast.expr, value: Any, frame: Frame) -> None:
        """Assign a value to a name, to the names of a tuple, or to an entry."""
        match target:
            case ast.Name():
                frame[target.id] = value
            case ast.Subscript():
                self.store_item(target, value, frame)
            case ast.Tuple():
                parts = self.items(value)
                if parts is None or isinstance(parts, range) or len(parts) != len(target.elts):
                    raise outside(target)
                for name, part in zip(target.elts, [*parts], strict=True):
                    self.store(name, part, frame)
            case _:
                raise outside(target)
