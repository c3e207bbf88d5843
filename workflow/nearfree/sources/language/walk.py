"""One walk through a function over expressions: its statements, in order, with decisions taken."""

import ast

from nearfree.sources.language.decisions import Way
from nearfree.sources.language.expressions import UnknownConstructError, name_of
from nearfree.sources.language.functions import BUILTINS
from nearfree.sources.language.interpret import MOST_DEPTH, REFUSED
from nearfree.sources.language.program import (
    Function,
    at,
    bound_by,
    default_of,
    defaults,
    parameters,
    plain_nested,
    quote,
)
from nearfree.sources.language.symbols import Entries, Frame, Group, Nested, Symbols, Value


class _Return(Exception):  # noqa: N818  # control flow, not an error
    def __init__(self, value: Value) -> None:
        super().__init__()
        self.value = value


class _Refused(Exception):  # noqa: N818
    def __init__(self, node: ast.AST) -> None:
        super().__init__()
        self.node = node


class _Break(Exception):  # noqa: N818
    pass


class _Continue(Exception):  # noqa: N818
    pass


class Walk(Symbols):
    """One run of the function, with the first decisions given."""

    depth = 0

    def run(self, name: str) -> Way:
        """Return the way through a function; its parameters are inputs of the same name."""
        function = self.program.functions[name]
        frame = {
            each: at(ast.Name(each, ast.Load()), function)
            for each in parameters(function)
            if each in self.inputs
        }
        try:
            value = self.enter(function, frame)
        except _Refused as refused:
            value = at(ast.Constant(REFUSED), refused.node)
        way = self.decisions.way
        way.value = self.answer(self.settled(value), function)
        return way

    def answer(self, value: Value, function: Function) -> ast.expr:
        """Return a way's value as an expression, with its place kept as a quote."""
        if isinstance(value, Entries) and len(value) == 1:
            return self.answer(self.settled(*value.values()), function)
        old = next(iter(value), function) if isinstance(value, Group) else function
        shown = self.shown(value, old if isinstance(old, ast.AST) else function)
        # The first part of a tuple is what the rule is about, so its place comes last.
        parts = shown.elts[::-1] if isinstance(shown, ast.Tuple) else []
        placed = [each for each in parts if getattr(each, "origin", None) is not None]
        self.decisions.way.quotes += [quote(each) for each in (shown, *placed)]
        return shown

    def enter(self, function: Function, given: Frame) -> Value:
        """Return what a function gives for some arguments."""
        self.depth += 1
        if self.depth > MOST_DEPTH:
            raise UnknownConstructError(f"{function.name} calls itself without end", function)
        frame = dict(given)
        for name in defaults(function):
            if name not in frame:
                frame[name] = self.expr(default_of(function, name), {})
        try:
            self.block(function.body, frame)
        except _Return as result:
            return result.value
        finally:
            self.depth -= 1
        return None

    def block(self, body: list[ast.stmt], frame: Frame) -> None:
        """Walk through statements."""
        for statement in body:
            self.work.more(statement)
            method = getattr(self, f"s_{type(statement).__name__.lower()}", None)
            if method is None:
                raise UnknownConstructError(
                    f"{name_of(statement)} is outside the known set", statement
                )
            method(statement, frame)

    def s_functiondef(self, node: Function, frame: Frame) -> None:
        """Keep a nested function."""
        frame[node.name] = Nested(plain_nested(node), frame)

    def s_assign(self, node: ast.Assign, frame: Frame) -> None:
        """Assign; a tuple to a tuple part by part, so that lists among them stay lists."""
        target = node.targets[0]
        if (
            isinstance(target, ast.Tuple)
            and isinstance(node.value, ast.Tuple)
            and len(node.targets) == 1
            and len(target.elts) == len(node.value.elts)
        ):
            values = [self.expr(each, frame) for each in node.value.elts]
            for each, part in zip(target.elts, values, strict=True):
                self.store(each, part, frame)
            return
        value = self.expr(node.value, frame)
        for each in node.targets:
            self.store(each, value, frame)

    def s_annassign(self, node: ast.AnnAssign, frame: Frame) -> None:
        """Assign, if there is a value."""
        if node.value is not None:
            self.store(node.target, self.expr(node.value, frame), frame)

    def s_augassign(self, node: ast.AugAssign, frame: Frame) -> None:
        """Assign to a plain name what an operation makes of it."""
        if not isinstance(node.target, ast.Name):
            raise UnknownConstructError(f"{name_of(node)} is outside the known set", node)
        read = at(ast.Name(node.target.id, ast.Load()), node)
        frame[node.target.id] = self.expr(at(ast.BinOp(read, node.op, node.value), node), frame)

    def s_if(self, node: ast.If, frame: Frame) -> None:
        """Take a decision."""
        self.block(node.body if self.condition(node.test, frame) else node.orelse, frame)

    def s_for(self, node: ast.For, frame: Frame) -> None:
        """Run over a list whose length is known."""
        group = self.expr(node.iter, frame)
        items = group.elts if isinstance(group, ast.List | ast.Tuple) else group
        if not isinstance(items, list) or node.orelse:
            raise UnknownConstructError(f"{name_of(node)} does not run over a list", node)
        for item in items:
            self.store(node.target, item, frame)
            try:
                self.block(node.body, frame)
            except _Break:
                break
            except _Continue:
                continue

    def s_return(self, node: ast.Return, frame: Frame) -> None:
        """End the function."""
        raise _Return(None if node.value is None else self.expr(node.value, frame))

    def s_raise(self, node: ast.Raise, frame: Frame) -> None:
        """End the way: the backend refuses the call."""
        del frame
        raise _Refused(node)

    def s_assert(self, node: ast.Assert, frame: Frame) -> None:
        """Take a decision, and end the way where it fails."""
        if not self.condition(node.test, frame):
            raise _Refused(node)

    def s_break(self, *_: object) -> None:
        """Leave a loop."""
        raise _Break

    def s_continue(self, *_: object) -> None:
        """Go on with a loop."""
        raise _Continue

    def s_pass(self, *_: object) -> None:
        """Do nothing."""

    def s_import(self, node: ast.Import | ast.ImportFrom, frame: Frame) -> None:
        """Bind nothing: a name that only an import gives is unknown where it is used."""
        if bound_by(node) & (frame.keys() | self.program.constants.keys() | BUILTINS.keys()):
            raise UnknownConstructError(f"{name_of(node)} hides another name", node)

    s_importfrom = s_import

    def s_expr(self, node: ast.Expr, frame: Frame) -> None:
        """Make a call for what it changes; a text alone is a comment."""
        if isinstance(node.value, ast.Call):
            self.expr(node.value, frame)
        elif not isinstance(node.value, ast.Constant):
            raise UnknownConstructError(f"{name_of(node)} is outside the known set", node)

    def store(self, target: ast.expr, value: Value, frame: Frame) -> None:
        """Let a name, the parts of a tuple, or an entry stand for a value."""
        match target, value:
            case ast.Name(), _:
                frame[target.id] = value
            case ast.Tuple(), (ast.Tuple(elts=parts) | ast.List(elts=parts)) if len(parts) == len(
                target.elts
            ):
                for each, part in zip(target.elts, parts, strict=True):
                    self.store(each, part, frame)
            case ast.Tuple(), Group() if len(value) == len(target.elts):
                for each, part in zip(target.elts, [*value], strict=True):
                    self.store(each, part, frame)
            case ast.Subscript(), _:
                self.store_item(target, value, frame)
            case _:
                raise UnknownConstructError(f"{name_of(target)} is outside the known set", target)

    def store_item(self, target: ast.Subscript, value: Value, frame: Frame) -> None:
        """Set an entry of a dictionary or list that this way has made."""
        group, index = self.expr(target.value, frame), self.expr(target.slice, frame)
        if not isinstance(group, Group | Entries) or not isinstance(index, ast.Constant):
            raise UnknownConstructError(f"{name_of(target)} cannot be set", target)
        if isinstance(value, Group | Entries | Nested):
            raise UnknownConstructError(f"{name_of(target)} puts a group into a group", target)
        self.changing(group, target)
        try:
            group[index.value] = self.held(value, target)  # type: ignore[index]
        except (IndexError, TypeError) as error:
            raise UnknownConstructError(f"{name_of(target)} cannot be set", target) from error
