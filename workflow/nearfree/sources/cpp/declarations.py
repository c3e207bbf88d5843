"""C++ declarations in normal form: typed variables, their scopes, and lambdas."""

import ast
from collections.abc import Iterator
from contextlib import contextmanager

from tree_sitter import Node

from nearfree.sources.cpp.calls import Calls
from nearfree.sources.cpp.expressions import Meaning
from nearfree.sources.cpp.nodes import (
    arguments,
    called_name,
    changed_names,
    declarator_names,
    declared_names,
    is_constant,
    may_leave,
    name_set,
    part,
)
from nearfree.sources.cpp.source import CppFiles, children, parameter_names, text_of, walk
from nearfree.sources.cpp.types import cast, kind_named
from nearfree.sources.language.expressions import parse
from nearfree.sources.language.functions import nodes_of
from nearfree.sources.language.program import Function, Text, placed

NUMBER_TYPES = {"primitive_type", "sized_type_specifier"}


class Declarations(Calls):
    """Translates C++ declarations into assignments."""

    def __init__(self, files: CppFiles, text: Text, meaning: Meaning) -> None:
        super().__init__(files, text, meaning)
        self.scopes: list[set[str]] = [set()]
        self.shadow_count = 0
        self.reassigned: set[str] = set()
        self.fields: set[str] = set()
        self.return_kind = ""
        self.answer_returns: list[ast.stmt] = []
        self.unknown_returns: list[ast.stmt] = []

    def unknown(self, node: Node, *names: str) -> list[ast.stmt]:
        """Return the stand-in of an unknown statement, which may change some names."""
        opaque_call = self.opaque(node, *self.with_fields({*names}))
        called_names = (called_name(call) for call in walk(node) if call.type == "call_expression")
        if not may_leave(node) and not any(map(self.meaning.ends, called_names)):
            return [self.at(ast.Expr(opaque_call), node)]
        return_ = self.at(ast.Return(opaque_call), node)
        self.unknown_returns.append(return_)
        return [return_]

    def with_fields(self, names: set[str]) -> list[str]:
        """Return names, and the names of the fields of those that are structures."""
        prefixes = tuple(f"{name}_" for name in names)
        return sorted(names | {field for field in self.fields if field.startswith(prefixes)})

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Limit names that are declared inside to the block."""
        substitutions, kinds = self.substitutions, dict(self.names)
        self.substitutions = dict(substitutions)
        self.scopes.append(set())
        try:
            yield
        finally:
            declared_here = self.scopes.pop()
            self.substitutions = substitutions
            for name in declared_here:
                self.names.pop(name, None)
                if name in kinds:
                    self.names[name] = kinds[name]

    def declare(self, name: str, kind: str) -> None:
        """Declare a name; one that shadows another is renamed."""
        unique_name = self.current_name(name)
        if any(unique_name in scope for scope in self.scopes[:-1]):
            self.shadow_count += 1
            replacement = ast.Name(f"{unique_name}_inner{self.shadow_count}", ast.Load())
            self.substitutions[name] = self.substitutions[unique_name] = replacement
            unique_name = replacement.id
        self.scopes[-1] |= {unique_name, name}
        self.names[name] = self.names[unique_name] = kind

    def target(self, name: str, source: Node) -> ast.expr:
        """Return a name as the target of an assignment."""
        return self.at(ast.Name(self.current_name(name), ast.Store()), source)

    def assign(self, name: str, value: ast.expr, source: Node) -> ast.stmt:
        """Return an assignment to a plain name."""
        return self.at(ast.Assign([self.target(name, source)], value), source)

    def attribute(self, call: Node) -> tuple[str, ast.expr] | None:
        """Return the name that `cudaDeviceGetAttribute(&x, which, device)` sets, and its fact."""
        if call.type != "call_expression" or called_name(call) != "cudaDeviceGetAttribute":
            return None
        args = arguments(call)
        if len(args) != 3 or not text_of(args[0]).lstrip("&").isidentifier():
            return None
        attribute_name = self.at(ast.Constant(text_of(args[1])), call)
        return text_of(args[0]).lstrip("&"), self.call("device_attribute", [attribute_name], call)

    def s_declaration(self, node: Node) -> list[ast.stmt]:
        """Translate a declaration: the initial values of its variables."""
        type_node = part(node, "type")
        kind = text_of(type_node)
        is_static = any(text_of(child) == "static" for child in node.children)
        statements: list[ast.stmt] = []
        for declarator in node.children_by_field_name("declarator"):
            value = declarator.child_by_field_name("value")
            keeps_value = is_static and not is_constant(node)
            other_number = type_node.type in NUMBER_TYPES and not kind_named(kind)
            if keeps_value or (other_number and kind != "void"):
                for name in declarator_names(declarator):
                    self.declare(name, "")
                    statements.append(self.assign(name, self.opaque(node), node))
            elif declarator.type == "init_declarator" and value is not None:
                statements += self.initialised_variables(node, declarator, kind)
            elif kind.startswith("std::vector"):
                statements.append(self.vector_declaration(node, declarator))
            else:
                for name in declarator_names(declarator):
                    self.declare(name, kind_named(kind))
        return statements

    def vector_declaration(self, node: Node, declarator: Node) -> ast.stmt:
        """Translate a vector's declaration; one with a size has an unknown value."""
        is_empty = declarator.type == "identifier"
        name = (declarator_names(declarator) or [text_of(declarator)])[0]
        self.declare(name, "")
        value = self.at(ast.List([], ast.Load()), node) if is_empty else self.opaque(declarator)
        return self.assign(name, value, node)

    def initialised_variables(self, node: Node, declarator: Node, kind: str) -> list[ast.stmt]:
        """Translate a declarator with a value."""
        left, value = part(declarator, "declarator"), part(declarator, "value")
        names = declarator_names(left)
        if value.type == "call_expression" and called_name(value) in self.meaning.answers:
            return [self.answer(value, called_name(value))]
        attribute = self.attribute(value)
        if attribute is not None:
            assignment = self.assign(*attribute, node)
            for name in names:
                self.declare(name, "")
            return [assignment]
        if left.type == "structured_binding_declarator":
            return self.structured_binding(node, names, value)
        return self.variable(node, declarator, names[0], kind)

    def variable(self, node: Node, declarator: Node, name: str, kind: str) -> list[ast.stmt]:
        """Translate the declaration of one variable with a value.

        A reference that the function later changes, directly or through its target, is unknown.
        """
        left, value = part(declarator, "declarator"), part(declarator, "value")
        if left.type == "reference_declarator" and (self.reassigned & ({name} | name_set(value))):
            self.declare(name, "")
            return self.unknown(node, name, *name_set(value))
        if value.type == "lambda_expression":
            return self.lambda_function(node, name, value)
        result = self.initial_value(node, left, value, kind)
        self.declare(name, self.kinds.of(value) if kind == "auto" else kind_named(kind))
        return [self.assign(name, result, node)]

    def initial_value(self, node: Node, left: Node, value: Node, kind: str) -> ast.expr:
        """Return a variable's initial value, converted to its type."""
        number_kind = kind_named(kind)
        elements = list(children(value))
        if value.type == "initializer_list" and number_kind and left.type == "identifier":
            if not elements:
                return self.at(cast(number_kind, self.at(ast.Constant(0), node)), node)
            value = elements[0] if len(elements) == 1 else value
        if value.type == "argument_list":
            if len(elements) != 1 or not number_kind:
                return self.opaque(node)
            value = elements[0]
        return self.converted(number_kind, self.expr(value), value)

    def structured_binding(self, node: Node, names: list[str], value: Node) -> list[ast.stmt]:
        """Translate a declaration of several names, `auto [a, b] = ...`."""
        result = self.expr(value)
        for name in names:
            self.declare(name, "")
        targets = [self.target(name, node) for name in names]
        targets_tuple = self.at(ast.Tuple(targets, ast.Store()), node)
        return [self.at(ast.Assign([targets_tuple], result), node)]

    def lambda_function(self, node: Node, name: str, value: Node) -> list[ast.stmt]:
        """Translate a lambda into a nested function.

        It must change nothing outside, and what it captures by copy must not change later.
        """
        body, own_parameters = part(value, "body"), parameter_names(value)
        local_names = declared_names(body) | {parameter for parameter, _, _ in own_parameters}
        captures = value.child_by_field_name("captures")
        copies = {text_of(child) for child in children(captures)} if captures is not None else set()
        captures_copy = copies - {"&"} and not text_of(captures).startswith("[&")
        changes = changed_names(body) - local_names
        outer_names = name_set(body) - local_names
        self.declare(name, "")
        if changes or (captures_copy and outer_names & self.reassigned):
            return self.unknown(node, name, *changes, *outer_names)
        scopes, substitutions, return_kind = self.scopes, self.substitutions, self.return_kind
        self.scopes, self.return_kind = [set()], ""
        self.substitutions = {
            source_name: replacement
            for source_name, replacement in substitutions.items()
            if source_name not in local_names
        }
        try:
            for parameter, _, kind in own_parameters:
                self.declare(parameter, kind_named(kind))
            arg_names = [parameter for parameter, _, _ in own_parameters]
            return [self.define(self.current_name(name), arg_names, body)]
        finally:
            self.scopes, self.substitutions, self.return_kind = scopes, substitutions, return_kind

    def define(
        self,
        name: str,
        arg_names: list[str],
        body: Node,
        default_values: list[ast.expr] | None = None,
    ) -> Function:
        """Return a function with these parameters; the default values belong to the last ones."""
        parameters = [self.at(ast.arg(name), body) for name in arg_names]
        signature = ast.arguments([], parameters, None, [], [], None, [*(default_values or [])])
        return self.at(ast.FunctionDef(name, signature, self.nonempty_block(body), [], None), body)

    def answer(self, call: Node, name: str) -> ast.stmt:
        """Return the answer that a call gives, as a return statement."""
        values = [
            self.passed_value(call, name, position) for position in self.meaning.answers[name]
        ]
        answer = self.at(ast.Return(self.at(ast.Tuple(values, ast.Load()), call)), call)
        self.answer_returns.append(answer)
        return answer

    def passed_value(self, call: Node, name: str, position: int | str) -> ast.expr:
        """Return a call's argument or default at an index, or the value of an expression there."""
        args = arguments(call)
        if isinstance(position, str):
            location = self.at(ast.Constant(position), call)
            tree = placed(parse(position), location)
            for node in nodes_of(tree):
                if isinstance(node, ast.Name):
                    node.id = self.current_name(node.id)
            return tree
        if position < len(args):
            return self.expr(args[position])
        callee = self.files.locate(name)
        parameters = parameter_names(callee.node)
        default = parameters[position][1] if position < len(parameters) else None
        if default is None:
            return self.opaque(call)
        return type(self)(self.files, callee.text, self.meaning).expr(default)

    def passes_record(self, call: Node) -> bool:
        """Return whether a function of these files takes a structure that it may change."""
        args = {text_of(argument) for argument in arguments(call)}
        is_own_function = call.type == "call_expression" and self.files.defines(called_name(call))
        return is_own_function and bool(args & self.meaning.records)

    def nonempty_block(self, node: Node) -> list[ast.stmt]:
        """Return the statements of a block, at least one."""
        raise NotImplementedError
