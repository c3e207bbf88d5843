"""Expressions as closures return what Python returns."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nearfree.errors import UnknownConstructError
from nearfree.sources.language.closures import NO_VALUE, Closures, Fixed, evaluate, refuse_call
from nearfree.sources.language.expressions import parse, same
from nearfree.sources.language.functions import BUILTINS

NUMBERS = ("0", "1", "7", "-3", "True", "None", "0.5", "4611686018427387904", "'fp8'")
NAMES = ("M", "n", "flag", "shape")
leaves = st.sampled_from([*NUMBERS, *NAMES])


def _joined(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    binary = st.sampled_from(["+", "-", "*", "//", "%", "/", "<<", "|", "and", "or"])
    compared = st.sampled_from(["<", "<=", "==", "!=", ">", "is", "is not", "in"])
    called = st.sampled_from(["quotient", "remainder", "min", "max"])
    alone = st.sampled_from(["not ({})", "-({})", "({})[0]", "float32({})", "int({})", "ceil({})"])
    return st.one_of(
        st.builds("({} {} {})".format, parts, binary, parts),
        st.builds("({} {} {} {} {})".format, parts, compared, parts, compared, parts),
        st.builds("({} {} {})".format, parts, compared, parts),
        st.builds("({} if {} else {})".format, parts, parts, parts),
        st.builds("{}({}, {})".format, called, parts, parts),
        st.builds("({}, {})".format, parts, parts),
        st.builds(str.format, alone, parts),
    )


texts = st.recursive(leaves, _joined, max_leaves=12)
inputs = st.fixed_dictionaries(
    {
        "M": st.integers(-5, 300) | st.integers(2**61, 2**64),
        "n": st.integers(0, 9),
        "flag": st.booleans() | st.none(),
        "shape": st.sampled_from([None, (128, 128), (0, 64)]),
    }
)


def outcome(text: str, names: dict[str, Any]) -> Any:
    """Return the evaluator's value, or a list for a refusal."""
    try:
        return evaluate(parse(text), names)
    except UnknownConstructError:
        return []


@given(texts, inputs, st.sets(st.sampled_from(NAMES)))
@pytest.mark.filterwarnings("ignore::SyntaxWarning")
def test_a_closure_says_what_python_says(
    text: str, names: dict[str, Any], settled: set[str]
) -> None:
    """Value and type are Python's, for any fixed names."""
    fixed = {name: names[name] for name in settled}
    expected = outcome(text, names)
    try:
        answer = Closures(fixed, refuse_call, ()).of(parse(text))(names)
    except NO_VALUE:
        assert expected == []
        return
    assert same(answer, expected), (answer, expected)
    assert same(answer, eval(text, {"__builtins__": {}} | BUILTINS | names))  # noqa: S307  # our own


@pytest.mark.parametrize("text", ["M + 1", "4 * M // 3", "M > 2 or n > 1", "(M, n)", "min(M, 7)"])
def test_what_is_settled_is_worked_out(text: str) -> None:
    """With all names fixed a closure is a constant."""
    closure = Closures({"M": 5, "n": 2}, refuse_call, ()).of(parse(text))
    assert isinstance(closure, Fixed)
    assert closure({}) == evaluate(parse(text), {"M": 5, "n": 2})


@pytest.mark.parametrize("text", ["M * M", "M + M", "-M - M", "M / 0.1", "4 * M // 2"])
def test_a_large_number_is_no_value(text: str) -> None:
    """Numbers beyond 2**62 in magnitude are refused."""
    names = {"M": 2**61 + 1}
    assert outcome(text, names) == []
    with pytest.raises(NO_VALUE):
        Closures({}, refuse_call, ()).of(parse(text))(names)


def test_what_is_not_reached_is_not_evaluated() -> None:
    """A part without a value counts only if Python would evaluate it."""
    closure = Closures({"n": 0}, refuse_call, ()).of(parse("M > 4 and 16 // n > 2"))
    assert closure({"M": 3, "n": 0}) is False
    with pytest.raises(NO_VALUE):
        closure({"M": 5, "n": 0})
