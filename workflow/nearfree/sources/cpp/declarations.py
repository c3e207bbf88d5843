"""C++ declarations in normal form: variables with their types, in their scopes, and lambdas."""

import ast
from collections.abc import Iterator
from contextlib import contextmanager

from tree_sitter import Node

from nearfree.sources.cpp.calls import Calls
from nearfree.sources.cpp.expressions import Meaning
from nearfree.sources.cpp.nodes import (
    arguments,
    assigned,
    called_name,
    declared,
    declared_names,
    is_constant,
    leaves,
    name_set,
    part,
)
from nearfree.sources.cpp.source import CppFiles, children, parameter_names, walk, words
from nearfree.sources.cpp.types import cast, kind_named
from nearfree.sources.language.expressions import parse
from nearfree.sources.language.functions import nodes_of
from nearfree.sources.language.program import Function, Text, placed

NUMBERS = {"primitive_type", "sized_type_specifier"}


class Declarations(Calls):
    """Turns C++ declarations into assignments."""

    def __init__(self, files: CppFiles, text: Text, meaning: Meaning) -> None:
        super().__init__(files, text, meaning)
        self.scopes: list[set[str]] = [set()]
        self.hidden = 0
        self.reassigned: set[str] = set()
        self.fields: set[str] = set()
        self.returns = ""
        self.answered: list[ast.stmt] = []
        self.lost: list[ast.stmt] = []

    def unknown(self, node: Node, *names: str) -> list[ast.stmt]:
        """Return what stands for a statement that is not known, and may change these names."""
        value = self.opaque(node, *self.with_fields({*names}))
        called = (called_name(e) for e in walk(node) if e.type == "call_expression")
        if not leaves(node) and not any(map(self.meaning.ends, called)):
            return [self.at(ast.Expr(value), node)]
        lost = self.at(ast.Return(value), node)
        self.lost.append(lost)
        return [lost]

    def with_fields(self, names: set[str]) -> list[str]:
        """Return names with those of the fields of structures that they stand for."""
        return sorted(
            names | {name for name in self.fields if any(name.startswith(f"{n}_") for n in names)}
        )

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

    def target(self, name: str, old: Node) -> ast.expr:
        """Return a name that is set."""
        return self.at(ast.Name(self.renamed(name), ast.Store()), old)

    def assign(self, name: str, value: ast.expr, old: Node) -> ast.stmt:
        """Return an assignment to a plain name."""
        return self.at(ast.Assign([self.target(name, old)], value), old)

    def attribute(self, call: Node) -> tuple[str, ast.expr] | None:
        """Return what `cudaDeviceGetAttribute(&x, which, device)` sets, and to which fact."""
        if call.type != "call_expression" or called_name(call) != "cudaDeviceGetAttribute":
            return None
        given = arguments(call)
        if len(given) != 3 or not words(given[0]).lstrip("&").isidentifier():
            return None
        which = self.at(ast.Constant(words(given[1])), call)
        return words(given[0]).lstrip("&"), self.call("device_attribute", [which], call)

    def s_declaration(self, node: Node) -> list[ast.stmt]:
        """Return what variables are set to where they are declared."""
        given = part(node, "type")
        kind = words(given)
        lasting = any(words(child) == "static" for child in node.children) and not is_constant(node)
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
        value = self.at(ast.List([], ast.Load()), node) if empty else self.opaque(each)
        return self.assign(name, value, node)

    def initialised(self, node: Node, each: Node, kind: str) -> list[ast.stmt]:
        """Return what a variable is set to; one that refers to another must not change it."""
        left, value = part(each, "declarator"), part(each, "value")
        names = declared_names(left)
        if value.type == "call_expression" and called_name(value) in self.meaning.answers:
            return [self.answer(value, called_name(value))]
        fact = self.attribute(value)
        if fact is not None:
            known = self.assign(*fact, node)
            for name in names:
                self.declare(name, "")
            return [known]
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
                return self.at(cast(number, self.at(ast.Constant(0), node)), node)
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
        pair = self.at(ast.Tuple(targets, ast.Store()), node)
        return [self.at(ast.Assign([pair], result), node)]

    def lambda_function(self, node: Node, name: str, value: Node) -> list[ast.stmt]:
        """Return a function inside the function, if it changes nothing and sees what it saw."""
        body, own = part(value, "body"), parameter_names(value)
        inner = declared(body) | {each for each, _, _ in own}
        captures = value.child_by_field_name("captures")
        copies = {words(child) for child in children(captures)} if captures is not None else set()
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
        given = [self.at(ast.arg(name), body) for name in names]
        spec = ast.arguments([], given, None, [], [], None, [*(values or [])])
        return self.at(ast.FunctionDef(name, spec, self.filled(body), [], None), body)

    def answer(self, call: Node, name: str) -> ast.stmt:
        """Return the answer that a call is."""
        values = [self.passed(call, name, place) for place in self.meaning.answers[name]]
        answer = self.at(ast.Return(self.at(ast.Tuple(values, ast.Load()), call)), call)
        self.answered.append(answer)
        return answer

    def passed(self, call: Node, name: str, place: int | str) -> ast.expr:
        """Return what a call passes on: an argument, its default, or an expression there."""
        given = arguments(call)
        if isinstance(place, str):
            here = self.at(ast.Constant(place), call)
            tree = placed(parse(place), here)
            for node in nodes_of(tree):
                if isinstance(node, ast.Name):
                    node.id = self.renamed(node.id)
            return tree
        if place < len(given):
            return self.expr(given[place])
        found = self.files.locate(name)
        own = parameter_names(found.node)
        default = own[place][1] if place < len(own) else None
        if default is None:
            return self.opaque(call)
        return type(self)(self.files, found.text, self.meaning).expr(default)

    def hands_on(self, call: Node) -> bool:
        """Return whether a known function is given a structure that it may change."""
        given = {words(argument) for argument in arguments(call)}
        known = call.type == "call_expression" and self.files.defines(called_name(call))
        return known and bool(given & self.meaning.records)

    def filled(self, node: Node) -> list[ast.stmt]:
        """Return the statements of a block, one at least."""
        raise NotImplementedError
