"""C++ statements in normal form: declarations in their scopes, assignments, conditions, loops.

A statement that is not known becomes a call of `opaque` with all names in it, which is dropped
where a rule needs none of them. One that may leave the function is never dropped.
"""

import ast
from collections.abc import Iterator
from contextlib import contextmanager

from tree_sitter import Node

from nearfree.sources.cpp_expressions import ARITHMETIC, Expressions
from nearfree.sources.cpp_meaning import Meaning
from nearfree.sources.cpp_nodes import (
    arguments,
    assigned,
    called_name,
    changed_by,
    changed_parameters,
    declared,
    declared_names,
    everything,
    identifiers,
    is_constant,
    leaves,
    name_set,
    outside_lambdas,
    part,
    stream,
)
from nearfree.sources.cpp_source import CppFiles, children, parameter_names, words
from nearfree.sources.cpp_types import cast, kind_named
from nearfree.sources.program import Function, Text

NUMBERS = {"primitive_type", "sized_type_specifier"}


class Statements(Expressions):
    """Turns C++ statements into Python's."""

    def __init__(self, files: CppFiles, text: Text, meaning: Meaning) -> None:
        super().__init__(files, text, meaning)
        self.scopes: list[set[str]] = [set()]
        self.hidden = 0
        self.reassigned: set[str] = set()
        self.fields: set[str] = set()
        self.returns = ""
        self.answered: list[ast.stmt] = []
        self.lost: list[ast.stmt] = []

    def s(self, new: ast.stmt, old: Node) -> ast.stmt:
        """Return a new statement at the place of an old node."""
        self.put(new, old)
        return new

    def unknown(self, node: Node, *names: str) -> list[ast.stmt]:
        """Return what stands for a statement that is not known, and may change these names."""
        value = self.opaque(node, *self.with_fields({*names}))
        called = (called_name(e) for e in everything(node) if e.type == "call_expression")
        if not leaves(node) and not any(map(self.meaning.ends, called)):
            return [self.s(ast.Expr(value), node)]
        lost = self.s(ast.Return(value), node)
        self.lost.append(lost)
        return [lost]

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Let the names that are declared inside end there."""
        bound, names = self.bound, dict(self.names)
        self.bound = dict(bound)
        self.scopes.append(set())
        try:
            yield
        finally:
            inner = self.scopes.pop()
            self.bound = bound
            for name in inner:
                self.names.pop(name, None)
                if name in names:
                    self.names[name] = names[name]

    def declare(self, name: str, kind: str) -> None:
        """Declare a name here; one that hides another gets a name of its own."""
        final = self.renamed(name)
        if any(final in each for each in self.scopes[:-1]):
            self.hidden += 1
            new = ast.Name(f"{final}_inner{self.hidden}", ast.Load())
            self.bound[name] = self.bound[final] = new
            final = new.id
        self.scopes[-1] |= {final, name}
        self.names[name] = self.names[final] = kind

    def block(self, node: Node) -> list[ast.stmt]:
        """Return the statements of a block, up to the first that leaves it."""
        if node.type != "compound_statement":
            return [*self.touching(node), *self.statement(node)]
        found: list[ast.stmt] = []
        with self.scope():
            for child in children(node):
                found += self.touching(child)
                found += self.statement(child)
                if found and isinstance(found[-1], ast.Return | ast.Raise):
                    break
        return found

    def filled(self, node: Node) -> list[ast.stmt]:
        """Return the statements of a block, one at least."""
        return self.block(node) or [self.s(ast.Pass(), node)]

    def statement(self, node: Node) -> list[ast.stmt]:
        """Return what stands for a statement."""
        method = getattr(self, f"s_{node.type}", None)
        if method is None:
            return self.unknown(node, *name_set(node))
        result: list[ast.stmt] = method(node)
        return result

    def touching(self, node: Node) -> list[ast.stmt]:
        """Return what tells of names that a statement's expressions change on the way."""
        changed: set[str] = set()
        for each in self.evaluated(node):
            changed |= self.side_effects(each)
        value = self.opaque(node, *self.with_fields(changed))
        return [self.s(ast.Expr(value), node)] if changed else []

    def with_fields(self, names: set[str]) -> list[str]:
        """Return names with those of the fields of structures that they stand for."""
        return sorted(
            names | {each for each in self.fields if any(each.startswith(f"{n}_") for n in names)}
        )

    def evaluated(self, node: Node) -> Iterator[Node]:
        """Yield the expressions of a statement whose own effect is not what it is for."""
        inner = next(iter(children(node)), None)
        match node.type:
            case "expression_statement" if inner is not None:
                if inner.type == "assignment_expression":
                    if self.attribute(part(inner, "right")) is None:
                        yield part(inner, "right")
                elif inner.type == "call_expression" and self.attribute(inner) is None:
                    yield from arguments(inner)
            case "declaration":
                for each in node.children_by_field_name("declarator"):
                    value = each.child_by_field_name("value")
                    if value is not None and self.attribute(value) is None:
                        yield value
            case "if_statement":
                yield part(node, "condition")

    def side_effects(self, node: Node) -> set[str]:
        """Return the names that an expression changes: `x++`, `&x`, or `f(x)` with `int& x`."""
        found: set[str] = set()
        for each in outside_lambdas(node):
            if each.type in {"assignment_expression", "update_expression", "pointer_expression"}:
                found |= assigned(each)
            elif each.type == "call_expression":
                callee = self.callee(part(each, "function"))
                flags = [] if callee is None else changed_parameters(callee.node)
                pairs = zip(flags, arguments(each), strict=False)
                found |= name_set(*(given for changes, given in pairs if changes))
        return found - self.meaning.records

    def attribute(self, call: Node) -> tuple[str, ast.expr] | None:
        """Return what `cudaDeviceGetAttribute(&x, which, device)` sets, and to which fact."""
        if call.type != "call_expression" or called_name(call) != "cudaDeviceGetAttribute":
            return None
        given = arguments(call)
        if len(given) != 3 or not words(given[0]).lstrip("&").isidentifier():
            return None
        which = self.e(ast.Constant(words(given[1])), call)
        return words(given[0]).lstrip("&"), self.call("device_attribute", [which], call)

    def s_compound_statement(self, node: Node) -> list[ast.stmt]:
        """Return the statements of a block inside a block."""
        return self.block(node)

    def nothing(self, node: Node) -> list[ast.stmt]:
        """Return nothing: a type carries no number."""
        del node
        return []

    s_comment = s_alias_declaration = s_static_assert_declaration = nothing
    s_type_definition = s_using_declaration = s_empty_statement = nothing

    def s_return_statement(self, node: Node) -> list[ast.stmt]:
        """Return the function's result in its type."""
        inner = next(iter(children(node)), None)
        if inner is None:
            return [self.s(ast.Return(None), node)]
        value = self.converted(self.returns, self.expr(inner), inner)
        return [self.s(ast.Return(value), node)]

    def s_throw_statement(self, node: Node) -> list[ast.stmt]:
        """Refuse."""
        return [self.s(ast.Raise(None, None), node)]

    def s_break_statement(self, node: Node) -> list[ast.stmt]:
        """Leave a loop."""
        return [self.s(ast.Break(), node)]

    def s_continue_statement(self, node: Node) -> list[ast.stmt]:
        """Go on with a loop."""
        return [self.s(ast.Continue(), node)]

    def s_if_statement(self, node: Node) -> list[ast.stmt]:
        """Return a condition; one that declares a name is not known."""
        clause, other = part(node, "condition"), node.child_by_field_name("alternative")
        value = clause.child_by_field_name("value")
        if value is None or clause.child_by_field_name("initializer") is not None:
            return self.unknown(node, *name_set(node))
        if value.type == "declaration":
            return self.unknown(node, *name_set(node))
        test, body = self.test(value), self.filled(part(node, "consequence"))
        orelse = [] if other is None else [s for c in children(other) for s in self.block(c)]
        return [self.s(ast.If(test, body, orelse), node)]

    def s_for_statement(self, node: Node) -> list[ast.stmt]:
        """Translate counting loops: `for (int i = a; i < b; i++)`, where nothing moves i or b."""
        counter = self.counter(node)
        if counter is None:
            return self.unknown(node, *name_set(node))
        name, low, high, sign = counter
        body = part(node, "body")
        end, first = self.expr(high), self.expr(low)
        if sign == "<=":
            one = self.e(ast.Constant(1), high)
            end = self.e(ast.BinOp(end, ast.Add(), one), high)
        ranged = self.call("range", [first, end], node)
        with self.scope():
            self.declare(name, "int")
            target = self.target(name, node)
            return [self.s(ast.For(target, ranged, self.filled(body), []), node)]

    def counter(self, node: Node) -> tuple[str, Node, Node, str] | None:
        """Return name, first value, limit and comparison of a counting loop; else None."""
        start, test, step = (
            node.child_by_field_name(each) for each in ("initializer", "condition", "update")
        )
        if start is None or test is None or start.type != "declaration":
            return None
        given = start.children_by_field_name("declarator")
        first = given[0] if len(given) == 1 else None
        low = first.child_by_field_name("value") if first is not None else None
        high, sign = test.child_by_field_name("right"), words(test.child_by_field_name("operator"))
        if first is None or low is None or high is None or sign not in {"<", "<="}:
            return None
        name = words(first.child_by_field_name("declarator"))
        counts = words(step) in {f"{name}++", f"++{name}"} and words(test.children[0]) == name
        body = part(node, "body")
        moved = assigned(body) | {"&"} if self.side_effects(test) else assigned(body)
        moves = moved & ({name, "&"} | name_set(high)) or leaves_sizes(high)
        return (name, low, high, sign) if counts and not moves else None

    def target(self, name: str, old: Node) -> ast.expr:
        """Return a name that is set."""
        return self.e(ast.Name(self.renamed(name), ast.Store()), old)

    def assign(self, name: str, value: ast.expr, old: Node) -> ast.stmt:
        """Return an assignment to a plain name."""
        return self.s(ast.Assign([self.target(name, old)], value), old)

    def s_declaration(self, node: Node) -> list[ast.stmt]:
        """Return what variables are set to where they are declared."""
        given = part(node, "type")
        kind = words(given)
        lasting = any(words(each) == "static" for each in node.children) and not is_constant(node)
        found: list[ast.stmt] = []
        for each in node.children_by_field_name("declarator"):
            value = each.child_by_field_name("value")
            odd = lasting or (given.type in NUMBERS and not kind_named(kind) and kind != "void")
            if odd:
                for name in declared_names(each):
                    self.declare(name, "")
                    found.append(self.assign(name, self.opaque(node), node))
            elif each.type == "init_declarator" and value is not None:
                found += self.initialised(node, each, kind)
            elif kind.startswith("std::vector"):
                found.append(self.vector(node, each))
            else:
                for name in declared_names(each):
                    self.declare(name, kind_named(kind))
        return found

    def vector(self, node: Node, each: Node) -> ast.stmt:
        """Translate a vector's declaration; one with a size is not empty, and has no value yet."""
        empty = each.type == "identifier"
        name = (declared_names(each) or [words(each)])[0]
        self.declare(name, "")
        value = self.e(ast.List([], ast.Load()), node) if empty else self.opaque(each)
        return self.assign(name, value, node)

    def initialised(self, node: Node, each: Node, kind: str) -> list[ast.stmt]:
        """Return what a variable is set to; one that refers to another must not change it."""
        left, value = part(each, "declarator"), part(each, "value")
        names = declared_names(left)
        if value.type == "call_expression" and called_name(value) in self.meaning.answers:
            return [self.answer(value, called_name(value))]
        fact = self.attribute(value)
        if fact is not None:
            asked = self.assign(*fact, node)
            for name in names:
                self.declare(name, "")
            return [asked]
        if left.type == "structured_binding_declarator":
            return self.unpacked(node, names, value)
        return self.variable(node, each, names[0], kind)

    def variable(self, node: Node, each: Node, name: str, kind: str) -> list[ast.stmt]:
        """Return what one variable is set to."""
        left, value = part(each, "declarator"), part(each, "value")
        if left.type == "reference_declarator" and (self.reassigned & ({name} | name_set(value))):
            self.declare(name, "")
            return self.unknown(node, name, *name_set(value))
        if value.type == "lambda_expression":
            return self.lambda_function(node, name, value)
        result = self.initial(node, left, value, kind)
        self.declare(name, self.kinds.of(value) if kind == "auto" else kind_named(kind))
        return [self.assign(name, result, node)]

    def initial(self, node: Node, left: Node, value: Node, kind: str) -> ast.expr:
        """Return the value that a variable starts with, in its type."""
        number = kind_named(kind)
        inner = list(children(value))
        if value.type == "initializer_list" and number and left.type == "identifier":
            if not inner:
                return self.e(cast(number, self.e(ast.Constant(0), node)), node)
            value = inner[0] if len(inner) == 1 else value
        if value.type == "argument_list":
            if len(inner) != 1 or not number:
                return self.opaque(node)
            value = inner[0]
        return self.converted(number, self.expr(value), value)

    def unpacked(self, node: Node, names: list[str], value: Node) -> list[ast.stmt]:
        """Return what several names are set to at once."""
        result = self.expr(value)
        for name in names:
            self.declare(name, "")
        targets = [self.target(name, node) for name in names]
        pair = self.e(ast.Tuple(targets, ast.Store()), node)
        return [self.s(ast.Assign([pair], result), node)]

    def lambda_function(self, node: Node, name: str, value: Node) -> list[ast.stmt]:
        """Return a function inside the function, if it changes nothing and sees what it saw."""
        body, own = part(value, "body"), parameter_names(value)
        inner = declared(body) | {each for each, _, _ in own}
        captures = value.child_by_field_name("captures")
        copies = {words(each) for each in children(captures)} if captures is not None else set()
        copied = copies - {"&"} and not words(captures).startswith("[&")
        changes = assigned(body) - inner
        seen = name_set(body) - inner
        if changes or (copied and seen & self.reassigned):
            self.declare(name, "")
            return self.unknown(node, name, *changes, *seen)
        self.declare(name, "")
        scopes, bound, returns = self.scopes, self.bound, self.returns
        self.scopes, self.returns = [set()], ""
        self.bound = {each: old for each, old in bound.items() if each not in inner}
        try:
            for each, _, kind in own:
                self.declare(each, kind_named(kind))
            return [self.define(self.renamed(name), [each for each, _, _ in own], body)]
        finally:
            self.scopes, self.bound, self.returns = scopes, bound, returns

    def define(
        self, name: str, names: list[str], body: Node, values: list[ast.expr] | None = None
    ) -> Function:
        """Return a function of these parameters, the last ones with these defaults."""
        given = [ast.arg(each) for each in names]
        for each in given:
            self.put(each, body)
        spec = ast.arguments([], given, None, [], [], None, [*(values or [])])
        function = ast.FunctionDef(name, spec, self.filled(body), [], None)
        self.put(function, body)
        return function

    def s_expression_statement(self, node: Node) -> list[ast.stmt]:
        """Return an assignment or a call; of all else the names are not known any more."""
        inner = next(iter(children(node)), None)
        if inner is None:
            return []
        if inner.type == "assignment_expression":
            return self.assignment(node, inner)
        if inner.type == "call_expression":
            return self.called(node, inner)
        changed = name_set(stream(inner)) | self.side_effects(inner)
        return self.unknown(inner, *changed)

    def assignment(self, node: Node, inner: Node) -> list[ast.stmt]:
        """Return an assignment to a name, a field or an item."""
        left, right = part(inner, "left"), part(inner, "right")
        sign = words(part(inner, "operator"))
        name = called_name(right)
        if right.type == "call_expression" and name in self.meaning.answers:
            return [self.answer(right, name)]
        if left.type == "call_expression" and self.hands_on(right):
            tied = self.unknown(left, *changed_by(left)) if changed_by(left) else []
            return [*tied, self.s(ast.Expr(self.expr(right)), node)]
        target = self.expr(left)
        if isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name) and sign == "=":
            target.ctx = ast.Store()
            return [self.s(ast.Assign([target], self.expr(right)), node)]
        if not isinstance(target, ast.Name):
            return self.unknown(inner, *changed_by(left))
        fact = self.attribute(right)
        if fact is not None:
            known = self.s(
                ast.Assign([self.e(ast.Name(target.id, ast.Store()), node)], self.opaque(right)),
                node,
            )
            return [self.assign(*fact, node), known]
        return self.set_name(node, inner, target.id)

    def set_name(self, node: Node, inner: Node, name: str) -> list[ast.stmt]:
        """Return an assignment to a name, in the name's type."""
        left, right = part(inner, "left"), part(inner, "right")
        sign = words(part(inner, "operator"))[:-1]
        kind = self.names.get(name, "")
        if not sign:
            value = self.converted(kind, self.expr(right), right)
        elif sign in ARITHMETIC or sign == "/":
            value = self.updated(inner, sign)
            both = {kind, self.kinds.of(right)}
            if kind and (both & {"float", "double"} or both == {"int", "unsigned"} or sign == "-"):
                value = (
                    self.e(cast(kind, value), right) if kind != "int" or len(both) > 1 else value
                )
        else:
            return self.unknown(inner, *changed_by(left))
        target = self.e(ast.Name(name, ast.Store()), node)
        return [self.s(ast.Assign([target], value), node)]

    def updated(self, inner: Node, sign: str) -> ast.expr:
        """Return what `a += b` sets a to."""
        left, right = self.expr(part(inner, "left")), self.expr(part(inner, "right"))
        if sign == "/":
            return self.call("quotient", [left, right], inner)
        if sign == "%":
            return self.call("remainder", [left, right], inner)
        return self.e(ast.BinOp(left, ARITHMETIC[sign](), right), inner)

    def called(self, node: Node, call: Node) -> list[ast.stmt]:
        """Return a call that stands alone."""
        raise NotImplementedError

    def answer(self, call: Node, name: str) -> ast.stmt:
        """Return the answer that a call is."""
        raise NotImplementedError

    def hands_on(self, call: Node) -> bool:
        """Return whether a known function is given a structure that it may change."""
        raise NotImplementedError


def leaves_sizes(high: Node) -> bool:
    """Return whether a loop's limit asks something that its body may change: `v.size()`."""
    return any(each.type == "call_expression" for each in everything(high)) and not identifiers(
        high
    )
