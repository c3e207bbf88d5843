"""Thresholds: where a rule may change along one number."""

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from nearfree.sources.language.rule import Rule
from nearfree.sources.language.thresholds import UnsettledError, change_points, identity_limit

from sources.moe_release import made_release


@cache
def rules() -> dict[str, Rule]:
    """Return the rules of the made-up release by name, read once and not while collecting."""
    return made_release().by_name()


def rule(*branches: tuple[str, str]) -> Rule:
    """Return a rule of branches: a condition, none where empty, and a value."""
    one = rules()["block_size_m"].rule
    made = [
        replace(one.branches[0], when=(when,) if when else (), value=value)
        for when, value in branches
    ]
    return Rule(replace(one, branches=tuple(made), functions=()))


@given(limit=st.integers(0, 60), top_k=st.integers(1, 9), last=st.integers(1, 50))
def test_each_turn_is_found(limit: int, top_k: int, last: int) -> None:
    """The number after which a comparison turns is named, and no other."""
    points = change_points(
        rule(("M * k <= E", "16"), ("not M * k <= E", "64")), {"E": limit, "k": top_k}, "M", last
    )
    assert points == [
        n for n in range(2, last + 1) if (n * top_k <= limit) != ((n - 1) * top_k <= limit)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("when", ["M % 4 == 0", "M == 3", "E - M > 3", "E > M"])
def test_what_may_turn_twice_is_not_told(when: str) -> None:
    """Where a comparison is not known to rise with the number, each must be asked."""
    with pytest.raises(UnsettledError):
        change_points(rule((when, "16"), (f"not ({when})", "64")), {"E": 9}, "M", 50)


def test_a_value_of_the_number_is_not_told() -> None:
    """A value that is made of the number may change anywhere."""
    with pytest.raises(UnsettledError):
        change_points(rule(("", "min(M, 64)")), {}, "M", 50)


@pytest.mark.parametrize(
    ("value", "most"), [("M", float("inf")), ("min(M, 32)", 32), ("M + 1", 0), ("E", 0)]
)
def test_a_number_may_be_its_own_answer(value: str, most: float) -> None:
    """Up to the bound of a minimum a rule says the number itself."""
    assert identity_limit(rule(("", value)), "M") == most
