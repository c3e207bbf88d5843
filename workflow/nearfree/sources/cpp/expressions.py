"""C++ expressions in normal form; an unknown one becomes a call of `opaque`."""

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from tree_sitter import Node

from nearfree.sources.cpp.nodes import arguments, last_name, part
from nearfree.sources.cpp.source import CppFiles, Definition, children, namespaces, text_of
from nearfree.sources.cpp.types import CASTS, Kinds, cast, kind_named, literal
from nearfree.sources.language.program import Text


@dataclass(frozen=True)
class Meaning:
    """The meaning of calls for a rule, beyond that of the language.

    Attributes
    ----------
    sinks
        Calls that give the answer as a template argument: for `f<A<x, y>>()`, indices (0, 1)
        lead to y.
    answers
        Calls that give the answer: a tuple of the arguments at these indices and of these
        expressions over the names in scope. Where a function with such a call returns without
        one, it has no answer.
    records
        Names of structures that are passed by reference; see `cpp.records`.
    tails
        Calls whose answer is that of the calling function.
    harmless
        Calls that change no argument that a rule depends on.
    branching
        Whether switches are translated, too.
    """

    sinks: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    answers: Mapping[str, tuple[int | str, ...]] = field(default_factory=dict)
    tails: frozenset[str] = frozenset()
    records: frozenset[str] = frozenset()
    harmless: frozenset[str] = frozenset()
    branching: bool = False

    def ends(self, name: str) -> bool:
        """Return whether a call of that name gives the function's answer."""
        return name in self.sinks or name in self.answers or name in self.tails


Tree = TypeVar("Tree", bound=ast.AST)
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
JUNCTIONS = {"&&": ast.And, "||": ast.Or, "and": ast.And, "or": ast.Or}
KNOWN = {
    f"{scope}{name}": name for scope in ("std::", "") for name in ("min", "max", "abs", "ceil")
} | {"ceilf": "ceil"}
"""C++ functions with a counterpart among a rule's functions."""


class Expressions:
    """Translates C++ expressions into Python's, with the positions of the source."""

    def __init__(self, files: CppFiles, text: Text, meaning: Meaning) -> None:
        self.files = files
        self.text = text
        self.meaning = meaning
        self.names: dict[str, str] = {}
        self.kinds = Kinds(self.names, self.returned_kind)
        self.substitutions: dict[str, ast.expr] = {}
        self.macro_site: Node | None = None

    def at(self, node: Tree, source: Node) -> Tree:
        """Return a new node at the position of a source node, or of the macro's call around it."""
        location = self.macro_site or source
        node.lineno = location.start_point[0] + 1  # type: ignore[attr-defined]
        node.end_lineno = location.end_point[0] + 1  # type: ignore[attr-defined]
        node.col_offset = location.start_point[1]  # type: ignore[attr-defined]
        node.end_col_offset = location.end_point[1]  # type: ignore[attr-defined]
        node.origin = self.text  # type: ignore[attr-defined]
        return node

    def name_node(self, name: str, source: Node) -> ast.expr:
        """Return a name that is read."""
        return self.at(ast.Name(name, ast.Load()), source)

    def call(self, name: str, args: list[ast.expr], source: Node) -> ast.expr:
        """Return a call of a function by its name."""
        return self.at(ast.Call(self.name_node(name, source), args, []), source)

    def opaque(self, node: Node, *names: str) -> ast.expr:
        """Return a value that is unknown, and may have changed these names."""
        args: list[ast.expr] = [self.at(ast.Constant(text_of(node)[:80]), node)]
        args += [self.name_node(self.current_name(name), node) for name in names]
        return self.call("opaque", args, node)

    def current_name(self, name: str) -> str:
        """Return the current name of a source's name, which a macro or a scope may have renamed."""
        replacement = self.substitutions.get(name)
        return replacement.id if isinstance(replacement, ast.Name) else name

    def returned_kind(self, call: Node) -> str:
        """Return the kind of a call's result; an empty text if it is unknown."""
        name = text_of(part(call, "function"))
        args = arguments(call)
        if KNOWN.get(name) == "ceil" and args:
            return "float" if self.kinds.of(args[0]) == "float" else "double"
        if KNOWN.get(name) in {"min", "max", "abs"} and args:
            kinds = {self.kinds.of(argument) for argument in args}
            return kinds.pop() if len(kinds) == 1 else ""
        callee = self.callee(part(call, "function"))
        returned = None if callee is None else callee.node.child_by_field_name("type")
        return kind_named(text_of(returned))

    def converted(self, kind: str, value: ast.expr, node: Node) -> ast.expr:
        """Return a value converted to the kind of a variable, parameter or result."""
        value_kind = self.kinds.of(node)
        if not kind or value_kind == kind or (not value_kind and kind not in {"float", "double"}):
            return value
        if kind in {"int", "unsigned"} and value_kind == "bool":
            return self.at(cast("int", value), node)
        if kind == "int" and value_kind == "unsigned":
            return value
        if kind == "unsigned" and value_kind in {"float", "double"}:
            value = self.at(cast("int", value), node)
        return self.at(cast(kind, value), node)

    def expr(self, node: Node) -> ast.expr:
        """Translate an expression."""
        method = getattr(self, f"e_{node.type}", None)
        result: ast.expr = self.opaque(node) if method is None else method(node)
        return result

    def test(self, node: Node) -> ast.expr:
        """Translate an expression of which only the truth matters."""
        if node.type == "parenthesized_expression":
            inner = next(children(node), None)
            return self.opaque(node) if inner is None else self.test(inner)
        operator = text_of(node.child_by_field_name("operator"))
        if node.type == "binary_expression" and operator in JUNCTIONS:
            operands = [self.test(part(node, name)) for name in ("left", "right")]
            return self.at(ast.BoolOp(JUNCTIONS[operator](), operands), node)
        return self.expr(node)

    def e_number_literal(self, node: Node) -> ast.expr:
        """Translate a number; an unknown form is opaque."""
        value = literal(text_of(node))
        return self.opaque(node) if value is None else self.at(ast.Constant(value[0]), node)

    def e_true(self, node: Node) -> ast.expr:
        """Translate `true` or `false`."""
        return self.at(ast.Constant(node.type == "true"), node)

    e_false = e_true

    def e_null(self, node: Node) -> ast.expr:
        """Translate a null pointer into `None`."""
        return self.at(ast.Constant(value=None), node)

    def e_string_literal(self, node: Node) -> ast.expr:
        """Translate a text; one with escapes is opaque."""
        text = "" if node.text is None else node.text.decode()
        if "\\" in text or text[:1] != '"':
            return self.opaque(node)
        return self.at(ast.Constant(text[1:-1]), node)

    def e_identifier(self, node: Node) -> ast.expr:
        """Translate a name, or return the expression that a macro binds it to."""
        name = text_of(node)
        return self.substitutions.get(name) or self.name_node(name, node)

    e_type_identifier = e_identifier

    def e_field_expression(self, node: Node) -> ast.expr:
        """Translate `p.x` into the name `p_x`, and `p.first` into an item."""
        object_, name = part(node, "argument"), text_of(part(node, "field"))
        if name in {"first", "second"}:
            index = self.at(ast.Constant(int(name == "second")), node)
            return self.at(ast.Subscript(self.expr(object_), index, ast.Load()), node)
        if object_.type == "identifier" and name.isidentifier():
            return self.name_node(f"{text_of(object_)}_{name}", node)
        return self.opaque(node)

    def e_subscript_expression(self, node: Node) -> ast.expr:
        """Translate an item."""
        indices = list(children(part(node, "indices")))
        if len(indices) != 1:
            return self.opaque(node)
        group = self.expr(part(node, "argument"))
        return self.at(ast.Subscript(group, self.expr(indices[0]), ast.Load()), node)

    def e_parenthesized_expression(self, node: Node) -> ast.expr:
        """Translate the expression in parentheses."""
        inner = list(children(node))
        return self.expr(inner[0]) if len(inner) == 1 else self.opaque(node)

    def e_unary_expression(self, node: Node) -> ast.expr:
        """Translate `!x`, `-x` or `+x`."""
        operator, operand = text_of(part(node, "operator")), part(node, "argument")
        if operator == "!":
            return self.at(ast.UnaryOp(ast.Not(), self.test(operand)), node)
        if operator == "-":
            value = self.at(ast.UnaryOp(ast.USub(), self.expr(operand)), node)
            is_unsigned = self.kinds.of(operand) == "unsigned"
            return self.at(cast("unsigned", value), node) if is_unsigned else value
        return self.expr(operand) if operator == "+" else self.opaque(node)

    def e_conditional_expression(self, node: Node) -> ast.expr:
        """Translate a conditional; both branches get their common type."""
        branches = [part(node, name) for name in ("consequence", "alternative")]
        kind = self.kinds.of(node)
        values = [
            self.converted(kind, self.expr(branch), branch)
            if kind in {"float", "double", "int"}
            else self.expr(branch)
            for branch in branches
        ]
        return self.at(ast.IfExp(self.test(part(node, "condition")), *values), node)

    def e_binary_expression(self, node: Node) -> ast.expr:
        """Translate arithmetic as C++ does it, a comparison, or a junction."""
        operator = text_of(part(node, "operator"))
        operands = [part(node, name) for name in ("left", "right")]
        if operator in JUNCTIONS:
            junction = self.test(node)
            are_booleans = all(self.kinds.of(operand) == "bool" for operand in operands)
            return junction if are_booleans else self.at(cast("bool", junction), node)
        if operator in COMPARISONS:
            return self.comparison(node, operator, operands)
        if operator not in ARITHMETIC and operator != "/":
            return self.opaque(node)
        left, right = map(self.expr, operands)
        kind = self.kinds.of(node)
        if operator == "%" and kind == "unsigned":
            result: ast.expr = self.at(ast.BinOp(left, ast.Mod(), right), node)
        else:
            result = self.arithmetic(operator, left, right, node)
        if kind == "float" and operator in {"+", "-", "*", "/"}:
            return self.at(cast("float", result), node)
        may_wrap = (kind, operator) == ("unsigned", "-")
        return self.at(cast("unsigned", result), node) if may_wrap else result

    def arithmetic(self, operator: str, left: ast.expr, right: ast.expr, node: Node) -> ast.expr:
        """Return an operation on numbers that may be signed."""
        functions = {"/": "quotient", "%": "remainder"}
        if operator in functions:
            return self.call(functions[operator], [left, right], node)
        return self.at(ast.BinOp(left, ARITHMETIC[operator](), right), node)

    def comparison(self, node: Node, operator: str, operands: list[Node]) -> ast.expr:
        """Translate a comparison; a negative number compared with an unsigned one has no value."""
        kinds = [self.kinds.of(operand) for operand in operands]
        against_zero = operator in {"==", "!="} and text_of(operands[1]) == "0"
        values = [
            self.compared_with_zero(operands[0]) if against_zero else self.expr(operands[0]),
            self.expr(operands[1]),
        ]
        if set(kinds) == {"int", "unsigned"}:
            index = kinds.index("int")
            values[index] = self.at(cast("unsigned", values[index]), operands[index])
        return self.at(ast.Compare(values[0], [COMPARISONS[operator]()], values[1:]), node)

    def compared_with_zero(self, node: Node) -> ast.expr:
        """Translate an expression that is compared with 0: the sign of `a % b` does not matter."""
        inner = node
        while inner.type == "parenthesized_expression" and inner.named_children:
            inner = next(children(inner))
        if inner.type != "binary_expression" or text_of(part(inner, "operator")) != "%":
            return self.expr(node)
        left, right = (self.expr(part(inner, name)) for name in ("left", "right"))
        return self.at(ast.BinOp(left, ast.Mod(), right), node)

    def e_cast_expression(self, node: Node) -> ast.expr:
        """Translate `(int)x`."""
        return self.as_type(text_of(part(node, "type")), part(node, "value"), node)

    def as_type(self, name: str, value: Node, node: Node) -> ast.expr:
        """Return a value converted to a type; an unknown type is opaque."""
        if name not in CASTS:
            return self.opaque(node)
        return self.converted(kind_named(name), self.expr(value), value)

    def e_sizeof_expression(self, node: Node) -> ast.expr:
        """Translate `sizeof` into a call that a leaf may replace."""
        text = self.at(ast.Constant(" ".join(map(text_of, children(node)))), node)
        return self.call("sizeof", [text], node)

    def e_initializer_list(self, node: Node) -> ast.expr:
        """Translate a braced list into a tuple."""
        return self.at(ast.Tuple([self.expr(child) for child in children(node)], ast.Load()), node)

    def callee(self, function: Node) -> Definition | None:
        """Return the called function of these files; None if it is uncertain which one it is."""
        name = last_name(function)
        if function.type == "field_expression" or not self.files.defines(name):
            return None
        definition = self.files.locate(name)
        scope = text_of(function.child_by_field_name("scope"))
        if function.type == "qualified_identifier" and scope:
            enclosing = namespaces(definition.node)
            return definition if scope.split("::")[-1] in enclosing else None
        return definition
