"""C++ expressions in normal form; whatever is not known becomes a call of `opaque`."""

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from tree_sitter import Node

from nearfree.sources.cpp.nodes import arguments, last_name, part
from nearfree.sources.cpp.source import (
    CppFiles,
    Found,
    children,
    namespaces,
    returned_type,
    words,
)
from nearfree.sources.cpp.types import CASTS, Kinds, cast, kind_named, literal
from nearfree.sources.language.program import Text


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
        Names of structures that are handed on by reference; see `cpp.records`.
    tails
        Calls whose answer is the function's own.
    harmless
        Calls that change none of their arguments that a rule depends on.
    branching
        Whether switches are followed, too.
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
"""Functions of the language that a rule's functions do the work of."""


class Expressions:
    """Turns C++ expressions into Python's, with the places of the source.

    Parameters
    ----------
    files
        The release's files: functions that are called are looked up in them.
    """

    def __init__(self, files: CppFiles, text: Text, meaning: Meaning) -> None:
        self.files = files
        self.text = text
        self.meaning = meaning
        self.names: dict[str, str] = {}
        self.kinds = Kinds(self.names, self.returned)
        self.bound: dict[str, ast.expr] = {}
        self.place: Node | None = None

    def at(self, new: Tree, old: Node) -> Tree:
        """Return a new node with the place of an old one, or that of the macro around it."""
        where = self.place or old
        new.lineno = where.start_point[0] + 1  # type: ignore[attr-defined]
        new.end_lineno = where.end_point[0] + 1  # type: ignore[attr-defined]
        new.col_offset = where.start_point[1]  # type: ignore[attr-defined]
        new.end_col_offset = where.end_point[1]  # type: ignore[attr-defined]
        new.origin = self.text  # type: ignore[attr-defined]
        return new

    def named(self, name: str, old: Node) -> ast.expr:
        """Return a name."""
        return self.at(ast.Name(name, ast.Load()), old)

    def call(self, name: str, given: list[ast.expr], old: Node) -> ast.expr:
        """Return a call of a function."""
        return self.at(ast.Call(self.named(name, old), given, []), old)

    def opaque(self, node: Node, *names: str) -> ast.expr:
        """Return a value that is not known; it may have changed these names."""
        shown: list[ast.expr] = [self.at(ast.Constant(words(node)[:80]), node)]
        shown += [self.named(self.renamed(name), node) for name in names]
        return self.call("opaque", shown, node)

    def renamed(self, name: str) -> str:
        """Return what a name of the source is called, where a macro or a scope renames it."""
        bound = self.bound.get(name)
        return bound.id if isinstance(bound, ast.Name) else name

    def returned(self, call: Node) -> str:
        """Return the kind that a called function returns."""
        name = words(part(call, "function"))
        given = arguments(call)
        if KNOWN.get(name) == "ceil" and given:
            return "float" if self.kinds.of(given[0]) == "float" else "double"
        if KNOWN.get(name) in {"min", "max", "abs"} and given:
            found = {self.kinds.of(argument) for argument in given}
            return found.pop() if len(found) == 1 else ""
        callee = self.callee(part(call, "function"))
        return "" if callee is None else kind_named(returned_type(callee.node))

    def converted(self, kind: str, value: ast.expr, node: Node) -> ast.expr:
        """Return a value as a variable, parameter or result of some kind holds it."""
        held = self.kinds.of(node)
        if not kind or held == kind or (not held and kind not in {"float", "double"}):
            return value
        if kind in {"int", "unsigned"} and held == "bool":
            return self.at(cast("int", value), node)
        if kind == "int" and held == "unsigned":
            return value
        if kind == "unsigned" and held in {"float", "double"}:
            value = self.at(cast("int", value), node)
        return self.at(cast(kind, value), node)

    def expr(self, node: Node) -> ast.expr:
        """Return an expression."""
        method = getattr(self, f"e_{node.type}", None)
        result: ast.expr = self.opaque(node) if method is None else method(node)
        return result

    def test(self, node: Node) -> ast.expr:
        """Return an expression of which only the truth counts."""
        if node.type == "parenthesized_expression":
            inner = next(children(node), None)
            return self.opaque(node) if inner is None else self.test(inner)
        sign = words(node.child_by_field_name("operator"))
        if node.type == "binary_expression" and sign in JUNCTIONS:
            sides = [self.test(part(node, name)) for name in ("left", "right")]
            return self.at(ast.BoolOp(JUNCTIONS[sign](), sides), node)
        return self.expr(node)

    def e_number_literal(self, node: Node) -> ast.expr:
        """Return a number."""
        found = literal(words(node))
        return self.opaque(node) if found is None else self.at(ast.Constant(found[0]), node)

    def e_true(self, node: Node) -> ast.expr:
        """Return `True` or `False`."""
        return self.at(ast.Constant(node.type == "true"), node)

    e_false = e_true

    def e_null(self, node: Node) -> ast.expr:
        """Return `None`."""
        return self.at(ast.Constant(value=None), node)

    def e_string_literal(self, node: Node) -> ast.expr:
        """Return a text; one with escapes is not known."""
        text = "" if node.text is None else node.text.decode()
        if "\\" in text or text[:1] != '"':
            return self.opaque(node)
        return self.at(ast.Constant(text[1:-1]), node)

    def e_identifier(self, node: Node) -> ast.expr:
        """Return a name, or what a macro binds it to."""
        name = words(node)
        return self.bound[name] if name in self.bound else self.named(name, node)

    e_type_identifier = e_identifier

    def e_field_expression(self, node: Node) -> ast.expr:
        """Return `p_x` of `p.x`, and an item of `p.first`."""
        group, name = part(node, "argument"), words(part(node, "field"))
        if name in {"first", "second"}:
            index = self.at(ast.Constant(int(name == "second")), node)
            return self.at(ast.Subscript(self.expr(group), index, ast.Load()), node)
        if group.type == "identifier" and name.isidentifier():
            return self.named(f"{words(group)}_{name}", node)
        return self.opaque(node)

    def e_subscript_expression(self, node: Node) -> ast.expr:
        """Return an item."""
        inner = list(children(part(node, "indices")))
        if len(inner) != 1:
            return self.opaque(node)
        group = self.expr(part(node, "argument"))
        return self.at(ast.Subscript(group, self.expr(inner[0]), ast.Load()), node)

    def e_parenthesized_expression(self, node: Node) -> ast.expr:
        """Return what stands in parentheses."""
        inner = list(children(node))
        return self.expr(inner[0]) if len(inner) == 1 else self.opaque(node)

    def e_unary_expression(self, node: Node) -> ast.expr:
        """Return `not x` or `-x`."""
        sign, inner = words(part(node, "operator")), part(node, "argument")
        if sign == "!":
            return self.at(ast.UnaryOp(ast.Not(), self.test(inner)), node)
        if sign == "-":
            value = self.at(ast.UnaryOp(ast.USub(), self.expr(inner)), node)
            signless = self.kinds.of(inner) == "unsigned"
            return self.at(cast("unsigned", value), node) if signless else value
        return self.expr(inner) if sign == "+" else self.opaque(node)

    def e_conditional_expression(self, node: Node) -> ast.expr:
        """Return a choice, both sides in their common type."""
        sides = [part(node, name) for name in ("consequence", "alternative")]
        kind = self.kinds.of(node)
        values = [
            self.converted(kind, self.expr(side), side)
            if kind in {"float", "double", "int"}
            else self.expr(side)
            for side in sides
        ]
        return self.at(ast.IfExp(self.test(part(node, "condition")), *values), node)

    def e_binary_expression(self, node: Node) -> ast.expr:
        """Return arithmetic as C++ does it, a comparison, or a junction."""
        sign, sides = words(part(node, "operator")), [part(node, n) for n in ("left", "right")]
        if sign in JUNCTIONS:
            whole = self.test(node)
            sure = all(self.kinds.of(side) == "bool" for side in sides)
            return whole if sure else self.at(cast("bool", whole), node)
        if sign in COMPARISONS:
            return self.comparison(node, sign, sides)
        if sign not in ARITHMETIC and sign != "/":
            return self.opaque(node)
        left, right = map(self.expr, sides)
        kind = self.kinds.of(node)
        if sign == "%" and kind == "unsigned":
            result: ast.expr = self.at(ast.BinOp(left, ast.Mod(), right), node)
        else:
            result = self.arithmetic(sign, left, right, node)
        if kind == "float" and sign in {"+", "-", "*", "/"}:
            return self.at(cast("float", result), node)
        return (
            self.at(cast("unsigned", result), node) if (kind, sign) == ("unsigned", "-") else result
        )

    def arithmetic(self, sign: str, left: ast.expr, right: ast.expr, node: Node) -> ast.expr:
        """Return arithmetic of numbers that may have a sign."""
        functions = {"/": "quotient", "%": "remainder"}
        if sign in functions:
            return self.call(functions[sign], [left, right], node)
        return self.at(ast.BinOp(left, ARITHMETIC[sign](), right), node)

    def comparison(self, node: Node, sign: str, sides: list[Node]) -> ast.expr:
        """Return a comparison; next to a type without a sign, a negative number has no value."""
        kinds = [self.kinds.of(side) for side in sides]
        against_zero = sign in {"==", "!="} and words(sides[1]) == "0"
        values = [self.rest(sides[0]) if against_zero else self.expr(sides[0]), self.expr(sides[1])]
        if set(kinds) == {"int", "unsigned"}:
            place = kinds.index("int")
            values[place] = self.at(cast("unsigned", values[place]), sides[place])
        return self.at(ast.Compare(values[0], [COMPARISONS[sign]()], values[1:]), node)

    def rest(self, node: Node) -> ast.expr:
        """Return an expression that is compared with 0: of `a % b` the sign does not matter."""
        inner = node
        while inner.type == "parenthesized_expression" and inner.named_children:
            inner = next(children(inner))
        if inner.type != "binary_expression" or words(part(inner, "operator")) != "%":
            return self.expr(node)
        left, right = (self.expr(part(inner, name)) for name in ("left", "right"))
        return self.at(ast.BinOp(left, ast.Mod(), right), node)

    def e_cast_expression(self, node: Node) -> ast.expr:
        """Return `(int)x`."""
        return self.as_type(words(part(node, "type")), part(node, "value"), node)

    def as_type(self, name: str, value: Node, node: Node) -> ast.expr:
        """Return a value as a type holds it, if the type is known."""
        if name not in CASTS:
            return self.opaque(node)
        return self.converted(kind_named(name), self.expr(value), value)

    def e_sizeof_expression(self, node: Node) -> ast.expr:
        """Return a call that a leaf may stand for."""
        what = self.at(ast.Constant(" ".join(map(words, children(node)))), node)
        return self.call("sizeof", [what], node)

    def e_initializer_list(self, node: Node) -> ast.expr:
        """Return a tuple."""
        return self.at(ast.Tuple([self.expr(child) for child in children(node)], ast.Load()), node)

    def callee(self, function: Node) -> Found | None:
        """Return the function of these files that is called; None if it is not sure which."""
        name = last_name(function)
        if function.type == "field_expression" or not self.files.defines(name):
            return None
        found = self.files.locate(name)
        scope = words(function.child_by_field_name("scope"))
        if function.type == "qualified_identifier" and scope:
            around = namespaces(found.node)
            return found if scope.split("::")[-1] in around else None
        return found
