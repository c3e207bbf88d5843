"""C++ calls in normal form: of the language, of the release's functions, and of leaves."""

import ast

from tree_sitter import Node

from nearfree.sources.cpp.expressions import KNOWN, Expressions
from nearfree.sources.cpp.nodes import arguments, last_name, part, plain, template_arguments
from nearfree.sources.cpp.source import parameter_names, template_parameters, text_of
from nearfree.sources.cpp.types import CASTS, cast, kind_named, literal
from nearfree.sources.language.functions import BUILTINS

TUPLES = {"std::make_pair", "std::make_tuple", "std::tuple", "std::pair"}
CEILINGS = {"cute::ceil_div", "cutlass::ceil_div"}
POINTERS = ("static_cast<", "reinterpret_cast<")
LIBRARY_NAMESPACES = {"std", "at", "c10", "cuda", "torch", "cute", "cutlass"}


class Calls(Expressions):
    """Translates C++ calls into Python's."""

    def e_call_expression(self, node: Node) -> ast.expr:
        """Translate a call of the language, of a function of these files, or of a leaf."""
        function, args = part(node, "function"), arguments(node)
        name = text_of(function)
        for translate_call in (self.language_call, self.pointer_call):
            call = translate_call(node, name, args)
            if call is not None:
                return call
        if function.type == "field_expression":
            return self.member_call(node, function)
        return self.function_call(node, function, args)

    def language_call(self, node: Node, name: str, args: list[Node]) -> ast.expr | None:
        """Translate a call of what C++ and its libraries define; None for other calls."""
        callee = last_name(part(node, "function"))
        if name in CASTS and len(args) == 1:
            return self.as_type(name, args[0], node)
        if name in CEILINGS and len(args) == 2:
            dividend, divisor = map(self.expr, args)
            padded = self.at(ast.BinOp(dividend, ast.Add(), divisor), node)
            numerator = self.at(ast.BinOp(padded, ast.Sub(), self.at(ast.Constant(1), node)), node)
            return self.call("quotient", [numerator, divisor], node)
        if name in TUPLES:
            return self.at(ast.Tuple([self.expr(argument) for argument in args], ast.Load()), node)
        if name in KNOWN and not self.files.definitions(callee):
            return self.known_call(node, KNOWN[name], args)
        return None

    def known_call(self, node: Node, name: str, args: list[Node]) -> ast.expr:
        """Translate a call of a C++ function that has a counterpart among a rule's functions."""
        values = [self.expr(argument) for argument in args]
        if len(values) == 1 and isinstance(values[0], ast.Tuple):
            values = values[0].elts
        call = self.call(name, values, node)
        return self.at(cast("double", call), node) if name == "ceil" else call

    def pointer_call(self, node: Node, name: str, args: list[Node]) -> ast.expr | None:
        """Translate a cast or `std::get<0>`, which have template arguments; else return None."""
        function = part(node, "function")
        types = [text_of(plain(argument)) for argument in template_arguments(function)]
        if len(args) != 1:
            return None
        if name.startswith(POINTERS) and name.endswith("*>"):
            return self.expr(args[0])
        if name.startswith("static_cast<"):
            return self.as_type(types[0] if len(types) == 1 else "", args[0], node)
        if name.startswith("std::get<") and len(types) == 1 and types[0].isdecimal():
            index = self.at(ast.Constant(int(types[0])), node)
            return self.at(ast.Subscript(self.expr(args[0]), index, ast.Load()), node)
        return None

    def function_call(self, node: Node, function: Node, args: list[Node]) -> ast.expr:
        """Translate a call of a function of these files; template arguments come first."""
        name, callee = last_name(function), self.callee(function)
        spelled_types = template_arguments(function)
        template_args = [self.template_argument(argument) for argument in spelled_types]
        if name in BUILTINS or not name.isidentifier():
            return self.opaque(node)
        values = [self.expr(argument) for argument in args]
        if callee is None:
            scope = text_of(function.child_by_field_name("scope")).split("::")[-1]
            is_ambiguous = self.files.defines(name) and scope not in LIBRARY_NAMESPACES
            if is_ambiguous:
                return self.opaque(node)
            return self.call(name, [*template_args, *values], node)
        declared = template_parameters(callee.node)
        unnamed = any(not name for name, _ in declared)
        if (
            unnamed
            or len(template_args) > len(declared)
            or any(default == "..." for _, default in declared)
        ):
            return self.opaque(node)
        for _, default in declared[len(template_args) :]:
            template_args.append(self.deduced(default, node))
        kinds = [kind_named(kind) for _, _, kind in parameter_names(callee.node)]
        parameters = zip(kinds, values, args, strict=False)
        converted = [self.converted(kind, value, argument) for kind, value, argument in parameters]
        return self.call(name, [*template_args, *converted, *values[len(converted) :]], node)

    def deduced(self, default: Node | str, node: Node) -> ast.expr:
        """Return a template argument that a call does not spell out."""
        if isinstance(default, str):
            is_deduced = default == "deduced"
            return self.at(ast.Constant(default), node) if is_deduced else self.opaque(node)
        number = literal(text_of(default))
        if default.type in {"true", "false"}:
            return self.at(ast.Constant(default.type == "true"), node)
        return self.opaque(node) if number is None else self.at(ast.Constant(number[0]), node)

    def template_argument(self, node: Node) -> ast.expr:
        """Translate a template argument; a qualified type becomes its text."""
        inner = plain(node)
        if node.type == "type_descriptor" and inner.type == "qualified_identifier":
            return self.at(ast.Constant(text_of(inner)), node)
        return self.expr(inner)

    def member_call(self, node: Node, function: Node) -> ast.expr:
        """Translate `x.has_value()` as it is: a leaf may replace it."""
        object_, name = part(function, "argument"), text_of(part(function, "field"))
        if object_.type != "identifier":
            return self.opaque(node)
        method = self.at(
            ast.Attribute(self.name_node(text_of(object_), object_), name, ast.Load()), node
        )
        args = [self.expr(argument) for argument in arguments(node)]
        return self.at(ast.Call(method, args, []), node)
