"""C++'s numbers: literals, casts, and where single precision rounds.

Integers are taken as unbounded: no rule here comes near an overflow. Single precision matters,
since schedules compare products like 0.8f * n with integers.
"""

import ast
from collections.abc import Mapping

from tree_sitter import Node

from nearfree.sources.expressions import float32

INTEGERS = frozenset(
    "int int32_t int64_t uint32_t uint64_t size_t long unsigned uint bool IdType".split()
)
CASTS = INTEGERS | {"float", "double"}
_ROUNDING = {"+", "-", "*", "/"}


def number(text: str) -> int | float:
    """Return a literal's value: `0.8f` is rounded to single precision, `1U` is 1."""
    plain = text.replace("'", "").lower()
    if plain.startswith("0x"):
        return int(plain.rstrip("ul"), 16)
    if "." in plain or "e" in plain or plain.endswith("f"):
        value = float(plain.rstrip("fl"))
        return float32(value) if plain.endswith("f") else value
    return int(plain.rstrip("ul"))


def cast(kind: str, value: ast.expr) -> ast.expr:
    """Return a value as a float or double holds it."""
    name = "float32" if kind == "float" else "float"
    if isinstance(value, ast.Constant) and isinstance(value.value, int | float):
        rounded = float32(value.value) if kind == "float" else float(value.value)
        return ast.copy_location(ast.Constant(rounded), value)
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == name:
        return value
    return ast.Call(ast.Name(name, ast.Load()), [value], [])


def floating(node: Node, kinds: Mapping[str, str]) -> str:
    """Return `float` or `double` if an expression has that type, else an empty text."""
    text = "" if node.text is None else node.text.decode()
    match node.type:
        case "number_literal":
            if "." not in text:
                return ""
            return "float" if text.lower().endswith("f") else "double"
        case "identifier":
            kind = kinds.get(text, "")
            return kind if kind in {"float", "double"} else ""
        case "parenthesized_expression":
            return floating(node.named_children[0], kinds)
        case "binary_expression":
            return _binary(node, kinds)
        case "call_expression":
            function = node.child_by_field_name("function")
            name = "" if function is None or function.text is None else function.text.decode()
            given = node.child_by_field_name("arguments")
            if name in {"float", "static_cast<float>"}:
                return "float"
            if name in {"ceil", "std::ceil"} and given is not None and given.named_children:
                return floating(given.named_children[0], kinds)
    return ""


def _binary(node: Node, kinds: Mapping[str, str]) -> str:
    sides = [node.child_by_field_name(name) for name in ("left", "right")]
    sign = node.child_by_field_name("operator")
    if sign is None or sign.type not in _ROUNDING:
        return ""
    found = {floating(each, kinds) for each in sides if each is not None}
    return "double" if "double" in found else "float" if "float" in found else ""
