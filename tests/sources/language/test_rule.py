"""A recorded rule: one branch answers, and missing facts are named."""

from typing import Any

import pytest
from nearfree.errors import EvidenceError, SourceError
from nearfree.log.events import Branch, RuleExtracted
from nearfree.sources.language.rule import Rule
from nearfree.sources.language.statements import REFUSED


def rule(*branches: tuple[tuple[str, ...], str], functions: tuple[str, ...] = ()) -> Rule:
    """Return a rule of some conditions and values."""
    return Rule(
        RuleExtracted(
            package="package",
            version="1.0",
            rule="tile",
            symbol="f",
            inputs=("M", "n"),
            branches=tuple(Branch(when=when, value=v, quotes=()) for when, v in branches),
            functions=functions,
            meaning="",
            points=0,
        )
    )


STEPS = rule((("M <= 4",), "n"), (("M > 4", "n > 2"), "2"), (("M > 4", "n <= 2"), "3"))


@pytest.mark.parametrize(("m", "n", "value"), [(1, 9, 9), (5, 3, 2), (5, 2, 3)])
def test_value(m: int, n: int, value: int) -> None:
    """The one branch that applies gives the value."""
    answer = STEPS.value({"M": m, "n": n})
    assert answer.value == value
    assert answer.branch in STEPS.rule.branches


def test_missing() -> None:
    """Only the facts that the answer still depends on are named."""
    assert STEPS.missing({"M": 1}) == {"n"}
    assert STEPS.missing({"n": 1}) == {"M"}
    assert rule((("M <= 4",), "1"), (("M > 4", "n > 2"), "2")).missing({"M": 1}) == set()
    with pytest.raises(EvidenceError, match="depends on n, which is not known"):
        STEPS.value({"M": 5})


def test_no_branch_and_two() -> None:
    """No branch is missing evidence; two are an error of the rule."""
    with pytest.raises(EvidenceError, match="0 branches of tile apply at M=9"):
        rule((("M < 3",), "1")).value({"M": 9})
    with pytest.raises(SourceError, match="2 branches"):
        rule((("M < 3",), "1"), (("M < 4",), "2")).value({"M": 1})


def test_specialised_keeps_what_has_no_value() -> None:
    """A condition without a value stays if an earlier open one may exclude it."""
    guarded = rule((("M > 4", "16 // n > 2"), "1"), (("M <= 4",), "2"))
    assert guarded.specialised({"n": 0}).value({"n": 0, "M": 3}).value == 2
    with pytest.raises(SourceError):
        guarded.specialised({"n": 0}).value({"n": 0, "M": 5})


def test_specialised_drops_what_does_not_apply() -> None:
    """Fixed inputs remove the branches that they exclude."""
    narrow = STEPS.specialised({"M": 5})
    assert [narrow.value({"n": n, "M": 5}).value for n in (1, 3)] == [3, 2]
    assert narrow.missing({"n": 3}) == set()
    assert STEPS.value({"M": 1, "n": 9}).value == 9


def test_nothing_applies_after_narrowing() -> None:
    """What fixed inputs exclude stays excluded."""
    with pytest.raises(EvidenceError):
        rule((("M < 3",), "1")).specialised({"M": 9}).value({"M": 1})


LOOP = (
    "def up(x):\n    for i in range(9):\n        if i >= x:\n"
    "            return i\n    raise ValueError"
)


def test_functions() -> None:
    """A helper with a loop is called; its refusal refuses the call."""
    helped = rule((("up(M) > 3",), "up(M) * 2"), (("up(M) <= 3",), "0"), functions=(LOOP,))
    assert [helped.value({"M": m}).value for m in (2, 4, 99)] == [0, 8, REFUSED]


def test_calls_tell_types_apart() -> None:
    """A helper is called separately for 1, True and 1.0."""
    text = "def kind(x):\n    for i in range(1):\n        x = x\n    return x"
    typed = rule(((), "kind(M)"), functions=(text,))
    values: list[Any] = [typed.value({"M": m}).value for m in (1, True, 1.0)]
    assert [type(value) for value in values] == [int, bool, float]


def test_helpers_do_not_see_inputs() -> None:
    """A helper uses its arguments only."""
    with pytest.raises(SourceError, match="'n' is unknown"):
        rule(((), "g(M)"), functions=("def g(x):\n    return n",)).value({"M": 1, "n": 2})


def test_damaged() -> None:
    """A record that is no Python is an error when it is asked."""
    with pytest.raises(SourceError):
        rule((("M <",), "1")).value({"M": 1})
    with pytest.raises(SourceError):
        rule(((), "f(M)"), functions=("def f(:",)).value({"M": 1})
