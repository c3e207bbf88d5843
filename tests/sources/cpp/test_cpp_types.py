"""C++'s numbers: literals, and the type of an expression."""

import ast

import pytest
from nearfree.sources.cpp.source import parse, walk
from nearfree.sources.cpp.types import Kinds, cast, literal
from nearfree.sources.language.closures import evaluate
from nearfree.sources.language.functions import float32


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", (0, "int")),
        ("-1", (-1, "int")),
        ("1'000", (1000, "int")),
        ("12U", (12, "unsigned")),
        ("12ull", (12, "unsigned")),
        ("12L", (12, "int")),
        ("0x1F", (31, "int")),
        ("0xEu", (14, "unsigned")),
        ("0b101", (5, "int")),
        ("017", (15, "int")),
        ("1.", (1.0, "double")),
        (".5", (0.5, "double")),
        ("1e3", (1000.0, "double")),
        ("1e-3", (0.001, "double")),
        ("0.1f", (float32(0.1), "float")),
        ("1e-3f", (float32(0.001), "float")),
        ("08", None),
        ("0x1p3", None),
        ("1_km", None),
        ("1.0u", None),
        ("-1u", None),
        ("1f", None),
    ],
)
def test_literal(text: str, value: tuple[float, str] | None) -> None:
    """A literal has C++'s value and type, or is unknown."""
    assert literal(text) == value


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("i + 1", "int"),
        ("i + u", "unsigned"),
        ("i * 0.5f", "float"),
        ("i * 0.5", "double"),
        ("x * 0.5f", "double"),
        ("f * 2", "float"),
        ("b + b", "int"),
        ("i < u", "bool"),
        ("b && i", "bool"),
        ("!i", "bool"),
        ("-b", "int"),
        ("(f)", "float"),
        ("b ? 1 : 2.5", "double"),
        ("b ? 1 : 2", "int"),
        ("int(f)", "int"),
        ("(float)i", "float"),
        ("static_cast<uint32_t>(i)", "unsigned"),
        ("sizeof(int)", "unsigned"),
        ("p.y", ""),
        ("i + p.y", ""),
        ("v[0]", ""),
        ("unknown", ""),
    ],
)
def test_kind(text: str, kind: str) -> None:
    """An expression has C++'s common type; fields, items and unknown names have none."""
    names = {"i": "int", "u": "unsigned", "f": "float", "x": "double", "b": "bool"}
    root = parse(f"void g() {{ y = {text}; }}")
    node = next(node for node in walk(root) if node.type == "assignment_expression")
    right = node.child_by_field_name("right")
    assert right is not None
    assert Kinds(names, lambda _: "").of(right) == kind


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("int", "2.75", 2),
        ("int", "-2.75", -2),
        ("double", "2", 2.0),
        ("float", "0.1", float32(0.1)),
        ("bool", "3", True),
        ("unsigned", "3", 3),
        ("int", "float(ceil(2.5))", 3),
        ("float", "float(2)", 2.0),
    ],
)
def test_cast(kind: str, text: str, value: float) -> None:
    """A cast gives what a variable of that type holds."""
    node = ast.fix_missing_locations(cast(kind, ast.parse(text, mode="eval").body))
    result = evaluate(node, {})
    assert result == value
    assert type(result) is type(value)
