"""Texts that are decoded together: which slot holds which, and llama.cpp's forwards of a step."""

from hypothesis import given
from hypothesis import strategies as st
from nearfree.core.batching import batched_steps, slot_schedule, split_forwards
from nearfree.core.drafting import Steps

LISTS = st.lists(st.lists(st.integers(1, 9), max_size=6), min_size=1, max_size=6)


def steps(rows: list[int]) -> Steps:
    """Return steps with these rows."""
    return Steps(rows=tuple(rows), accepted=(0,) * len(rows))


@given(LISTS, st.integers(1, 4))
def test_every_step_of_every_text_runs_once_and_no_slot_waits(
    lists: list[list[int]], batch: int
) -> None:
    """A text stays in its slot; a waiting text takes the first slot that is free, in order."""
    remaining = [list(rows) for rows in lists]
    slots: dict[int, int] = {}
    started = []
    for step in batched_steps([steps(rows) for rows in lists], batch):
        assert set(step) <= set(range(batch))
        for slot, (text, rows) in step.items():
            started += [text] if text not in slots else []
            assert slots.setdefault(text, slot) == slot
            assert remaining[text].pop(0) == rows
        waiting = [text for text, rows in enumerate(lists) if rows and text not in slots]
        assert len(step) == batch or not waiting
    assert not any(remaining)
    assert started == [text for text, rows in enumerate(lists) if rows]


def test_a_slot_is_free_before_the_step_after_its_text_ends() -> None:
    """The next prompt starts in the slot at once, also after texts of a single token."""
    started = []
    lengths, decoded = [2, 1, 0, 1], [0] * 4

    def ended(text: int) -> bool:
        return decoded[text] == lengths[text]

    slots_by_step = []
    for step in slot_schedule(4, 2, lambda slot, text: started.append((slot, text)), ended):
        slots_by_step.append(step)
        for text in step:
            if text is not None:
                decoded[text] += 1
    assert slots_by_step == [(0, 1), (0, 3)]
    assert started == [(0, 0), (1, 1), (1, 2), (1, 3)]


@given(st.lists(st.integers(0, 20), min_size=1, max_size=6))
def test_forwards_hold_all_rows(rows: list[int]) -> None:
    """A call's rows are those of its forwards; equally many of each sequence are one forward."""
    forwards = list(split_forwards(rows))
    assert sum(forwards) == sum(rows)
    assert 0 not in forwards
    assert len(forwards) <= sum(count > 0 for count in rows)
    if len(set(rows)) == 1 and rows[0]:
        assert forwards == [sum(rows)]


def test_forwards_take_equally_many_rows_of_neighbours() -> None:
    """The remainder of a sequence, and a sequence after an idle one, have forwards of their own."""
    assert list(split_forwards([1, 3])) == [2, 2]
    assert list(split_forwards([4, 1, 2])) == [3, 3, 1]
    assert list(split_forwards([2, 0, 2])) == [2, 2]
    assert list(split_forwards([0, 5])) == [5]
