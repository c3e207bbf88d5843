"""C++'s numbers: literals, casts, and the types of expressions.

Integers are taken as unbounded: no rule here comes near an overflow. But an unsigned type holds no
negative number, and single precision rounds: schedules compare products like 0.8f * n with
integers. The types of fields, items and methods are unknown: a leaf replaces them, and its value
has the type that the source gives it.
"""

import ast
import re
from collections.abc import Callable, Mapping

from tree_sitter import Node

from nearfree.sources.cpp.nodes import part, plain, template_arguments
from nearfree.sources.cpp.source import children, text_of
from nearfree.sources.language.functions import float32

UNSIGNED = frozenset(
    {
        "uint",
        "uint32_t",
        "uint64_t",
        "size_t",
        "std::size_t",
        "unsigned",
        "unsigned int",
        "unsigned long",
        "unsigned long long",
    }
)
SIGNED = frozenset(
    {
        "int",
        "int32_t",
        "int64_t",
        "std::int32_t",
        "std::int64_t",
        "long",
        "long int",
        "long long",
        "signed",
        "signed int",
        "ptrdiff_t",
        "ssize_t",
        "IdType",
    }
)
INTEGERS = SIGNED | UNSIGNED | {"bool"}
CASTS = INTEGERS | {"float", "double"}
COMPARED = frozenset(["<", "<=", ">", ">=", "==", "!=", "&&", "||", "and", "or"])
_CONVERSIONS = {"float": "float32", "double": "float", "int": "int", "unsigned": "unsigned"}
_LITERAL = re.compile(
    r"(?P<hex>0x[0-9a-f]+)|(?P<bin>0b[01]+)|(?P<float>(\d+\.\d*|\.\d+|\d+(?=e))(e[+-]?\d+)?)"
    r"|(?P<oct>0[0-7]*)|(?P<dec>[1-9]\d*)"
)
_SUFFIX = re.compile(r"(?P<float>f)|(?P<long>l)|(?P<unsigned>u(ll?)?|l?lu|z?uz?)|ll|")
_RANKS = ("double", "float", "unsigned", "int")


def literal(text: str) -> tuple[int | float, str] | None:
    """Return a literal's value and kind: `0.8f` is rounded to single precision, `1U` is 1.

    Return None for an unknown literal, such as `0x1p3`.
    """
    text = text.replace("'", "").lower()
    if text.startswith("-"):
        positive = literal(text[1:])
        signed = positive is not None and positive[1] != "unsigned"
        return (-positive[0], positive[1]) if positive is not None and signed else None
    match = _LITERAL.match(text)
    suffix = None if match is None else _SUFFIX.fullmatch(text[match.end() :])
    if match is None or suffix is None:
        return None
    digits = match.group()
    if match["float"]:
        if suffix["unsigned"] or suffix.group() == "ll":
            return None
        value = float(digits)
        return (float32(value), "float") if suffix["float"] else (value, "double")
    if suffix["float"]:
        return None
    base = 16 if match["hex"] else 2 if match["bin"] else 8 if match["oct"] else 10
    kind = "unsigned" if suffix["unsigned"] else "int"
    return int(digits[2:] if base in (2, 16) else digits, base), kind


def kind_named(text: str) -> str:
    """Return the kind of a type's name: one of `_RANKS`, `bool`, or an empty text for any other."""
    if text in UNSIGNED:
        return "unsigned"
    return "int" if text in SIGNED else text if text in {"bool", "float", "double"} else ""


def cast(kind: str, value: ast.expr) -> ast.expr:
    """Return a value converted to a kind."""
    if kind == "bool":
        return ast.Call(ast.Name("bool", ast.Load()), [value], [])
    name = _CONVERSIONS[kind]
    if isinstance(value, ast.Constant) and isinstance(value.value, int | float):
        number = value.value
        if kind == "float":
            return ast.copy_location(ast.Constant(float32(number)), value)
        if kind == "double" or (isinstance(number, int) and number >= 0):
            converted = float(number) if kind == "double" else int(number)
            return ast.copy_location(ast.Constant(converted), value)
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
        inner = value.args[0] if value.args else value
        if value.func.id == name or (kind in {"int", "unsigned"} and value.func.id == "ceil"):
            return value
        is_call = isinstance(inner, ast.Call) and isinstance(inner.func, ast.Name)
        is_rounded = value.func.id in {"float", "float32"} and is_call
        if kind == "int" and is_rounded and ast.unparse(inner).startswith("ceil("):
            return inner
    return ast.Call(ast.Name(name, ast.Load()), [value], [])


class Kinds:
    """The kinds of expressions' types.

    `returned` gives the kind of a call's result; an empty text if it is unknown.
    """

    def __init__(self, names: Mapping[str, str], returned: Callable[[Node], str]) -> None:
        self.names = names
        self.returned = returned

    def of(self, node: Node) -> str:
        """Return an expression's kind, or an empty text if it is unknown."""
        method = getattr(self, f"_{node.type}", None)
        return "" if method is None else str(method(node))

    def _number_literal(self, node: Node) -> str:
        value = literal(text_of(node))
        return "" if value is None else value[1]

    def _true(self, node: Node) -> str:
        del node
        return "bool"

    _false = _true

    def _identifier(self, node: Node) -> str:
        return self.names.get(text_of(node), "")

    def _parenthesized_expression(self, node: Node) -> str:
        return self.of(next(children(node), node)) if node.named_children else ""

    def _sizeof_expression(self, node: Node) -> str:
        del node
        return "unsigned"

    def _unary_expression(self, node: Node) -> str:
        if text_of(node.child_by_field_name("operator")) == "!":
            return "bool"
        return _promoted(self.of(part(node, "argument")))

    def _conditional_expression(self, node: Node) -> str:
        kinds = {self.of(part(node, name)) for name in ("consequence", "alternative")}
        return kinds.pop() if len(kinds) == 1 else _common(kinds)

    def _binary_expression(self, node: Node) -> str:
        sign = text_of(node.child_by_field_name("operator"))
        if sign in COMPARED:
            return "bool"
        kinds = {_promoted(self.of(part(node, name))) for name in ("left", "right")}
        if sign in {"<<", ">>"}:
            return _promoted(self.of(part(node, "left")))
        return _common(kinds)

    def _cast_expression(self, node: Node) -> str:
        return kind_named(text_of(node.child_by_field_name("type")))

    def _call_expression(self, node: Node) -> str:
        function = part(node, "function")
        name = text_of(function)
        if name in CASTS:
            return kind_named(name)
        if name.startswith("static_cast<"):
            types = template_arguments(function)
            return kind_named(text_of(plain(types[0]))) if types else ""
        return self.returned(node)


def _promoted(kind: str) -> str:
    return "int" if kind == "bool" else kind


def _common(kinds: set[str]) -> str:
    """Return the kind of an operation on operands of several kinds.

    An operand of unknown kind is at most an integer, or a leaf: next to single precision the result
    has single precision.
    """
    kinds = {_promoted(kind) for kind in kinds}
    for kind in _RANKS[:2]:
        if kind in kinds:
            return kind
    if "" in kinds:
        return ""
    return "unsigned" if "unsigned" in kinds else "int"
