"""Arithmetic in arrays: each answered point has the closure's value and type."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nearfree.sources.language.arrays import OPERAND_LIMIT, whole_numbers
from nearfree.sources.language.closures import evaluate
from nearfree.sources.language.expressions import parse

LEAVES = st.sampled_from(["a", "b", "heads", "flag"]) | st.integers(-3, 300).map(str)
OPERATORS = ["+", "-", "*", "//", "%", "<", "<=", "==", "!=", ">", ">=", "/", "and", "or", "<<"]
EXPRESSIONS = st.recursive(
    LEAVES,
    lambda parts: st.one_of(
        st.builds("({} {} {})".format, parts, st.sampled_from(OPERATORS), parts),
        st.builds("quotient({}, {})".format, parts, parts),
        st.builds("(not {})".format, parts),
    ),
    max_leaves=6,
)
POINTS = st.lists(
    st.tuples(
        st.integers(-9, 9) | st.integers(-OPERAND_LIMIT, OPERAND_LIMIT), st.integers(-3, 400)
    ),
    min_size=1,
    max_size=6,
)


@given(EXPRESSIONS, POINTS)
def test_each_point_has_the_value_of_a_closure(text: str, points: list[tuple[int, int]]) -> None:
    """For any expression, arrays give the closures' values or no answer."""
    constants = {"heads": 32, "flag": True}
    columns = dict(zip("ab", np.array(points, np.int64).T, strict=True))
    found = whole_numbers(parse(text), {**constants, **columns})
    if found is None:
        return
    values = np.broadcast_to(found, len(points)).tolist()
    plain = [evaluate(parse(text), {**constants, "a": a, "b": b}) for a, b in points]
    assert values == plain
    assert [*map(type, values)] == [*map(type, plain)]


@pytest.mark.parametrize(
    "text", ["(a * 4 + 127) // 128", "quotient(a, 64) > 7", "not (a % b == 0 and a > 1 or b < 3)"]
)
def test_what_rules_are_made_of_is_known(text: str) -> None:
    """Sizes of tiles and their bounds are evaluated in arrays."""
    columns = {"a": np.arange(1, 100), "b": np.arange(1, 100)}
    assert whole_numbers(parse(text), columns) is not None


@pytest.mark.parametrize(
    "text", ["a / 2", "a // 0", "quotient(-a, 3)", "a * a * a", "true + a", "c", "a and b"]
)
def test_what_is_not_known_is_left_to_closures(text: str) -> None:
    """Other types, divisors of 0 and large numbers have no answer in arrays."""
    columns = {"a": np.array([1, OPERAND_LIMIT]), "true": True}
    assert whole_numbers(parse(text), columns) is None
