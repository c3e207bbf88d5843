"""Texts that are decoded at once: which slot holds which, and what llama.cpp makes of a step."""

from hypothesis import given
from hypothesis import strategies as st
from nearfree.core.batching import batched_steps, slot_schedule, split_forwards
from nearfree.core.drafting import Steps

LISTS = st.lists(st.lists(st.integers(1, 9), max_size=6), min_size=1, max_size=6)


def steps(rows: list[int]) -> Steps:
    """Return steps of such rows."""
    return Steps(rows=tuple(rows), accepted=(0,) * len(rows))


@given(LISTS, st.integers(1, 4))
def test_every_step_of_every_text_runs_once_and_no_slot_waits(
    lists: list[list[int]], batch: int
) -> None:
    """A text stays in its slot; one that is left takes the first slot that is free, in order."""
    left = [list(rows) for rows in lists]
    slots: dict[int, int] = {}
    began = []
    for step in batched_steps([steps(rows) for rows in lists], batch):
        assert set(step) <= set(range(batch))
        for slot, (text, rows) in step.items():
            began += [text] if text not in slots else []
            assert slots.setdefault(text, slot) == slot
            assert left[text].pop(0) == rows
        waiting = [text for text, rows in enumerate(lists) if rows and text not in slots]
        assert len(step) == batch or not waiting
    assert not any(left)
    assert began == [text for text, rows in enumerate(lists) if rows]


def test_a_text_that_ended_leaves_its_slot_before_the_next_step() -> None:
    """The next prompt starts in it at once, also where some end with their first token."""
    started = []
    lengths, done = [2, 1, 0, 1], [0] * 4

    def ended(text: int) -> bool:
        return done[text] == lengths[text]

    held = []
    for step in slot_schedule(4, 2, lambda slot, text: started.append((slot, text)), ended):
        held.append(step)
        for text in step:
            if text is not None:
                done[text] += 1
    assert held == [(0, 1), (0, 3)]
    assert started == [(0, 0), (1, 1), (1, 2), (1, 3)]


@given(st.lists(st.integers(0, 20), min_size=1, max_size=6))
def test_forwards_hold_all_rows(rows: list[int]) -> None:
    """Their rows are those of the call; equally many of each sequence are one forward."""
    found = list(split_forwards(rows))
    assert sum(found) == sum(rows)
    assert 0 not in found
    assert len(found) <= sum(each > 0 for each in rows)
    if len(set(rows)) == 1 and rows[0]:
        assert found == [sum(rows)]


def test_forwards_take_equally_many_rows_of_neighbours() -> None:
    """What is left of a sequence, and a sequence beyond an idle one, is a forward of its own."""
    assert list(split_forwards([1, 3])) == [2, 2]
    assert list(split_forwards([4, 1, 2])) == [3, 3, 1]
    assert list(split_forwards([2, 0, 2])) == [2, 2]
    assert list(split_forwards([0, 5])) == [5]
