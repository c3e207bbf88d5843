"""Cuts: one value of a long function with all that it depends on, or an error."""

import ast

import pytest
from nearfree.errors import SourceError
from nearfree.sources.language.cuts import argument_of, arguments_of, calls_of, value_of
from nearfree.sources.language.interpret import Interpreter
from nearfree.sources.language.program import Program

from sources.language.rules import function, read_python, reading


def cut(body: str, stop: frozenset[str] = frozenset({"M"})) -> str:
    """Return the statements that the value of `x` depends on."""
    text = "def f(n):\n" + "\n".join(f"    {line}" for line in body.splitlines())
    return "\n".join(map(ast.unparse, value_of(function(text), "x", stop).body))


@pytest.mark.parametrize(
    ("body", "left"),
    [
        ("x = M", "x = M\nreturn x"),
        (
            "a = M\nb = a\nc = b + a\ny = 3\nx = c + b",
            "a = M\nb = a\nc = b + a\nx = c + b\nreturn x",
        ),
        ("if y:\n    x = M", "x = M\nreturn x"),
        ("M = 5\nx = M", "x = M\nreturn x"),
    ],
)
def test_value_of(body: str, left: str) -> None:
    """The cut has the needed assignments in the source's order."""
    assert cut(body) == left


@pytest.mark.parametrize(
    "body",
    [
        "y = 1",
        "x = M\nx = 2",
        "x = M\nif y:\n    x = x and z",
        "x = M\nx += 1",
        "a = 1\na = 2\nx = a",
        "a = 1\na += 2\nx = a",
        "a = 1\nfor a in (1, 2):\n    pass\nx = a",
        "a, b = 1, 2\nx = a",
        "a: int = 1\nx = a",
        "a = 1\nif (a := 2):\n    pass\nx = a",
        "n = 3\nx = n",
        "a = []\na.append(M)\nx = len(a)",
        "a = [1]\na[0] = M\nx = a[0]",
        "a = 1\nwith y as a:\n    pass\nx = a",
    ],
)
def test_value_of_refused(body: str) -> None:
    """A name that is set in several ways, or changed in place, is refused."""
    with pytest.raises(SourceError):
        cut(body)


CALLEE = "def g(a, b=2):\n    return a"


@pytest.mark.parametrize(("call", "text"), [("g(1, M)", "M"), ("g(1, b=M + 1)", "M + 1")])
def test_argument_of(call: str, text: str) -> None:
    """An argument is found by position and by name."""
    callee = ast.parse(CALLEE).body[0]
    assert isinstance(callee, ast.FunctionDef)
    argument = argument_of(function(f"def f(M):\n    y = {call}"), callee, "b")
    assert ast.unparse(argument.body[0]) == f"return {text}"


@pytest.mark.parametrize("body", ["g(1)", "g(1, 2), g(3, 4)", "h(1, 2)"])
def test_argument_of_refused(body: str) -> None:
    """An argument that is missing, or given twice, is an error."""
    callee = ast.parse(CALLEE).body[0]
    assert isinstance(callee, ast.FunctionDef)
    with pytest.raises(SourceError, match="times its b"):
        argument_of(function(f"def f(M):\n    {body}"), callee, "b")


def test_arguments_of() -> None:
    """A function cut before a call returns the call's arguments."""
    text = "def f(M):\n    n = M * 2\n    if M > 3:\n        y = g(n, k=M)\n    return 7"
    short = arguments_of(function(text), "g")
    program = Program({"f": short})
    assert [Interpreter(program).run("f", {"M": m}) for m in (2, 5)] == [7, (10, 5)]
    with pytest.raises(SourceError, match="does not call h"):
        arguments_of(function(text), "h")
    with pytest.raises(SourceError, match="twice"):
        arguments_of(function("def f(M):\n    y = g(1) + g(2)"), "g")


def test_cuts_are_rules() -> None:
    """A cut can be read and quoted like a whole function."""
    value = value_of(function("def f(M):\n    a = 2\n\n    x = M * a"), "x", frozenset({"M"}))
    from nearfree.sources.language.reading import read_rule

    rule = read_rule(reading(Program({value.name: value}), value.name), "package", "1.0")
    assert rule.branches[0].value == "M * 2"
    assert rule.branches[0].quotes[-1].lines == (4, 4)
    assert rule.meaning == read_python("def f(M):\n    return 2 * M").meaning


def test_calls() -> None:
    """Calls by a plain name are found, calls of methods are not."""
    assert len(calls_of(function("def f(M):\n    return g(g(1)) + a.g(2)"), "g")) == 2
