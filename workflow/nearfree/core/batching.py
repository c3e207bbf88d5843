"""Batched decoding: which text each slot holds in a step, and which forwards the step makes.

B slots take the prompts of a list in order. A slot whose text has ended takes the next prompt
before the next step, and stays empty once the list is used up. A step is one call of
`llama_decode` over the rows of all slots. Decoding and replay use the same functions.
"""

from collections.abc import Callable, Iterator, Sequence

from nearfree.core.drafting import Steps


def slot_schedule(
    count: int, batch: int, start: Callable[[int, int], None], ended: Callable[[int], bool]
) -> Iterator[tuple[int | None, ...]]:
    """Yield the text that each slot holds in each step, until all texts have ended.

    Parameters
    ----------
    count, batch
        Number of texts, and of slots.
    start
        Called with a slot and the text that it takes.
    ended
        Returns whether a started text has ended, given the steps yielded so far.
    """
    text_in_slot: list[int | None] = [None] * batch
    waiting = iter(range(count))
    while True:
        for slot in range(batch):
            while (text := text_in_slot[slot]) is None or ended(text):
                text_in_slot[slot] = text = next(waiting, None)
                if text is None:
                    break
                start(slot, text)
        if all(text is None for text in text_in_slot):
            return
        yield tuple(text_in_slot)


def batched_steps(lists: Sequence[Steps], batch: int) -> Iterator[dict[int, tuple[int, int]]]:
    """Yield each batched step of texts whose own steps are known: by slot, its text and rows."""
    steps_done = [0] * len(lists)

    def start(slot: int, text: int) -> None:
        """Ignore the start of a text: its steps are known."""

    def ended(text: int) -> bool:
        """Return whether all steps of a text were yielded."""
        return steps_done[text] == len(lists[text].rows)

    for text_in_slot in slot_schedule(len(lists), batch, start, ended):
        step = {}
        for slot, text in enumerate(text_in_slot):
            if text is not None:
                step[slot] = (text, lists[text].rows[steps_done[text]])
                steps_done[text] += 1
        yield step


def split_forwards(rows: Sequence[int]) -> Iterator[int]:
    """Yield the number of rows of each forward that llama.cpp makes of one call.

    Each sequence has its own cache, as in a server with `--parallel B`. Then one forward takes
    equally many rows of neighbouring sequences, and the remaining rows go into further forwards.

    Source: `llama_batch_allocr::split_equal` of llama.cpp's src/llama-batch.cpp, with `sequential`,
    which `llama_kv_cache::init_batch` requests unless the cache is unified; a test counts them.

    Parameters
    ----------
    rows
        Rows of each sequence in the call, 0 for a sequence without rows.
    """
    rows_left = list(rows)
    while any(rows_left):
        first = next(sequence for sequence, count in enumerate(rows_left) if count)
        end = first
        while end < len(rows_left) and rows_left[end]:
            end += 1
        rows_each = min(rows_left[first:end])
        yield rows_each * (end - first)
        rows_left[first:end] = [count - rows_each for count in rows_left[first:end]]
