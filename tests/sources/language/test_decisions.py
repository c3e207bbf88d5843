"""Decisions: a comparison that earlier ones decide has the right value."""

from hypothesis import given
from hypothesis import strategies as st
from nearfree.sources.language.closures import evaluate
from nearfree.sources.language.decisions import Bounds
from nearfree.sources.language.expressions import parse

NAMES = ("a", "b")
numbers = st.integers(-6, 6)
terms = st.recursive(
    st.one_of(st.sampled_from(NAMES), numbers.map(str)),
    lambda inner: st.tuples(inner, st.sampled_from("+-*"), inner).map(" ".join).map("({})".format),
    max_leaves=4,
)
comparisons = st.tuples(terms, st.sampled_from(["<", "<=", ">", ">=", "==", "!="]), terms).map(
    " ".join
)


@given(st.lists(comparisons, max_size=4), comparisons, st.tuples(numbers, numbers))
def test_what_is_settled_holds(known: list[str], condition: str, point: tuple[int, int]) -> None:
    """A decided condition has its value wherever the earlier decisions hold."""
    inputs = dict(zip(NAMES, point, strict=True))
    bounds = Bounds({"a": inputs["a"]})
    for text in known:
        bounds.learn(parse(text), answer=bool(evaluate(parse(text), inputs)))
    settled = bounds.truth(parse(condition))
    assert settled is None or settled == evaluate(parse(condition), inputs)


def test_decisions_settle_later_ones() -> None:
    """Narrower bounds decide wider ones; sizes are not negative."""
    bounds = Bounds({"n": 1})
    bounds.learn(parse("d <= 64"), answer=False)
    truths = {text: bounds.truth(parse(text)) for text in ("d <= 32", "d > 64", "d < 100")}
    assert truths == {"d <= 32": False, "d > 64": None, "d < 100": None}
    assert bounds.truth(parse("-1 >= n - 1")) is False
    assert bounds.truth(parse("0 >= n - 1")) is None
    assert bounds.truth(parse("n + d == n + d")) is True
