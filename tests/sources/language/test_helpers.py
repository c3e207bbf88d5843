"""Helpers that are called many times: cached calls never change a result."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nearfree.errors import UnknownConstructError
from nearfree.sources.language.expressions import same
from nearfree.sources.language.interpret import Helpers, Interpreter
from nearfree.sources.language.program import Program
from nearfree.sources.language.rule import parse_functions
from nearfree.sources.language.statements import REFUSED

BEST = """def best(x, y, most):
    if x >= 40:
        return 1
    found = []
    top = 0

    def halves(n):
        return quotient(n + y, 2)
    for i in range(1, most + 1):
        if halves(i) % 3 == 0:
            found.append(0.0)
            continue
        if i > 50:
            break
        value = float32(quotient(float32(i * x), y))
        if value > top:
            top = value
        found.append(value)
    for i in range(0, len(found)):
        if found[i] >= 0.85 * top:
            return i
    raise ValueError
"""
WAYS = {
    "refuses": "def f(x, y, most):\n    if x > 3:\n        raise ValueError\n    return y",
    "asserts": "def f(x, y, most):\n    assert x\n    return most",
    "changes": "def f(x, y, most):\n    x += y\n    return (x, most)",
    "ends nowhere": "def f(x, y, most):\n    for i in range(0, 3):\n        x = x * y",
    "calls itself": "def f(x, y, most):\n    return f(x, y, most)",
    "has a default": "def f(x, y, most, more=4):\n    return x + more",
    "hides a builtin": "def f(x, y, most):\n    max = x\n    return max(y, most)",
    "keeps lists": "def f(x, y, most):\n    a = [x]\n    a.append(y)\n    return a[0] + len(a)",
    "best": BEST.replace("def best", "def f"),
}
arguments = st.tuples(
    st.integers(-2, 60) | st.booleans(),
    st.integers(0, 5) | st.sampled_from([2.0, -0.0, 0.0]),
    st.integers(0, 130),
)


def interpreted(functions: dict[str, Any], given: tuple[Any, ...]) -> Any:
    """Return the interpreter's value, or a list for an error."""
    try:
        return Interpreter(Program(functions)).call("f", list(given))
    except UnknownConstructError:
        return []


@pytest.mark.parametrize("way", WAYS)
@given(calls=st.lists(arguments, min_size=1, max_size=6))
def test_a_helper_says_what_the_interpreter_says(way: str, calls: list[tuple[Any, ...]]) -> None:
    """Each call has the interpreter's value or error."""
    functions = {helper.name: helper for helper in parse_functions(WAYS[way])}
    helpers = Helpers(functions)
    for given_ in calls:
        try:
            value = helpers.value("f", list(given_))
        except UnknownConstructError:
            value = []
        assert same(value, interpreted(functions, given_)), given_


def test_arguments_that_are_not_read_change_nothing() -> None:
    """A call that agrees with an earlier one in all that was read is not run again."""
    text = "def f(x, y):\n    if x > 3:\n        return 1\n    return y"
    helpers = Helpers({helper.name: helper for helper in parse_functions(text)})
    assert [helpers.value("f", [x, y]) for x, y in ((9, 1), (9, 2), (2, 1), (2, 2))] == [1, 1, 1, 2]
    assert {places: len(known) for places, known in helpers.results_of("f", 2).items()} == {
        (0,): 1,
        (0, 1): 2,
    }


def test_a_helper_that_does_not_end_is_an_error() -> None:
    """The interpreter's limit on steps holds."""
    text = "def f(x):\n    for i in range(0, x):\n        for j in range(0, x):\n            k = i"
    helpers = Helpers({helper.name: helper for helper in parse_functions(text)})
    with pytest.raises(UnknownConstructError, match="does not end"):
        helpers.value("f", [4000])


def test_a_refusal_is_a_value() -> None:
    """A helper that ends in the backend's error returns a refusal."""
    helpers = Helpers({helper.name: helper for helper in parse_functions(WAYS["refuses"])})
    assert helpers.value("f", [5, 1, 1]) == REFUSED
