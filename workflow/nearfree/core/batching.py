"""Several texts decoded at once: which text a slot holds in a step, and what runs of the step.

B slots take the prompts of a list in its order. A slot whose text has ended takes the next prompt
before the next step, and stays empty once the list is at its end. A step is one call of
`llama_decode` over the rows of all slots. Decoding and replay follow the same functions.
"""

from collections.abc import Callable, Iterator, Sequence

from nearfree.core.drafting import Steps


def taking_turns(
    count: int, batch: int, start: Callable[[int, int], None], ended: Callable[[int], bool]
) -> Iterator[tuple[int | None, ...]]:
    """Yield which text each slot holds in each step, until all have ended.

    Parameters
    ----------
    count, batch
        Texts, and slots.
    start
        Called with a slot and the text that it takes.
    ended
        Whether a text that was started has ended, by the steps that were yielded.
    """
    held: list[int | None] = [None] * batch
    waiting = iter(range(count))
    while True:
        for slot in range(batch):
            while (text := held[slot]) is None or ended(text):
                held[slot] = text = next(waiting, None)
                if text is None:
                    break
                start(slot, text)
        if all(text is None for text in held):
            return
        yield tuple(held)


def together(lists: Sequence[Steps], batch: int) -> Iterator[dict[int, tuple[int, int]]]:
    """Yield the steps of texts whose own steps are known: of each slot its text and its rows."""
    done = [0] * len(lists)

    def started(slot: int, text: int) -> None:
        """Take in that a text begins: its steps are known already."""

    def ended(text: int) -> bool:
        """Return whether all of a text's steps were yielded."""
        return done[text] == len(lists[text].rows)

    for held in taking_turns(len(lists), batch, started, ended):
        step = {}
        for slot, text in enumerate(held):
            if text is not None:
                step[slot] = (text, lists[text].rows[done[text]])
                done[text] += 1
        yield step


def forwards(rows: Sequence[int]) -> Iterator[int]:
    """Yield the rows of the forwards that llama.cpp makes of one call over several sequences.

    Each sequence has a cache of its own, as in a server with `--parallel B`. Then a forward takes
    equally many rows of neighbouring sequences, and what is left of them goes into further ones.

    Source: `llama_batch_allocr::split_equal` of llama.cpp's src/llama-batch.cpp, with `sequential`,
    which `llama_kv_cache::init_batch` asks for unless the cache is unified; a test counts them.

    Parameters
    ----------
    rows
        Of each sequence in the call, 0 of one that takes no part.
    """
    left = list(rows)
    while any(left):
        first = next(place for place, each in enumerate(left) if each)
        end = first
        while end < len(left) and left[end]:
            end += 1
        each = min(left[first:end])
        yield each * (end - first)
        left[first:end] = [more - each for more in left[first:end]]
