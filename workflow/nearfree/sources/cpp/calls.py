"""C++ calls in normal form: of the language, of functions of the release, and of leaves."""

import ast

from tree_sitter import Node

from nearfree.sources.cpp.expressions import KNOWN, Expressions
from nearfree.sources.cpp.nodes import arguments, last_name, part, plain, template_arguments
from nearfree.sources.cpp.source import (
    parameter_names,
    template_parameters,
    words,
)
from nearfree.sources.cpp.types import CASTS, cast, kind_named, literal
from nearfree.sources.language.functions import BUILTINS

TUPLES = {"std::make_pair", "std::make_tuple", "std::tuple", "std::pair"}
CEILINGS = {"cute::ceil_div", "cutlass::ceil_div"}
POINTERS = ("static_cast<", "reinterpret_cast<")
GLOBAL = {"std", "at", "c10", "cuda", "torch", "cute", "cutlass"}


class Calls(Expressions):
    """Turns C++ calls into Python's."""

    def e_call_expression(self, node: Node) -> ast.expr:
        """Return a call: of the language, of a function of these files, or of a leaf."""
        function, given = part(node, "function"), arguments(node)
        name = words(function)
        for known in (self.language_call, self.pointer_call):
            found = known(node, name, given)
            if found is not None:
                return found
        if function.type == "field_expression":
            return self.member_call(node, function)
        return self.function_call(node, function, given)

    def language_call(self, node: Node, name: str, given: list[Node]) -> ast.expr | None:
        """Return a call of what C++ and its libraries define."""
        last = last_name(part(node, "function"))
        if name in CASTS and len(given) == 1:
            return self.as_type(name, given[0], node)
        if name in CEILINGS and len(given) == 2:
            above, below = map(self.expr, given)
            more = self.at(ast.BinOp(above, ast.Add(), below), node)
            less = self.at(ast.BinOp(more, ast.Sub(), self.at(ast.Constant(1), node)), node)
            return self.call("quotient", [less, below], node)
        if name in TUPLES:
            return self.at(ast.Tuple([self.expr(argument) for argument in given], ast.Load()), node)
        if name in KNOWN and not self.files.definitions(last):
            return self.known_call(node, KNOWN[name], given)
        return None

    def known_call(self, node: Node, name: str, given: list[Node]) -> ast.expr:
        """Return a call of a function of the language that rules have too."""
        values = [self.expr(argument) for argument in given]
        if len(values) == 1 and isinstance(values[0], ast.Tuple):
            values = values[0].elts
        whole = self.call(name, values, node)
        return self.at(cast("double", whole), node) if name == "ceil" else whole

    def pointer_call(self, node: Node, name: str, given: list[Node]) -> ast.expr | None:
        """Return a call whose name has template arguments: a cast, or `std::get<0>`."""
        function = part(node, "function")
        types = [words(plain(each)) for each in template_arguments(function)]
        if len(given) != 1:
            return None
        if name.startswith(POINTERS) and name.endswith("*>"):
            return self.expr(given[0])
        if name.startswith("static_cast<"):
            return self.as_type(types[0] if len(types) == 1 else "", given[0], node)
        if name.startswith("std::get<") and len(types) == 1 and types[0].isdecimal():
            index = self.at(ast.Constant(int(types[0])), node)
            return self.at(ast.Subscript(self.expr(given[0]), index, ast.Load()), node)
        return None

    def function_call(self, node: Node, function: Node, given: list[Node]) -> ast.expr:
        """Return a call of a function of these files; template arguments come first."""
        name, found = last_name(function), self.callee(function)
        spelled = template_arguments(function)
        types = [self.template_argument(each) for each in spelled]
        if name in BUILTINS or not name.isidentifier():
            return self.opaque(node)
        values = [self.expr(argument) for argument in given]
        if found is None:
            scope = words(function.child_by_field_name("scope")).split("::")[-1]
            elsewhere = self.files.defines(name) and scope not in GLOBAL
            return self.opaque(node) if elsewhere else self.call(name, [*types, *values], node)
        own = template_parameters(found.node)
        unnamed = any(not name for name, _ in own)
        if unnamed or len(types) > len(own) or any(default == "..." for _, default in own):
            return self.opaque(node)
        for _, default in own[len(types) :]:
            types.append(self.deduced(default, node))
        kinds = [kind_named(kind) for _, _, kind in parameter_names(found.node)]
        pairs = zip(kinds, values, given, strict=False)
        held = [self.converted(kind, value, each) for kind, value, each in pairs]
        return self.call(name, [*types, *held, *values[len(held) :]], node)

    def deduced(self, default: Node | str, node: Node) -> ast.expr:
        """Return a template argument that a call does not spell out."""
        if isinstance(default, str):
            known = default == "deduced"
            return self.at(ast.Constant(default), node) if known else self.opaque(node)
        value = literal(words(default))
        if default.type in {"true", "false"}:
            return self.at(ast.Constant(default.type == "true"), node)
        return self.opaque(node) if value is None else self.at(ast.Constant(value[0]), node)

    def template_argument(self, node: Node) -> ast.expr:
        """Return a template's argument; a type with a namespace stands for itself, as a text."""
        inner = plain(node)
        if node.type == "type_descriptor" and inner.type == "qualified_identifier":
            return self.at(ast.Constant(words(inner)), node)
        return self.expr(inner)

    def member_call(self, node: Node, function: Node) -> ast.expr:
        """Keep `x.has_value()` as it is: a leaf may stand for it."""
        group, name = part(function, "argument"), words(part(function, "field"))
        if group.type != "identifier":
            return self.opaque(node)
        method = self.at(ast.Attribute(self.named(words(group), group), name, ast.Load()), node)
        given = [self.expr(argument) for argument in arguments(node)]
        return self.at(ast.Call(method, given, []), node)
