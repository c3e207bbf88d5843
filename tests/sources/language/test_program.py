"""Leaves: an expression of the source, found by its text, becomes an input."""

import ast

import pytest
from nearfree.sources.language.expressions import UnknownConstructError
from nearfree.sources.language.program import replace_leaves

from sources.language.rules import function

LEAVES = {
    r"get\(.*\)": "device",
    r"(.+)\.bit_length\(\)": r"bit_length(\1)",
    r"env\.CHUNK": "chunk",
    r"is_rocm\(\)": "not cuda",
    r"batch": "batch + 1",
    r"sizes\[0\]": "rows",
}


@pytest.mark.parametrize(
    ("text", "new"),
    [
        ("get(1)", "device"),
        ("get(1).x", "device.x"),
        ("get(1).x.y(2)", "device.x.y(2)"),
        ("get(1).replace('a', 'b')", "device.replace('a', 'b')"),
        ("get(1)(2)", "device(2)"),
        ("get(1)[0](2)", "device[0](2)"),
        ("get(1) + f(2)", "device + f(2)"),
        ("forget(1)", "forget(1)"),
        ("f(get(1), get(2))", "f(device, device)"),
        ("(M + 1).bit_length()", "bit_length(M + 1)"),
        ("M + n.bit_length()", "M + bit_length(n)"),
        ("env.CHUNK * 2", "chunk * 2"),
        ("env.CHUNKS", "env.CHUNKS"),
        ("is_rocm() == 1", "(not cuda) == 1"),
        ("batch * 2", "(batch + 1) * 2"),
        ("sizes[0] - sizes[1]", "rows - sizes[1]"),
        ("'get(1)'", "'get(1)'"),
    ],
)
def test_replaced(text: str, new: str) -> None:
    """A leaf is replaced as a whole; the code around it stays."""
    replaced = replace_leaves(function(f"def f(M):\n    return {text}"), LEAVES)
    assert ast.unparse(replaced) == f"def f(M):\n    return {new}"


def test_targets_stay() -> None:
    """A name that is assigned is no leaf."""
    text = "def f(M):\n    batch = 1\n    sizes[0] = 2"
    assert ast.unparse(replace_leaves(function(text), LEAVES)) == text


def test_places() -> None:
    """A leaf's replacement has the leaf's place."""
    replaced = replace_leaves(function("def f(M):\n\n    return is_rocm()"), LEAVES)
    places = {node.lineno for node in ast.walk(replaced.body[0]) if isinstance(node, ast.expr)}
    assert places == {3}


def test_no_expression() -> None:
    """A replacement that is no expression is an error."""
    with pytest.raises(UnknownConstructError):
        replace_leaves(function("def f(M):\n    return x()"), {r"x\(\)": "1 +"})


def test_the_function_stays() -> None:
    """The function itself is not changed."""
    old = function("def f(M):\n    return batch")
    replace_leaves(old, LEAVES)
    assert ast.unparse(old) == "def f(M):\n    return batch"
