"""Expressions: the closed set, its values, and refusals."""

import ast
from typing import Any

import pytest
from nearfree.sources.language.closures import evaluate
from nearfree.sources.language.expressions import (
    UnknownConstructError,
    checked,
    name_of,
    negated,
    parse,
    same,
    variables,
)
from nearfree.sources.language.functions import float32, quotient, remainder, unsigned

GIVEN = {"M": 7, "block": (64, 128), "none": None, "text": "a b", "flag": True}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("M // 2", 3),
        ("-M // 2", -4),
        ("-M % 4", 1),
        ("remainder(-M, 4)", -3),
        ("quotient(-M, 2)", -3),
        ("quotient(7.0, 2)", 3.5),
        ("M and 5", 5),
        ("0 or M", 7),
        ("M > 3 and 0", 0),
        ("none and none[0]", None),
        ("1 < M < 8", True),
        ("1 < M < 7", False),
        ("M in (1, 7)", True),
        ("M in {1, 7}", True),
        ("{1, 2} == {2, 1}", True),
        ("len({1, 1})", 1),
        ("block[1] - block[0]", 64),
        ("none is None", True),
        ("flag is not None", True),
        ("max(1, M, 3)", 7),
        ("text.replace(' ', '_')", "a_b"),
        ("f'{M},{none}'", "7,None"),
        ("f'{block}'", "(64, 128)"),
        ("{'a': 1, 'b': 2}['b']", 2),
        ("M << 2 | 1", 29),
        ("True + True", 2),
        ("not M", False),
        ("M / 2", 3.5),
        ("len(range(1000))", 1000),
        ("re_sub('[ ]', '_', text)", "a_b"),
        ("tuple([1, 2])", (1, 2)),
    ],
)
def test_value(text: str, value: Any) -> None:
    """A known expression has Python's value, or C++'s where named so."""
    result = evaluate(parse(text), GIVEN)
    assert same(result, value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("10 ** 9", "outside the known set"),
        ("1 << 1000000000", "too large"),
        ("0x" + "f" * 4000 + " * 2", "too large"),
        ("4611686018427387904 * 2", "too large"),
        ("1e308 * 10", "too large"),
        ("float('nan')", "too large"),
        ("float('inf') > 1", "too large"),
        ("text * 1000", "no arithmetic"),
        ("text % 1", "no arithmetic"),
        ("[1] + [2]", "no arithmetic"),
        ("[1] * 1000000000", "no arithmetic"),
        ("(1).__class__", "outside the known set"),
        ("M.bit_length()", "outside the known set"),
        ("text.format(M)", "outside the known set"),
        ("text.__class__", "outside the known set"),
        ("__import__('os')", "unknown"),
        ("open('x')", "unknown"),
        ("eval('1')", "unknown"),
        ("M(1)", "unknown"),
        ("(lambda: 1)()", "outside the known set"),
        ("[x for x in (1,)]", "outside the known set"),
        ("(M := 3)", "outside the known set"),
        ("max(*block)", "outside the known set"),
        ("max(1, key=M)", "outside the known set"),
        ("{**{}}", "outside the known set"),
        ("b'a'", "outside the known set"),
        ("...", "outside the known set"),
        ("1j", "outside the known set"),
        ("~M", "outside the known set"),
        ("M ^ 1", "outside the known set"),
        ("block[0:1]", "outside the known set"),
        ("f'{M:>10}'", "outside the known set"),
        ("f'{M!r}'", "outside the known set"),
        ("M is 7", "no singletons"),
        ("1 // 0", "no value here"),
        ("block[5]", "no value here"),
        ("{'a': 1}['b']", "no value here"),
        ("M < none", "no value here"),
        ("unknown", "unknown"),
        ("tuple(range(1000000000000))", "no value here"),
        ("max(range(1000000000000))", "no value here"),
        ("1.5 in range(1000000000000)", "outside the known set"),
        ("tuple({1, 2})", "no value here"),
        ("str({1, 2})", "no value here"),
        ("re_sub('(a+)+b', '', text)", "no value here"),
        ("re_sub('[z-a]', '', text)", "no value here"),
        ("unsigned(-1)", "no value here"),
        ("float32('a')", "no value here"),
        ("[1].append([2])", "group into a group"),
        ("text.replace('', text.replace('', '" + "x" * 2000 + "'))", "too large"),
    ],
)
def test_refused(text: str, says: str) -> None:
    """An expression outside the set, or without a value, is an error."""
    with pytest.raises(UnknownConstructError, match=says):
        evaluate(parse(text), GIVEN)


@pytest.mark.parametrize(
    "text",
    ["-" * 5000 + "1", "(" * 500 + "1" + ")" * 500, "not " * 3000 + "M", "M +", "9" * 5000, "\0"],
)
def test_parse_refused(text: str) -> None:
    """A text that Python cannot parse as an expression is refused."""
    with pytest.raises(UnknownConstructError):
        evaluate(parse(text), GIVEN)


def test_deep_sum() -> None:
    """A sum of a thousand terms is refused."""
    with pytest.raises(UnknownConstructError):
        evaluate(parse("+".join(["M"] * 5000)), GIVEN)


@pytest.mark.parametrize("op", ["<", "<=", ">", ">=", "==", "!=", "in", "not in", "is", "is not"])
@pytest.mark.parametrize("value", [6, 7, 8])
def test_negated(op: str, value: int) -> None:
    """The negated condition holds if and only if the condition does not."""
    right = "(7, 9)" if "in" in op else "None" if "is" in op else "7"
    node = parse(f"M {op} {right}")
    given = {"M": value}
    assert evaluate(negated(node), given) is not evaluate(node, given)
    assert evaluate(parse(ast.unparse(negated(node))), given) is not evaluate(node, given)


def test_negated_chain() -> None:
    """The opposite of a chained comparison or junction is the negation of the whole."""
    for text in ("1 < M < 5", "M > 1 and M < 5", "M > 1 or M"):
        for value in range(8):
            node = parse(text)
            chain = bool(evaluate(node, {"M": value}))
            assert bool(evaluate(negated(node), {"M": value})) is not chain


def test_variables() -> None:
    """An expression reads names, but not those of the functions that it calls."""
    assert variables(parse("min(M, N[k]) if a else 'x'")) == {"M", "N", "k", "a"}


def test_shadowed_builtin() -> None:
    """A name with a value is no builtin."""
    with pytest.raises(UnknownConstructError, match="'min' is unknown"):
        evaluate(parse("min(1, 2)"), {"min": 3})


@pytest.mark.parametrize(
    ("first", "second", "one"),
    [
        (1, True, False),
        (1, 1.0, False),
        ((1,), (True,), False),
        ([1], (1,), False),
        ((1, "a"), (1, "a"), True),
        ({"a": 1}, {"a": 1.0}, False),
        (None, None, True),
    ],
)
def test_same(first: Any, second: Any, *, one: bool) -> None:
    """Two values are the same only if their types, nested ones included, are."""
    assert same(first, second) is one


def test_checked_groups() -> None:
    """A group that doubles at each step is refused before it is too large."""
    group: tuple[Any, ...] = (1,)
    for _ in range(10):
        group = checked((group, group))
    with pytest.raises(UnknownConstructError, match="too large"):
        checked((group, group))


def test_name_of_a_deep_node() -> None:
    """A message about a deeply nested node names its kind."""
    node: ast.expr = ast.Constant(1)
    for _ in range(5000):
        node = ast.UnaryOp(ast.USub(), node)
    assert "UnaryOp" in name_of(node)


def test_cpp_numbers() -> None:
    """C++'s division truncates, its remainder has the left sign, floats are rounded."""
    assert [quotient(a, b) for a in (7, -7) for b in (2, -2)] == [3, -3, -3, 3]
    assert [remainder(a, b) for a in (7, -7) for b in (4, -4)] == [3, 3, -3, -3]
    assert float32(0.1) != 0.1
    assert unsigned(3) == 3
