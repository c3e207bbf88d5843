"""Rules of random functions: branches, interpreter and Python agree."""

import ast
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nearfree.errors import SourceError
from nearfree.log.events import RuleExtracted
from nearfree.sources.language.expressions import UnknownConstructError, parse, same
from nearfree.sources.language.interpret import Interpreter
from nearfree.sources.language.paths import enumerate_paths, without_implied_bounds
from nearfree.sources.language.rule import Rule
from nearfree.sources.language.statements import REFUSED

from sources.language.rules import python_program

NAMES = ("M", "N", "a", "b", "c")
HELPERS = """
def pick(x, y=3):
    if x > y:
        return x - y
    elif x == y:
        return 0
    return y % 5 + 1

def grow(x):
    n = 1
    for i in range(6):
        if n >= x:
            return n
        n *= 2
    return n

def strict(x):
    assert x < 50
    return x + 1

"""
POINTS = [(m, n) for m in (1, 2, 3, 4, 7, 8, 16, 33, 60) for n in (1, 3, 8)]
small = st.integers(-3, 9).map(str)
names = st.sampled_from(NAMES)


def _both(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    arithmetic = st.tuples(inner, st.sampled_from(["+", "-", "*", "//", "%"]), inner)
    guarded = arithmetic.map(
        lambda t: f"({t[0]} {t[1]} ({t[2]} or 1))" if t[1] in "//%" else f"({t[0]} {t[1]} {t[2]})"
    )
    choice = st.tuples(inner, conditions(inner), inner).map(
        lambda t: f"({t[0]} if {t[1]} else {t[2]})"
    )
    junction = st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(
        lambda t: f"({' '.join(t)})"
    )
    called = st.tuples(st.sampled_from(["pick", "grow", "strict", "abs"]), inner)
    two = st.tuples(st.sampled_from(["min", "max", "pick"]), inner, inner)
    return st.one_of(
        guarded,
        choice,
        junction,
        called.map(lambda t: f"{t[0]}({t[1]})"),
        two.map(lambda t: f"{t[0]}({t[1]}, {t[2]})"),
    )


def conditions(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Draw comparisons of expressions, chained and joined ones included."""
    signs = st.sampled_from(["<", "<=", ">", ">=", "==", "!="])
    plain = st.tuples(inner, signs, small).map(" ".join)
    chained = st.tuples(small, inner, small).map(" < ".join)
    member = st.tuples(inner, small, small).map(lambda t: f"{t[0]} in ({t[1]}, {t[2]})")
    one = st.one_of(plain, chained, member)
    joined = st.tuples(one, st.sampled_from(["and", "or", "and not", "or not"]), one)
    return st.one_of(
        one, joined.map(lambda t: f"{t[0]} {t[1]} ({t[2]})"), one.map(lambda t: f"not {t}")
    )


expressions = st.recursive(st.one_of(small, names), _both, max_leaves=4)
tests = conditions(expressions)


@st.composite
def blocks(draw: st.DrawFn, depth: int, *, loop: bool = False) -> list[str]:
    """Return lines of statements."""
    lines: list[str] = []
    for _ in range(draw(st.integers(1, 3))):
        kinds = ["set", "add", "if", "for", "dict", "list", "return"] if depth else ["set", "add"]
        kind = draw(st.sampled_from(kinds + (["leave"] if loop else [])))
        name, value = draw(names), draw(expressions)
        match kind:
            case "set":
                lines.append(f"{name} = {value}")
            case "add":
                lines.append(f"{name} {draw(st.sampled_from(['+=', '-=', '*=']))} {draw(small)}")
            case "if":
                lines.append(f"if {draw(tests)}:")
                lines += _inside(draw(blocks(depth - 1, loop=loop)))
                for _ in range(draw(st.integers(0, 2))):
                    lines.append(f"elif {draw(tests)}:")
                    lines += _inside(draw(blocks(depth - 1, loop=loop)))
                if draw(st.booleans()):
                    lines += ["else:", *_inside(draw(blocks(depth - 1, loop=loop)))]
            case "for":
                items = draw(st.lists(st.one_of(small, names), min_size=1, max_size=3))
                lines.append(f"for {name} in [{', '.join(items)}]:")
                lines += _inside(draw(blocks(depth - 1, loop=True)))
            case "dict":
                lines += [f"d = {{'x': {value}}}", "e = d", f"e['x'] = {name}", f"{name} = d['x']"]
            case "list":
                lines += [f"g = [1, {value}]", f"g.append({name})", f"{name} = len(g) + g[1]"]
            case "return":
                lines += [f"if {draw(tests)}:", f"    return {value}"]
            case _:
                lines += [
                    f"if {draw(tests)}:",
                    f"    {draw(st.sampled_from(['break', 'continue']))}",
                ]
    return lines


def _inside(lines: list[str]) -> list[str]:
    return [f"    {line}" for line in lines]


@st.composite
def functions(draw: st.DrawFn) -> str:
    """Draw the text of a function of M and N in the known set."""
    answer = draw(st.sampled_from(["a", "(a, b)", "a if M > 4 else (b, 'x')", "f'{a}:{b}'"]))
    body = ["a, b, c = 0, 1, M", *draw(blocks(2)), f"return {answer}"]
    return HELPERS + "def f(M, N):\n" + "\n".join(_inside(body)) + "\n"


def python_value(text: str, **inputs: Any) -> Any:
    """Return Python's value of a text made here."""
    space: dict[str, Any] = {}
    exec(text, space)  # noqa: S102  # made by this test
    try:
        return space["f"](**inputs)
    except AssertionError:
        return REFUSED


def rule_of(text: str) -> Rule:
    """Return a rule read by its branches only."""
    program = python_program(text)
    branches, called = enumerate_paths(program, "f", {"M", "N"})
    from nearfree.sources.language.reading import reachable

    return Rule(
        RuleExtracted(
            package="package",
            version="1.0",
            rule="rule",
            symbol="f",
            inputs=("M", "N"),
            branches=tuple(branches),
            functions=tuple(ast.unparse(program.functions[n]) for n in reachable(program, called)),
            meaning="",
            points=0,
        )
    )


LIMITS = settings(
    max_examples=60, deadline=None, derandomize=True, suppress_health_check=[*HealthCheck]
)


@pytest.mark.slow
@LIMITS
@given(functions())
def test_three_ways(text: str) -> None:
    """If a function is read, its branches, the interpreter and Python agree."""
    try:
        rule = rule_of(text)
    except UnknownConstructError:
        return
    program = python_program(text)
    for m, n in POINTS:
        inputs = {"M": m, "N": n}
        value = python_value(text, **inputs)
        assert same(Interpreter(program).run("f", inputs), value), (text, inputs)
        assert same(rule.value(inputs).value, value), (text, inputs)


@LIMITS
@given(functions())
def test_specialised(text: str) -> None:
    """A rule with some inputs fixed answers as the whole rule does."""
    try:
        rule = rule_of(text)
    except UnknownConstructError:
        return
    for n in (1, 3, 8):
        narrow = rule.specialised({"N": n})
        for m in (1, 2, 7, 16, 60):
            inputs = {"M": m, "N": n}
            unspecialised, part = rule.value(inputs), narrow.value(inputs)
            assert same(unspecialised.value, part.value)
            assert unspecialised.branch == part.branch


@pytest.mark.slow
def test_most_functions_are_read() -> None:
    """Nearly all random functions are read, so that the properties are tested."""
    count = {"read": 0, "all": 0}

    @settings(LIMITS, max_examples=60)
    @given(functions())
    def read(text: str) -> None:
        count["all"] += 1
        try:
            rule_of(text)
        except UnknownConstructError:
            return
        count["read"] += 1

    read()
    assert count["read"] > 0.7 * count["all"]


@pytest.mark.parametrize(
    ("when", "tightest"),
    [
        (["M > 3", "M > 5"], ["M > 5"]),
        (["M > 5", "M > 3"], ["M > 5", "M > 3"]),
        (["M <= 9", "M <= 4"], ["M <= 4"]),
        (["M > 3", "M >= 5"], ["M > 3", "M >= 5"]),
        (["M > 3", "N > 5"], ["M > 3", "N > 5"]),
        (["M == 3", "M > 2"], ["M == 3", "M > 2"]),
    ],
)
def test_tightest(when: list[str], tightest: list[str]) -> None:
    """Of several bounds on one expression the tightest is kept."""
    assert [
        ast.unparse(bound) for bound in without_implied_bounds([parse(text) for text in when])
    ] == tightest


def test_least() -> None:
    """Paths that need less than an input's least value are left out."""
    program = python_program("def f(M):\n    if M <= 0:\n        return 1\n    return 2")
    assert len(enumerate_paths(program, "f", {"M"})[0]) == 2
    branches, _ = enumerate_paths(program, "f", {"M"}, {"M": 1})
    assert [branch.value for branch in branches] == ["2"]


def test_known_decisions_are_not_taken_twice() -> None:
    """A condition that an earlier one decides gives no further path."""
    text = (
        "def f(M):\n    if M > 8:\n        return 1 if M > 4 else 2\n"
        "    return 3 if not M > 8 else 4"
    )
    branches, _ = enumerate_paths(python_program(text), "f", {"M"})
    assert [branch.value for branch in branches] == ["1", "3"]


def test_source_error() -> None:
    """What cannot be followed is an error of the source."""
    with pytest.raises(SourceError):
        enumerate_paths(python_program("def f(M):\n    return M.x"), "f", {"M"})
