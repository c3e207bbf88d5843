"""A rule evaluated once at each number, and how far its value stays equal."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nearfree.derive.granularity.steps import Steps
from nearfree.errors import EvidenceError
from nearfree.log.events import Branch
from nearfree.sources.answers.granularity import Files
from nearfree.sources.answers.moe import Block

ALWAYS = Branch(when=(), value="16", quotes=())
MOST = 40


def block(value: int) -> Block:
    """Return a block of some rows."""
    return Block(path="aligned", value=value, source="fallback", path_branch=ALWAYS)


def steps(values: list[int], seen: Counter[int] | None = None) -> Steps[Block]:
    """Return the steps of a rule with these values, from 1 on."""

    def at(number: int) -> Block:
        if seen is not None:
            seen[number] += 1
        return block(values[number - 1])

    return Steps(at, lambda n: at(n).value, Files([]), largest=len(values))


@given(
    st.lists(st.sampled_from([16, 32, 64]), min_size=MOST, max_size=MOST),
    st.lists(st.integers(1, MOST), min_size=1, max_size=6),
)
def test_a_run_ends_before_the_first_change(values: list[int], firsts: list[int]) -> None:
    """In any order of asking, the end is the last number of the run; at the end there is none."""
    seen: Counter[int] = Counter()
    layer = steps(values, seen)
    for first in firsts:
        rest = values[first - 1 :]
        alike = next((i for i, change in enumerate(rest) if change != rest[0]), None)
        assert layer.last_alike(first) == (None if alike is None else first + alike - 1)
    assert set(seen.values()) == {1}


def test_no_limit_where_the_search_ends() -> None:
    """A rule that does not change within the search has no tau."""
    assert steps([16] * 9).tau(4) is None
    assert steps([16] * 8 + [64]).tau(4) == 8


def test_more_tokens_than_are_looked_at_are_refused() -> None:
    """Tokens beyond the search are refused, since changes there are unknown."""
    with pytest.raises(EvidenceError, match="up to 9 tokens, not 10"):
        steps([16] * 9).tau(10)
