"""Rules at many points: equivalent points share one answer, and errors are never kept."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nearfree.errors import EvidenceError, SourceError
from nearfree.log.events import Branch, RuleExtracted
from nearfree.sources.language.closures import NO_VALUE
from nearfree.sources.language.expressions import same
from nearfree.sources.language.points import (
    answer_codes,
    column,
    combined_codes,
    distinguishing_codes,
)
from nearfree.sources.language.rule import Rule

HELPER = (
    "def up(x, y):\n    for i in range(0, 9):\n        if i >= x:\n            return i + y\n"
    "    raise ValueError"
)
VALUES = (
    "M // 3 + n * M",
    "(n, M % 5, 'a')",
    "M if n > 2 and M // n > 3 else n",
    "up(M // 40, n) + up(n, 1)",
    "16 // (n - 3) if n != 3 or M > 99 else 0",
    "M * n * 40000000000000000",
    "float32(M / n) if n > 0 else -1.0",
)
WHENS = (("M <= 64", "M > 64"), ("M > n * 20", "not M > n * 20"), ("M > 3", "M <= 4"))
numbers = st.lists(st.tuples(st.integers(1, 400), st.integers(0, 5)), min_size=1, max_size=30)


def rule(when: tuple[str, str], values: tuple[str, str]) -> Rule:
    """Return a rule of two branches."""
    return Rule(
        RuleExtracted(
            package="package",
            version="1.0",
            rule="tile",
            symbol="f",
            inputs=("M", "n"),
            branches=tuple(
                Branch(when=(condition,), value=value, quotes=())
                for condition, value in zip(when, values, strict=True)
            ),
            functions=(HELPER,),
            meaning="",
            points=0,
        )
    )


@given(st.sampled_from(WHENS), st.tuples(st.sampled_from(VALUES), st.sampled_from(VALUES)), numbers)
def test_points_of_a_kind_have_one_answer(
    when: tuple[str, str], values: tuple[str, str], points: list[tuple[int, int]]
) -> None:
    """Equal codes mean equal scalar answers."""
    points_rule = rule(when, values)
    m, n = (np.array(column, np.int64) for column in zip(*points, strict=True))
    try:
        codes, most = answer_codes(points_rule, {}, {"M": column(m), "n": column(n)})
    except NO_VALUE:
        codes = None
    answers: dict[int, Any] = {}
    plain = True
    for place, (one, other) in enumerate(points):
        try:
            answer = points_rule.value({"M": one, "n": other})
        except (EvidenceError, SourceError):
            plain = False
            continue
        if codes is not None:
            assert codes[place] < most
            first_answer = answers.setdefault(int(codes[place]), answer)
            assert same(first_answer.value, answer.value)
            assert first_answer.branch is answer.branch
    assert plain or codes is None


@given(st.sampled_from(WHENS), numbers, st.integers(0, 5))
def test_what_a_rule_compares_tells_its_answers_apart(
    when: tuple[str, str], points: list[tuple[int, int]], n: int
) -> None:
    """Points with equal comparisons take the same branch."""
    points_rule = rule(when, ("1", "2"))
    m = np.array([point for point, _ in points], np.int64)
    for inputs in ({"n": n}, {}):
        codes, _ = combined_codes(distinguishing_codes(points_rule, inputs, {"M": column(m)}))
        branches = dict[int, set[object]]()
        for code, number in zip(codes.tolist(), m.tolist(), strict=True):
            try:
                answer: object = points_rule.value({"M": number, "n": n}).value
            except (EvidenceError, SourceError) as error:
                answer = type(error)
            branches.setdefault(code, set()).add(answer)
        assert all(len(answers_of_code) == 1 for answers_of_code in branches.values())


def test_a_part_is_evaluated_once_a_value() -> None:
    """A helper is called once per distinct arguments."""
    points_rule = rule(("M > 0", "M <= 0"), ("up(M // 100, n)", "0"))
    m, n = (np.repeat(np.arange(1, 401), 5), np.tile(np.arange(5), 400))
    codes, _ = answer_codes(points_rule, {}, {"M": column(m), "n": column(n)})
    assert len(set(codes.tolist())) == 9


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), min_size=1))
def test_combinations_are_told_apart(pairs: list[tuple[int, int]]) -> None:
    """Combined codes are equal if and only if both parts are."""
    parts = [np.array(column, np.int64) for column in zip(*pairs, strict=True)]
    codes, some = combined_codes([(parts[0], 4), (parts[1], 5)])
    assert len(some) == len(set(pairs))
    assert [pairs[some[code]] for code in codes.tolist()] == pairs


def test_a_value_that_is_no_number_tells_points_apart_by_type() -> None:
    """True and 1 are two values."""
    points_rule = rule(("M > 0", "M <= 0"), ("n if M > 2 else n == 1", "0"))
    m, n = np.array([1, 3, 4]), np.array([1, 1, 1])
    codes, _ = answer_codes(points_rule, {}, {"M": column(m), "n": column(n)})
    assert codes[0] != codes[1] == codes[2]


def test_no_point_without_a_branch() -> None:
    """If no branch applies at one point, no point is answered."""
    with pytest.raises(NO_VALUE):
        answer_codes(rule(("M > 3", "M > 9"), ("1", "2")), {}, {"M": column(np.array([5, 2]))})


def test_many_points_are_of_the_kinds_of_a_few() -> None:
    """Many points, computed in arrays, have the kinds of single points."""
    asked = rule(("M > n * 20", "not M > n * 20"), ("M // 3 + n * M", "(n, M % 5, 'a')"))
    wide, deep = (axis.ravel() for axis in np.meshgrid(np.arange(1, 301), np.arange(6)))
    codes, _ = answer_codes(asked, {}, {"M": column(wide), "n": column(deep)})
    answers: dict[int, set[str]] = {}
    for code, m, n in zip(codes.tolist(), wide.tolist(), deep.tolist(), strict=True):
        answer = asked.value({"M": m, "n": n})
        answers.setdefault(code, set()).add(repr((answer.value, answer.branch.value)))
    assert {len(each) for each in answers.values()} == {1}
    assert len(set.union(*answers.values())) == len(answers)
