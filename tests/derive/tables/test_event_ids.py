"""Ids of very many events: kept as numbers, and as exact as texts."""

import polars as pl
from hypothesis import given
from hypothesis import strategies as st
from nearfree.derive.tables.event_ids import EventIds

SEGMENTS = ("cpu/a/1-00000000.1", "cpu/a/1-00000000.2", "cpu/b/1-00000000.1")
ids = st.tuples(st.sampled_from(SEGMENTS), st.integers(1, 30))


def text(found: tuple[str, int]) -> str:
    """Return an event's id."""
    return f"{found[0]}#{found[1]}"


@given(st.lists(ids), st.lists(ids))
def test_what_is_absent_is_told_as_sets_tell_it(
    known: list[tuple[str, int]], named: list[tuple[str, int]]
) -> None:
    """The absent ids are those of the named ones that were never given, in any order."""
    there = EventIds((segment, [place]) for segment, place in known)
    found = there.absent(pl.Series([text(each) for each in named], dtype=pl.String))
    assert sorted(found) == sorted(text(each) for each in named if each not in known)


def test_what_is_no_id_is_absent() -> None:
    """A text without a place, or with one that is no number, names no event."""
    ends = ("", "#", "#x", "#1#1", "#01", "#+1", "#0", "#99999999999999999999")
    odd = ["", "#1", *(f"{SEGMENTS[0]}{end}" for end in ends)]
    there = EventIds([(SEGMENTS[0], [1, 2])])
    assert set(there.absent(pl.Series(odd))) == set(odd)
