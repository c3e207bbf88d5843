"""Steps of a measured curve that neither the work model nor a rule explains."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nearfree.derive.score.engine_steps import UnnamedStep, unnamed_steps

MODEL = {n: 10.0 + n for n in (1, 2, 3, 4)}


def test_a_curve_as_the_model_says_has_none() -> None:
    """A curve equal to the model, and no curve, have no such step."""
    assert unnamed_steps(MODEL, MODEL, ()) == []
    assert unnamed_steps({}, MODEL, ()) == []


def test_a_rise_is_listed_where_it_happens_and_nowhere_behind_it() -> None:
    """A step is listed at its first N only, as a share of T(1)."""
    high = {n: us + (2.0 if n > 2 else 0.0) for n, us in MODEL.items()}
    (steps,) = unnamed_steps(high, MODEL, ())
    assert steps == UnnamedStep(n=3, excess=pytest.approx(2 / 11), since=2)


def test_what_a_rule_names_is_not_listed() -> None:
    """A step at a rule's N is explained, at another N it is not."""
    high = MODEL | {3: MODEL[3] + 3.0}
    assert unnamed_steps(high, MODEL, {3}) == []
    assert [step.n for step in unnamed_steps(high, MODEL, {2, 4})] == [3]


def test_a_rise_is_named_by_a_step_between_its_ends() -> None:
    """If the grid skips the rule's N, the rise to the next N is explained by it."""
    model, curve = {1: 10.0, 8: 12.0, 16: 14.0}, {1: 10.0, 8: 8.0, 16: 14.0}
    (steps,) = unnamed_steps(curve, model, ())
    assert steps == UnnamedStep(n=16, excess=pytest.approx(0.4), since=8)
    assert unnamed_steps(curve, model, {9}) == []
    assert len(unnamed_steps(curve, model, {8})) == 1


@pytest.mark.parametrize(("half", "sure"), [(0.0, True), (1.0, True), (1.8, False)])
def test_a_rise_that_its_interval_leaves_open_is_not_sure(half: float, *, sure: bool) -> None:
    """A rise within the intervals of its ends is not sure."""
    high = MODEL | {3: MODEL[3] + 4.0}
    (steps,) = unnamed_steps(high, MODEL, (), dict.fromkeys(MODEL, half))
    assert (steps.n, steps.sure) == (3, sure)


@given(st.dictionaries(st.integers(1, 40), st.floats(1.0, 2.0), min_size=1), st.floats(-1.0, 0.149))
def test_fifteen_per_cent_are_tolerated(model: dict[int, float], off: float) -> None:
    """A rise of less than 15 % of T(1) at one N is no step."""
    n = max(model)
    first = model[min(model)]
    curve = model | ({n: model[n] + off * first} if len(model) > 1 else {})
    assert unnamed_steps(curve, model, ()) == []
