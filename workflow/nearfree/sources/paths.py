"""The first way to read a rule: enumerate the ways through the function.

The function is run over expressions instead of numbers. Where a way depends on an input, a
decision is taken, and the function is run again for the other one, until all are taken. Each way
gives its conditions, its value, and the lines of both.
"""

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nearfree.events.types import Branch, Quote
from nearfree.sources.bounds import Bounds
from nearfree.sources.expressions import (
    BUILTINS,
    LIST_METHODS,
    STRING_METHODS,
    UnknownConstructError,
    evaluate,
    name_of,
    negated,
    variables,
)
from nearfree.sources.interpret import MOST_DEPTH, REFUSED
from nearfree.sources.program import (
    Function,
    Program,
    at,
    defaults,
    loops,
    parameters,
    quote,
)

MOST_PATHS = 2000
Value = Any
"""An expression, or a list of them that may change."""


@dataclass
class Way:
    """One way through a function: decisions, what they were about, and the value."""

    when: list[ast.expr] = field(default_factory=list)
    quotes: list[Quote] = field(default_factory=list)
    value: Value = None


def enumerate_paths(
    program: Program, name: str, inputs: set[str], least: Mapping[str, int] | None = None
) -> tuple[list[Branch], set[str]]:
    """Return a function's branches, and the names of the functions with loops that they call.

    Parameters
    ----------
    program
        Functions and constants; `name` should be sliced, so that it forks only where it must.
    name
        The function.
    inputs
        The names that stay; any other free name is an error.
    least
        Inputs that are never smaller than a number: ways that need less are left out.

    Raises
    ------
    UnknownConstructError
        A construct outside the known set.
    """
    branches, called = [], set()
    open_ways: list[list[bool]] = [[]]
    while open_ways:
        if len(branches) > MOST_PATHS:
            raise UnknownConstructError(f"{name} has more than {MOST_PATHS} ways through it")
        walk = _Walk(program, inputs, open_ways.pop(), Bounds(least or {}))
        way = walk.run(name)
        open_ways += walk.others
        called |= walk.called
        branches.append(
            Branch(
                when=tuple(ast.unparse(each) for each in tightest(way.when)),
                value=ast.unparse(way.value),
                quotes=tuple(dict.fromkeys(way.quotes)),
            )
        )
    return branches, called


def tightest(when: list[ast.expr]) -> list[ast.expr]:
    """Return conditions without the bounds that a closer bound of the same kind implies."""
    kept: list[ast.expr] = []
    for number, each in enumerate(when):
        bound = _bound(each)
        others = [_bound(other) for other in when[number + 1 :]]
        if bound is None or not any(
            other is not None and other[:2] == bound[:2] and other[2] >= bound[2]
            for other in others
        ):
            kept.append(each)
    return kept


def _bound(node: ast.expr) -> tuple[str, type[ast.cmpop], float] | None:
    """Return what is bounded, in which way, and how closely: more is closer."""
    if not isinstance(node, ast.Compare) or len(node.ops) != 1:
        return None
    limit, op = node.comparators[0], type(node.ops[0])
    if not isinstance(limit, ast.Constant) or not isinstance(limit.value, int | float):
        return None
    if op in (ast.Gt, ast.GtE):
        return ast.unparse(node.left), op, limit.value
    return (ast.unparse(node.left), op, -limit.value) if op in (ast.Lt, ast.LtE) else None


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


class _Walk:
    """One run of the function, with the first decisions given."""

    def __init__(
        self, program: Program, inputs: set[str], given: list[bool], bounds: Bounds
    ) -> None:
        self.bounds = bounds
        self.program = program
        self.inputs = inputs
        self.given = given
        self.taken: list[bool] = []
        self.others: list[list[bool]] = []
        self.called: set[str] = set()
        self.known: dict[str, bool] = {}
        self.way = Way()
        self.depth = 0

    def run(self, name: str) -> Way:
        function = self.program.functions[name]
        here = {each: at(ast.Name(each, ast.Load()), function) for each in parameters(function)}
        own = defaults(function)
        frame = {
            each: node if each in self.inputs else own[each]
            for each, node in here.items()
            if each in self.inputs or each in own
        }
        try:
            value = self.enter(function, frame)
        except _Refused as refused:
            value = at(ast.Constant(REFUSED), refused.node)
        self.way.value = self.plain(self.settled(value), function)
        return self.way

    def settled(self, value: Value) -> Value:
        """Return a value without a choice at its top: each choice is a way of its own."""
        while isinstance(value, ast.IfExp):
            value = value.body if self.decide(value.test, value.test) else value.orelse
        return value

    def plain(self, value: Value, function: Function) -> ast.expr:
        """Return a way's value as an expression, with its place kept as a quote."""
        if isinstance(value, list):
            value = at(ast.List([*value], ast.Load()), value[0] if value else function)
        if value is None:
            value = at(ast.Constant(value=None), function)
        if isinstance(value, ast.Dict) and len(value.values) == 1:
            return self.plain(self.settled(value.values[0]), function)
        self.way.quotes.append(quote(value))
        return value  # type: ignore[no-any-return]

    def decide(self, condition: ast.expr, place: ast.AST) -> bool:
        """Return which way to go at a condition, and keep the condition."""
        decided = self.truth(condition)
        if decided is not None:
            return decided
        number = len(self.taken)
        if number == len(self.given):
            self.given = [*self.given, True]
            self.others.append([*self.taken, False])
        answer = self.given[number]
        self.taken.append(answer)
        self.learn(condition, answer=answer)
        self.way.when.append(condition if answer else negated(condition))
        self.way.quotes.append(quote(place))
        return answer

    def truth(self, condition: ast.expr) -> bool | None:
        """Return a condition's truth where constants or earlier decisions settle it."""
        match condition:
            case ast.Constant():
                return bool(condition.value)
            case ast.UnaryOp(op=ast.Not()):
                inner = self.truth(condition.operand)
                return None if inner is None else not inner
            case ast.BoolOp():
                stop = isinstance(condition.op, ast.Or)
                found = {self.truth(each) for each in condition.values}
                if stop in found:
                    return stop
                if found == {not stop}:
                    return not stop
        decided = self.known.get(ast.unparse(condition))
        return self.bounds.truth(condition) if decided is None else decided

    def learn(self, condition: ast.expr, *, answer: bool) -> None:
        """Keep what a decision says, about the parts of the condition too."""
        self.known[ast.unparse(condition)] = answer
        self.known[ast.unparse(negated(condition))] = not answer
        self.bounds.learn(condition, answer=answer)
        if isinstance(condition, ast.BoolOp) and answer is isinstance(condition.op, ast.And):
            for each in condition.values:
                self.learn(each, answer=answer)

    def enter(self, function: Function, given: dict[str, Value]) -> Value:
        self.depth += 1
        if self.depth > MOST_DEPTH:
            raise UnknownConstructError(f"{function.name} calls itself without end", function)
        frame = dict(given)
        for name, node in defaults(function).items():
            if name not in frame:
                frame[name] = self.expr(node, {})
        try:
            self.block(function.body, frame)
        except _Return as result:
            return result.value
        finally:
            self.depth -= 1
        return None

    def block(self, body: list[ast.stmt], frame: dict[str, Value]) -> None:
        for statement in body:
            self.statement(statement, frame)

    def statement(self, node: ast.stmt, frame: dict[str, Value]) -> None:
        match node:
            case ast.FunctionDef():
                frame[node.name] = _Nested(node, frame)
            case ast.Assign():
                value = self.expr(node.value, frame)
                for target in node.targets:
                    self.store(target, value, frame)
            case ast.AnnAssign():
                if node.value is not None:
                    self.store(node.target, self.expr(node.value, frame), frame)
            case ast.AugAssign(target=ast.Name()):
                read = at(ast.Name(node.target.id, ast.Load()), node)
                whole = at(ast.BinOp(read, node.op, node.value), node)
                frame[node.target.id] = self.expr(whole, frame)
            case ast.If():
                test = self.expr(node.test, frame)
                self.block(node.body if self.decide(test, node.test) else node.orelse, frame)
            case ast.For():
                self.loop(node, frame)
            case ast.Return():
                raise _Return(None if node.value is None else self.expr(node.value, frame))
            case ast.Raise():
                raise _Refused(node)
            case ast.Assert():
                if not self.decide(self.expr(node.test, frame), node.test):
                    raise _Refused(node)
            case ast.Break():
                raise _Break
            case ast.Continue():
                raise _Continue
            case ast.Pass() | ast.Import() | ast.ImportFrom() | ast.Expr(value=ast.Constant()):
                pass
            case ast.Expr(value=ast.Call()):
                self.expr(node.value, frame)
            case _:
                raise UnknownConstructError(f"{name_of(node)} is outside the known set", node)

    def loop(self, node: ast.For, frame: dict[str, Value]) -> None:
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

    def store(self, target: ast.expr, value: Value, frame: dict[str, Value]) -> None:
        match target, value:
            case ast.Name(), _:
                frame[target.id] = value
            case ast.Tuple(), ast.Tuple() if len(target.elts) == len(value.elts):
                for each, part in zip(target.elts, value.elts, strict=True):
                    self.store(each, part, frame)
            case ast.Subscript(value=ast.Name(), slice=ast.Constant()), _:
                group = frame.get(target.value.id)
                if not isinstance(group, ast.Dict):
                    raise UnknownConstructError(f"{name_of(target)} cannot be set", target)
                keys = [each.value for each in group.keys if isinstance(each, ast.Constant)]
                pairs = dict(zip(keys, group.values, strict=True)) | {target.slice.value: value}
                names: list[ast.expr | None] = [at(ast.Constant(key), target) for key in pairs]
                frame[target.value.id] = at(ast.Dict(names, list(pairs.values())), target)
            case _:
                raise UnknownConstructError(f"{name_of(target)} is outside the known set", target)

    def expr(self, node: ast.expr, frame: dict[str, Value]) -> Value:
        """Return an expression over inputs; a constant where no input is left in it."""
        match node:
            case ast.Constant():
                return node
            case ast.Name():
                return self.name(node, frame)
            case ast.Call():
                return self.call(node, frame)
            case ast.BoolOp():
                return self.boolean(node, frame)
            case ast.IfExp():
                return self.choice(node, frame)
            case ast.Subscript():
                return self.item(node, frame)
            case ast.List():
                return [self.expr(each, frame) for each in node.elts]
            case ast.Dict():
                if any(key is None for key in node.keys):
                    raise UnknownConstructError(f"{name_of(node)} is outside the known set", node)
                values = [self.expr(each, frame) for each in node.values]
                return at(ast.Dict(node.keys, values), node)
            case ast.Tuple() | ast.Set():
                return at(ast.Tuple([self.expr(e, frame) for e in node.elts], ast.Load()), node)
            case ast.JoinedStr():
                return self.joined(node, frame)
            case ast.UnaryOp():
                operand = self.expr(node.operand, frame)
                if isinstance(operand, list):
                    return at(ast.Constant(not operand), node)
                return fold(at(ast.UnaryOp(node.op, operand), node))
            case ast.BinOp():
                sides = self.expr(node.left, frame), self.expr(node.right, frame)
                return fold(at(ast.BinOp(sides[0], node.op, sides[1]), node))
            case ast.Compare():
                others = [self.group(self.expr(each, frame), node) for each in node.comparators]
                group = others[-1]
                if isinstance(node.ops[-1], ast.In | ast.NotIn) and isinstance(group, ast.List):
                    others[-1] = at(ast.Tuple(group.elts, ast.Load()), node)
                return fold(at(ast.Compare(self.expr(node.left, frame), node.ops, others), node))
        raise UnknownConstructError(f"{name_of(node)} is outside the known set", node)

    def joined(self, node: ast.JoinedStr, frame: dict[str, Value]) -> ast.expr:
        """Return a formatted text, its choices taken: each is a way of its own."""
        parts: list[ast.expr] = []
        for each in node.values:
            if isinstance(each, ast.FormattedValue):
                if each.conversion != -1 or each.format_spec is not None:
                    raise UnknownConstructError(f"{name_of(node)} is outside the known set", node)
                each = self.group(self.settled(self.expr(each.value, frame)), node)  # noqa: PLW2901
            inner = isinstance(each, ast.Call) and ast.unparse(each.func) == "join"
            parts += each.args if inner else [each]  # type: ignore[attr-defined]
        kept = [each for each in parts if not (isinstance(each, ast.Constant) and each.value == "")]
        return fold(at(ast.Call(at(ast.Name("join", ast.Load()), node), kept, []), node))

    def group(self, value: Value, node: ast.expr) -> ast.expr:
        return at(ast.List([*value], ast.Load()), node) if isinstance(value, list) else value

    def name(self, node: ast.Name, frame: dict[str, Value]) -> Value:
        if node.id in frame:
            return frame[node.id]
        if node.id in self.program.constants:
            return self.expr(self.program.constants[node.id], {})
        if node.id not in self.inputs:
            raise UnknownConstructError(f"the name {node.id!r} is unknown", node)
        return node

    def boolean(self, node: ast.BoolOp, frame: dict[str, Value]) -> ast.expr:
        stop = isinstance(node.op, ast.Or)
        kept: list[ast.expr] = []
        for each in node.values:
            value = self.expr(each, frame)
            if isinstance(value, list):
                value = at(ast.Constant(bool(value)), each)
            if not isinstance(value, ast.Constant):
                kept.append(value)
            elif bool(value.value) is stop:
                kept.append(value)
                break
        if not kept:
            return at(ast.Constant(not stop), node)
        return kept[0] if len(kept) == 1 else at(ast.BoolOp(node.op, kept), node)

    def choice(self, node: ast.IfExp, frame: dict[str, Value]) -> Value:
        test = self.expr(node.test, frame)
        decided = self.truth(test)
        if decided is not None:
            return self.expr(node.body if decided else node.orelse, frame)
        sides = self.expr(node.body, frame), self.expr(node.orelse, frame)
        if any(isinstance(side, list) for side in sides):
            return sides[0] if self.decide(test, node.test) else sides[1]
        return at(ast.IfExp(test, *sides), node)

    def item(self, node: ast.Subscript, frame: dict[str, Value]) -> Value:
        group, index = self.expr(node.value, frame), self.expr(node.slice, frame)
        if isinstance(index, ast.Constant):
            if isinstance(group, ast.Tuple):
                group = group.elts
            if isinstance(group, list):
                return group[index.value]
            if isinstance(group, ast.Dict):
                for key, value in zip(group.keys, group.values, strict=True):
                    if isinstance(key, ast.Constant) and key.value == index.value:
                        return value
                raise UnknownConstructError(f"{name_of(node)} is not set", node)
        return at(ast.Subscript(self.group(group, node), index, ast.Load()), node)

    def call(self, node: ast.Call, frame: dict[str, Value]) -> Value:
        if node.keywords:
            raise UnknownConstructError(f"{name_of(node)} is outside the known set", node)
        if isinstance(node.func, ast.Attribute):
            return self.method(node, node.func, frame)
        if not isinstance(node.func, ast.Name):
            raise UnknownConstructError(f"{name_of(node)} is outside the known set", node)
        arguments = [self.expr(each, frame) for each in node.args]
        local = frame.get(node.func.id)
        function = local.function if isinstance(local, _Nested) else None
        function = function or self.program.functions.get(node.func.id)
        if function is not None and not loops(function):
            names = parameters(function)
            if len(arguments) > len(names):
                raise UnknownConstructError(f"{name_of(node)} has too many arguments", node)
            outer = local.frame if isinstance(local, _Nested) else {}
            return self.enter(function, outer | dict(zip(names, arguments, strict=False)))
        if function is not None and not isinstance(local, _Nested):
            self.called.add(node.func.id)
        elif node.func.id not in BUILTINS:
            raise UnknownConstructError(f"the function {node.func.id!r} is unknown", node)
        arguments = [self.group(each, node) for each in arguments]
        return fold(at(ast.Call(node.func, arguments, []), node))

    def method(self, node: ast.Call, func: ast.Attribute, frame: dict[str, Value]) -> Value:
        group = self.settled(self.expr(func.value, frame))
        arguments = [self.expr(each, frame) for each in node.args]
        if func.attr in STRING_METHODS and not isinstance(group, list):
            return fold(at(ast.Call(at(ast.Attribute(group, func.attr), node), arguments, []), node))
        if not isinstance(group, list) or func.attr not in LIST_METHODS:
            raise UnknownConstructError(f"{name_of(node)} is outside the known set", node)
        if func.attr == "append":
            group.append(*arguments)
            return None
        texts = [ast.unparse(each) for each in group]
        if func.attr in ("index", "remove"):
            place = texts.index(ast.unparse(arguments[0]))
            return at(ast.Constant(place), node) if func.attr == "index" else group.pop(place)
        place = arguments[0].value if arguments else -1
        return group.pop(place)


@dataclass
class _Nested:
    function: Function
    frame: dict[str, Value]


def fold(node: ast.expr) -> ast.expr:
    """Return the constant that an expression without inputs is; else the expression."""
    called = [each for each in ast.walk(node) if isinstance(each, ast.Call)]
    plain = all(
        isinstance(c.func, ast.Attribute)
        or (isinstance(c.func, ast.Name) and c.func.id in BUILTINS)
        for c in called
    )
    if variables(node) or not plain or any(isinstance(e, ast.List) for e in ast.walk(node)):
        return node
    value = evaluate(node, {})
    if isinstance(value, int | float | str | None):
        return at(ast.Constant(value), node)
    return node
