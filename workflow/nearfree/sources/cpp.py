"""Translate a C++ function into normal form: Python syntax trees with the places of the source.

A closed set of constructs is translated. What lies outside of it becomes a call of `opaque`,
which has no value: it does no harm where a rule does not depend on it, and is an error that names
it where a rule does. Nothing is compiled.
"""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tree_sitter import Node

from nearfree.sources.cpp_source import (
    CppFiles,
    Found,
    Macro,
    children,
    function_name,
    parameter_names,
    template_parameters,
    words,
)
from nearfree.sources.cpp_types import CASTS, cast, floating, number
from nearfree.sources.expressions import parse
from nearfree.sources.leaves import placed
from nearfree.sources.program import Function, Text

COMPARISONS: dict[str, type[ast.cmpop]] = {
    "<": ast.Lt,
    "<=": ast.LtE,
    ">": ast.Gt,
    ">=": ast.GtE,
    "==": ast.Eq,
    "!=": ast.NotEq,
}
ARITHMETIC: dict[str, type[ast.operator]] = {
    "+": ast.Add,
    "-": ast.Sub,
    "*": ast.Mult,
    "%": ast.Mod,
    "<<": ast.LShift,
    ">>": ast.RShift,
    "|": ast.BitOr,
    "&": ast.BitAnd,
}
RENAMED = {"std::min": "min", "std::max": "max", "std::ceil": "ceil", "ceilf": "ceil"}
TUPLES = {"std::make_pair", "std::make_tuple", "std::tuple", "std::pair"}
CHECKS = {"TORCH_CHECK", "FLASHINFER_CHECK", "CHECK"}
SILENT = {"reserve", "printf", "C10_CUDA_CHECK"}
CEILINGS = {"cute::ceil_div", "cutlass::ceil_div"}
POINTERS = ("static_cast<", "reinterpret_cast<")
ENDS = {"push_back": "append", "emplace_back": "append"}


@dataclass(frozen=True)
class Meaning:
    """What calls mean to a rule, beyond the language.

    Attributes
    ----------
    sinks
        Calls that are an answer: of `f<A<x, y>>()` with places (0, 1) the answer is y.
    answers
        Calls that are an answer: a tuple of the arguments at these places and of these
        expressions over names that are known there. A function with such a call answers nothing
        where it returns without one.
    records
        Names of structures that are handed on by reference; see `cpp_records`.
    tails
        Calls whose answer is the function's own.
    harmless
        Calls that change none of their arguments that a rule depends on.
    """

    sinks: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    answers: Mapping[str, tuple[int | str, ...]] = field(default_factory=dict)
    tails: frozenset[str] = frozenset()
    records: frozenset[str] = frozenset()
    harmless: frozenset[str] = frozenset()


def translate(files: CppFiles, found: Found, meaning: Meaning | None = None) -> Function:
    """Return a C++ function in normal form; template parameters come first."""
    return _Translator(files, found.text, meaning or Meaning()).function(found.node)


class _Translator:
    def __init__(self, files: CppFiles, text: Text, meaning: Meaning) -> None:
        self.files = files
        self.text = text
        self.meaning = meaning
        self.kinds: dict[str, str] = {}
        self.bound: dict[str, ast.expr] = {}
        self.inlined: list[Node] = []
        self.place: Node | None = None
        self.answered: list[ast.stmt] = []

    # places

    def put(self, new: ast.AST, old: Node) -> ast.AST:
        where = self.place or old
        new.lineno = where.start_point[0] + 1  # type: ignore[attr-defined]
        new.end_lineno = where.end_point[0] + 1  # type: ignore[attr-defined]
        new.col_offset = where.start_point[1]  # type: ignore[attr-defined]
        new.end_col_offset = where.end_point[1]  # type: ignore[attr-defined]
        new.origin = self.text  # type: ignore[attr-defined]
        return new

    def e(self, new: ast.expr, old: Node) -> ast.expr:
        self.put(new, old)
        return new

    def named(self, name: str, old: Node) -> ast.expr:
        return self.e(ast.Name(name, ast.Load()), old)

    def opaque(self, node: Node, *names: str) -> ast.expr:
        shown: list[ast.expr] = [self.e(ast.Constant(words(node)[:80]), node)]
        shown += [self.named(name, node) for name in names]
        return self.e(ast.Call(self.named("opaque", node), shown, []), node)

    # functions

    def function(self, node: Node) -> Function:
        names, own = template_parameters(node), parameter_names(node)
        for name, _, kind in own:
            self.kinds[name] = kind
        values = [self.expr(default) for _, default, _ in own if default is not None]
        body = node.child_by_field_name("body")
        assert body is not None
        function = self.define(function_name(node), [*names, *(n for n, _, _ in own)], body, values)
        if self.answered:
            for each in _own_returns(function.body):
                if each not in self.answered:
                    each.value = None
        return function

    def define(
        self, name: str, names: list[str], body: Node, values: list[ast.expr] | None = None
    ) -> Function:
        arguments = ast.arguments(
            posonlyargs=[],
            args=[self.argument(each, body) for each in names],
            kwonlyargs=[],
            kw_defaults=[],
            defaults=values or [],
        )
        statements = self.block(body) or [self.s(ast.Pass(), body)]
        function = ast.FunctionDef(name, arguments, statements, [], None)
        self.put(function, body)
        return function

    def argument(self, name: str, old: Node) -> ast.arg:
        argument = ast.arg(name)
        self.put(argument, old)
        return argument

    # statements

    def s(self, new: ast.stmt, old: Node) -> ast.stmt:
        self.put(new, old)
        return new

    def block(self, node: Node) -> list[ast.stmt]:
        if node.type != "compound_statement":
            return self.statement(node)
        found: list[ast.stmt] = []
        for child in children(node):
            found += self.statement(child)
            if found and isinstance(found[-1], ast.Return | ast.Raise):
                break
        return found

    def statement(self, node: Node) -> list[ast.stmt]:
        method = getattr(self, f"s_{node.type}", None)
        if method is None:
            names = {words(each) for each in _identifiers(node)}
            return [self.s(ast.Expr(self.opaque(node, *sorted(names))), node)]
        result: list[ast.stmt] = method(node)
        return result

    def s_compound_statement(self, node: Node) -> list[ast.stmt]:
        return self.block(node)

    def nothing(self, node: Node) -> list[ast.stmt]:
        return []

    s_comment = s_alias_declaration = s_static_assert_declaration = nothing
    s_type_definition = s_using_declaration = s_empty_statement = nothing

    def s_return_statement(self, node: Node) -> list[ast.stmt]:
        inner = next(iter(children(node)), None)
        if inner is not None and self.is_inlined(inner):
            return self.inline(inner)
        value = None if inner is None else self.expr(inner)
        return [self.s(ast.Return(value), node)]

    def s_throw_statement(self, node: Node) -> list[ast.stmt]:
        return [self.s(ast.Raise(None, None), node)]

    def s_break_statement(self, node: Node) -> list[ast.stmt]:
        return [self.s(ast.Break(), node)]

    def s_continue_statement(self, node: Node) -> list[ast.stmt]:
        return [self.s(ast.Continue(), node)]

    def s_if_statement(self, node: Node) -> list[ast.stmt]:
        clause = node.child_by_field_name("condition")
        then, other = (node.child_by_field_name(n) for n in ("consequence", "alternative"))
        assert clause is not None
        assert then is not None
        value = clause.child_by_field_name("value")
        test = self.expr(value) if value is not None else self.opaque(clause)
        orelse = [] if other is None else [s for c in children(other) for s in self.block(c)]
        body = self.block(then) or [self.s(ast.Pass(), then)]
        return [self.s(ast.If(test, body, orelse), node)]

    def s_for_statement(self, node: Node) -> list[ast.stmt]:
        """Translate counting loops: `for (int i = a; i < b; i++)`."""
        start, test, step = (
            node.child_by_field_name(n) for n in ("initializer", "condition", "update")
        )
        body = node.child_by_field_name("body")
        first = start.child_by_field_name("declarator") if start is not None else None
        name = words(first.child_by_field_name("declarator")) if first is not None else ""
        low = first.child_by_field_name("value") if first is not None else None
        high = test.child_by_field_name("right") if test is not None else None
        sign = words(test.child_by_field_name("operator")) if test is not None else ""
        counts = words(step) in {f"{name}++", f"++{name}"}
        if low is None or high is None or body is None or not counts or sign not in {"<", "<="}:
            names = {words(each) for each in _identifiers(node)}
            return [self.s(ast.Expr(self.opaque(node, *sorted(names))), node)]
        end = self.expr(high)
        if sign == "<=":
            one = self.e(ast.Constant(1), high)
            end = self.e(ast.BinOp(end, ast.Add(), one), high)
        ranged = self.e(ast.Call(self.named("range", node), [self.expr(low), end], []), node)
        target = ast.Name(name, ast.Store())
        self.put(target, node)
        block = self.block(body) or [self.s(ast.Pass(), body)]
        return [self.s(ast.For(target, ranged, block, []), node)]

    def s_declaration(self, node: Node) -> list[ast.stmt]:
        kind = words(node.child_by_field_name("type"))
        found: list[ast.stmt] = []
        for each in node.children_by_field_name("declarator"):
            if each.type == "init_declarator":
                found += self.initialised(node, each, kind)
            elif kind.startswith("std::vector"):
                found.append(self.vector(node, each))
            else:
                self.kinds[words(each)] = kind
        return found

    def vector(self, node: Node, each: Node) -> ast.stmt:
        """Translate a vector's declaration; one with a size is not empty, and has no value yet."""
        if each.type == "identifier":
            return self.assign(words(each), self.e(ast.List([], ast.Load()), node), node)
        name = words(each.child_by_field_name("declarator") or each)
        return self.assign(name, self.opaque(each), node)

    def initialised(self, node: Node, each: Node, kind: str) -> list[ast.stmt]:
        left, value = each.child_by_field_name("declarator"), each.child_by_field_name("value")
        assert left is not None
        if value is None:
            return []
        if left.type == "structured_binding_declarator":
            names = [words(part) for part in left.named_children]
            targets: list[ast.expr] = []
            for name in names:
                target = ast.Name(name, ast.Store())
                self.put(target, node)
                targets.append(target)
            pair = self.e(ast.Tuple(targets, ast.Store()), node)
            return [self.s(ast.Assign([pair], self.expr(value)), node)]
        name = words(left)
        called = _last(value.child_by_field_name("function") or value)
        if value.type == "call_expression" and called in self.meaning.answers:
            return [self.answer(value, called)]
        if value.type == "lambda_expression":
            return [self.lambda_function(name, value)]
        fact = self.attribute(value) if value.type == "call_expression" else None
        if fact is not None:
            return [self.assign(*fact, node)]
        if value.type == "argument_list":
            return [self.assign(name, self.opaque(node), node)]
        result = self.expr(value)
        self.kinds[name] = floating(value, self.kinds) if kind == "auto" else kind
        if kind in {"float", "double"}:
            result = self.e(cast(kind, result), value)
        return [self.assign(name, result, node)]

    def lambda_function(self, name: str, value: Node) -> ast.stmt:
        body = value.child_by_field_name("body")
        assert body is not None
        return self.define(name, [n for n, _, _ in parameter_names(value)], body)

    def assign(self, name: str, value: ast.expr, old: Node) -> ast.stmt:
        target = ast.Name(self.renamed(name), ast.Store())
        self.put(target, old)
        return self.s(ast.Assign([target], value), old)

    def renamed(self, name: str) -> str:
        bound = self.bound.get(name)
        return bound.id if isinstance(bound, ast.Name) else name

    def s_expression_statement(self, node: Node) -> list[ast.stmt]:
        inner = next(iter(children(node)), None)
        if inner is None:
            return []
        if inner.type == "assignment_expression":
            return self.assignment(node, inner)
        if inner.type == "call_expression":
            return self.called(node, inner)
        names = {words(each) for each in _identifiers(_stream(inner))}
        return [self.s(ast.Expr(self.opaque(inner, *sorted(names))), node)]

    def assignment(self, node: Node, inner: Node) -> list[ast.stmt]:
        left, right = inner.child_by_field_name("left"), inner.child_by_field_name("right")
        assert left is not None
        assert right is not None
        sign = words(inner.child_by_field_name("operator"))
        name = _last(right.child_by_field_name("function") or right)
        if right.type == "call_expression" and name in self.meaning.answers:
            return [self.answer(right, name)]
        if left.type == "call_expression" and self.hands_on(right):
            changed = sorted({words(part) for each in _args(left) for part in _identifiers(each)})
            tied = [self.s(ast.Expr(self.opaque(left, *changed)), node)] if changed else []
            return [*tied, self.s(ast.Expr(self.expr(right)), node)]
        target = self.expr(left)
        if isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name) and sign == "=":
            target.ctx = ast.Store()
            return [self.s(ast.Assign([target], self.expr(right)), node)]
        if not isinstance(target, ast.Name):
            changed = sorted({words(each) for each in _changed(left)})
            return [self.s(ast.Expr(self.opaque(inner, *changed)), node)]
        fact = self.attribute(right) if right.type == "call_expression" else None
        if fact is not None:
            return [self.assign(*fact, node)]
        value = self.expr(right)
        if sign != "=":
            if sign[:-1] not in ARITHMETIC:
                return [self.s(ast.Expr(self.opaque(inner, target.id)), node)]
            value = self.e(ast.BinOp(target, ARITHMETIC[sign[:-1]](), value), inner)
        if self.kinds.get(target.id) in {"float", "double"}:
            value = self.e(cast(self.kinds[target.id], value), right)
        return [self.assign(target.id, value, node)]

    def called(self, node: Node, call: Node) -> list[ast.stmt]:
        """Translate a call that stands alone: a switch macro, a check, an answer, or a change."""
        function = call.child_by_field_name("function")
        assert function is not None
        name = _last(function)
        if self.is_inlined(call):
            return self.inline(call)
        if name in self.files.macros and any(a.type == "lambda_expression" for a in _args(call)):
            return self.switched(call, self.files.macros[name])
        if name in CHECKS:
            return [self.s(ast.Assert(self.expr(_args(call)[0]), None), node)]
        if name in self.meaning.sinks:
            return [self.s(ast.Return(self.sunk(function, self.meaning.sinks[name])), node)]
        if name in self.meaning.answers:
            return [self.answer(call, name)]
        if name in self.meaning.tails:
            return [self.s(ast.Return(self.expr(call)), node)]
        if words(function) == "std::swap":
            return [self.swapped(call)]
        attribute = self.attribute(call)
        if attribute is not None:
            target, value = attribute
            return [self.assign(target, value, node)]
        if name in SILENT or name in self.meaning.harmless:
            return []
        if self.hands_on(call):
            return [self.s(ast.Expr(self.expr(call)), node)]
        if name == "memset" and words(_args(call)[0]).lstrip("&") in self.meaning.records:
            empty = self.e(ast.Tuple([], ast.Load()), call)
            return [self.assign(words(_args(call)[0]).lstrip("&"), empty, node)]
        if function.type == "field_expression" and name in ENDS:
            group = self.expr(function.child_by_field_name("argument") or function)
            method = self.e(ast.Attribute(group, ENDS[name], ast.Load()), node)
            given = [self.expr(each) for each in _args(call)]
            return [self.s(ast.Expr(self.e(ast.Call(method, given, []), node)), node)]
        names = {words(each) for each in _identifiers(call)}
        return [self.s(ast.Expr(self.opaque(call, *sorted(names))), node)]

    def answer(self, call: Node, name: str) -> ast.stmt:
        values = [self.passed(call, name, place) for place in self.meaning.answers[name]]
        answer = self.s(ast.Return(self.e(ast.Tuple(values, ast.Load()), call)), call)
        self.answered.append(answer)
        return answer

    def swapped(self, call: Node) -> ast.stmt:
        sides = [self.expr(each) for each in _args(call)]
        if not all(isinstance(each, ast.Name) for each in sides):
            return self.s(ast.Expr(self.opaque(call, *map(words, _identifiers(call)))), call)
        targets: list[ast.expr] = []
        for each in sides:
            target = ast.Name(ast.unparse(each), ast.Store())
            self.put(target, call)
            targets.append(target)
        pair = self.e(ast.Tuple(targets, ast.Store()), call)
        return self.s(
            ast.Assign([pair], self.e(ast.Tuple([*reversed(sides)], ast.Load()), call)), call
        )

    def passed(self, call: Node, name: str, place: int | str) -> ast.expr:
        """Return what a call passes on: an argument, its default, or an expression there."""
        given = _args(call)
        if isinstance(place, str):
            return placed(parse(place), self.e(ast.Constant(place), call))
        if place < len(given):
            return self.expr(given[place])
        found = self.files.locate(name)
        default = parameter_names(found.node)[place][1]
        if default is None:
            return self.opaque(call)
        return _Translator(self.files, found.text, self.meaning).expr(default)

    def hands_on(self, call: Node) -> bool:
        """Return whether a known function is given a structure that it may change."""
        if call.type != "call_expression":
            return False
        name = _last(call.child_by_field_name("function") or call)
        given = {words(each) for each in _args(call)}
        return bool(given & self.meaning.records) and self.files.defines(name)

    def attribute(self, call: Node) -> tuple[str, ast.expr] | None:
        """Return what `cudaDeviceGetAttribute(&x, which, device)` sets, and to which fact."""
        given = _args(call)
        if _last(call.child_by_field_name("function") or call) != "cudaDeviceGetAttribute":
            return None
        which = self.e(ast.Constant(words(given[1])), call)
        fact = self.e(ast.Call(self.named("device_attribute", call), [which], []), call)
        return words(given[0]).lstrip("&"), fact

    def sunk(self, function: Node, places: tuple[int, ...]) -> ast.expr:
        node = function
        for place in places:
            arguments = [each for each in walk_types(node) if each.type == "template_argument_list"]
            if not arguments:
                return self.opaque(function)
            node = list(children(arguments[0]))[place]
        return self.expr(_plain(node))

    def switched(self, call: Node, macro: Macro) -> list[ast.stmt]:
        """Translate a switch macro: its own body, around the function that it was given."""
        bound, place = dict(self.bound), self.place
        given = _args(call)
        values = {
            name: self.named(words(each), each) if each.type == "identifier" else self.expr(each)
            for name, each in zip(macro.parameters, given, strict=False)
            if name != "..." and each.type != "lambda_expression"
        }
        function = next(each for each in given if each.type == "lambda_expression")
        body = next(each for each in _all(macro.body) if each.type == "lambda_expression")
        block = body.child_by_field_name("body")
        assert block is not None
        values = {
            n: self.bound.get(v.id, v) if isinstance(v, ast.Name) else v for n, v in values.items()
        }
        self.bound = self.bound | values
        self.inlined.append(function)
        self.place = given[0]
        try:
            return self.block(block)
        finally:
            self.bound, self.place = bound, place
            self.inlined.pop()

    def is_inlined(self, call: Node) -> bool:
        function = call.child_by_field_name("function") if call.type == "call_expression" else None
        return bool(self.inlined) and words(function) == "__VA_ARGS__"

    def inline(self, call: Node) -> list[ast.stmt]:
        del call
        function, place = self.inlined.pop(), self.place
        body = function.child_by_field_name("body")
        assert body is not None
        self.place = None
        try:
            return self.block(body)
        finally:
            self.place = place
            self.inlined.append(function)

    # expressions

    def expr(self, node: Node) -> ast.expr:
        method = getattr(self, f"e_{node.type}", None)
        result: ast.expr = self.opaque(node) if method is None else method(node)
        return result

    def e_number_literal(self, node: Node) -> ast.expr:
        return self.e(ast.Constant(number(words(node))), node)

    def e_true(self, node: Node) -> ast.expr:
        return self.e(ast.Constant(node.type == "true"), node)

    e_false = e_true

    def e_null(self, node: Node) -> ast.expr:
        return self.e(ast.Constant(value=None), node)

    def e_string_literal(self, node: Node) -> ast.expr:
        return self.e(ast.Constant(words(node).strip('"')), node)

    def e_identifier(self, node: Node) -> ast.expr:
        name = words(node)
        if name in self.bound:
            return self.bound[name]
        return self.named(name, node)

    def e_type_identifier(self, node: Node) -> ast.expr:
        return self.e_identifier(node)

    def e_field_expression(self, node: Node) -> ast.expr:
        group, part = node.child_by_field_name("argument"), words(node.child_by_field_name("field"))
        assert group is not None
        if part in {"first", "second"}:
            index = self.e(ast.Constant(int(part == "second")), node)
            return self.e(ast.Subscript(self.expr(group), index, ast.Load()), node)
        if group.type == "identifier":
            return self.named(f"{words(group)}_{part}", node)
        return self.opaque(node)

    def e_subscript_expression(self, node: Node) -> ast.expr:
        group, index = node.child_by_field_name("argument"), node.child_by_field_name("indices")
        assert group is not None
        assert index is not None
        inner = list(children(index))
        return self.e(ast.Subscript(self.expr(group), self.expr(inner[0]), ast.Load()), node)

    def e_parenthesized_expression(self, node: Node) -> ast.expr:
        return self.expr(next(children(node)))

    def e_unary_expression(self, node: Node) -> ast.expr:
        sign, inner = (
            words(node.child_by_field_name("operator")),
            node.child_by_field_name("argument"),
        )
        assert inner is not None
        if sign == "!":
            return self.e(ast.UnaryOp(ast.Not(), self.expr(inner)), node)
        if sign == "-":
            return self.e(ast.UnaryOp(ast.USub(), self.expr(inner)), node)
        return self.expr(inner) if sign == "+" else self.opaque(node)

    def e_conditional_expression(self, node: Node) -> ast.expr:
        parts = [node.child_by_field_name(n) for n in ("condition", "consequence", "alternative")]
        test, then, other = [self.expr(each) for each in parts if each is not None]
        return self.e(ast.IfExp(test, then, other), node)

    def e_binary_expression(self, node: Node) -> ast.expr:
        left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
        assert left is not None
        assert right is not None
        sign = words(node.child_by_field_name("operator"))
        sides = [self.expr(left), self.expr(right)]
        if sign in {"&&", "||", "and", "or"}:
            op = ast.And() if sign in {"&&", "and"} else ast.Or()
            return self.e(ast.BoolOp(op, sides), node)
        if sign in COMPARISONS:
            return self.e(ast.Compare(sides[0], [COMPARISONS[sign]()], sides[1:]), node)
        if sign == "/":
            result = self.e(ast.Call(self.named("quotient", node), sides, []), node)
        elif sign in ARITHMETIC:
            result = self.e(ast.BinOp(sides[0], ARITHMETIC[sign](), sides[1]), node)
        else:
            return self.opaque(node)
        if floating(node, self.kinds) == "float":
            return self.e(cast("float", result), node)
        return result

    def e_cast_expression(self, node: Node) -> ast.expr:
        kind, value = words(node.child_by_field_name("type")), node.child_by_field_name("value")
        assert value is not None
        if kind not in CASTS:
            return self.opaque(node)
        return self.e(cast(kind, self.expr(value)), node) if kind in {"float"} else self.expr(value)

    def e_sizeof_expression(self, node: Node) -> ast.expr:
        what = self.e(ast.Constant(" ".join(map(words, children(node)))), node)
        return self.e(ast.Call(self.named("sizeof", node), [what], []), node)

    def e_initializer_list(self, node: Node) -> ast.expr:
        return self.e(ast.Tuple([self.expr(each) for each in children(node)], ast.Load()), node)

    def e_call_expression(self, node: Node) -> ast.expr:
        function = node.child_by_field_name("function")
        assert function is not None
        name, given = words(function), _args(node)
        if name in CASTS:
            value = self.expr(given[0])
            return self.e(cast(name, value), node) if name == "float" else value
        if name in CEILINGS and len(given) == 2:
            above, below = map(self.expr, given)
            one = self.e(ast.Constant(1), node)
            more = self.e(ast.BinOp(above, ast.Add(), below), node)
            less = self.e(ast.BinOp(more, ast.Sub(), one), node)
            return self.e(ast.Call(self.named("quotient", node), [less, below], []), node)
        if name in TUPLES:
            return self.e(ast.Tuple([self.expr(each) for each in given], ast.Load()), node)
        if name.startswith(POINTERS) and name.endswith("*>"):
            return self.expr(given[0])
        if name.startswith("static_cast<"):
            kind = name[len("static_cast<") : -1].strip()
            value = self.expr(given[0])
            if kind not in CASTS:
                return self.opaque(node)
            return self.e(cast(kind, value), node) if kind == "float" else value
        if name.startswith("std::get<"):
            index = self.e(ast.Constant(int(name[len("std::get<") : -1])), node)
            return self.e(ast.Subscript(self.expr(given[0]), index, ast.Load()), node)
        if function.type == "field_expression":
            return self.member_call(node, function)
        values = [self.expr(each) for each in given]
        if name in RENAMED and len(values) == 1 and isinstance(values[0], ast.Tuple):
            values = values[0].elts
        types = [self.template_argument(each) for each in _template(function)]
        called = RENAMED.get(name, _last(function))
        return self.e(ast.Call(self.named(called, node), [*types, *values], []), node)

    def template_argument(self, node: Node) -> ast.expr:
        """Return a template's argument; a type with a namespace stands for itself, as a text."""
        plain = _plain(node)
        if node.type == "type_descriptor" and plain.type == "qualified_identifier":
            return self.e(ast.Constant(words(plain)), node)
        return self.expr(plain)

    def member_call(self, node: Node, function: Node) -> ast.expr:
        """Keep `x.has_value()` as it is: a leaf may stand for it."""
        group = function.child_by_field_name("argument")
        part = words(function.child_by_field_name("field"))
        assert group is not None
        if group.type != "identifier":
            return self.opaque(node)
        method = self.e(ast.Attribute(self.named(words(group), group), part, ast.Load()), node)
        return self.e(ast.Call(method, [self.expr(each) for each in _args(node)], []), node)


def _args(call: Node) -> list[Node]:
    arguments = call.child_by_field_name("arguments")
    return [] if arguments is None else list(children(arguments))


def _template(function: Node) -> list[Node]:
    if function.type == "qualified_identifier":
        function = function.child_by_field_name("name") or function
    arguments = function.child_by_field_name("arguments")
    if function.type != "template_function" or arguments is None:
        return []
    return list(children(arguments))


def _last(function: Node) -> str:
    if function.type == "field_expression":
        return words(function.child_by_field_name("field"))
    if function.type == "template_function":
        function = function.child_by_field_name("name") or function
    return words(function).split("<")[0].rsplit("::", 1)[-1]


def _plain(node: Node) -> Node:
    while node.type in {"type_descriptor", "template_argument"} and node.named_children:
        node = next(children(node))
    return node


def walk_types(node: Node) -> list[Node]:
    """Return a node's parts, nearest first."""
    found, level = [], [node]
    while level:
        level = [child for each in level for child in children(each)]
        found += level
    return found


def _all(node: Node) -> list[Node]:
    return [node, *walk_types(node)]


def _identifiers(node: Node) -> list[Node]:
    return [each for each in _all(node) if each.type == "identifier"]


def _stream(node: Node) -> Node:
    """Return what a statement `stream << a << b` changes: the stream; else the node itself."""
    while node.type == "binary_expression" and words(node.child_by_field_name("operator")) == "<<":
        node = node.child_by_field_name("left") or node
    return node


def _changed(left: Node) -> list[Node]:
    """Return what an assignment to no plain name changes: `a` of `a[i]`, all of `tie(a, b)`."""
    if left.type == "call_expression":
        return [part for each in _args(left) for part in _identifiers(each)]
    while left.type != "identifier":
        inner = left.child_by_field_name("argument") or next(children(left), None)
        if inner is None:
            return []
        left = inner
    return [left]


def _own_returns(body: list[ast.stmt]) -> Iterator[ast.Return]:
    for statement in body:
        if isinstance(statement, ast.Return):
            yield statement
        elif not isinstance(statement, ast.FunctionDef):
            for part in ("body", "orelse"):
                yield from _own_returns(getattr(statement, part, []))
