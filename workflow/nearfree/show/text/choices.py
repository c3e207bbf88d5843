"""The best K and its gain by batch size and acceptance, printed where no acceptance is given."""

from collections.abc import Iterator, Sequence

from nearfree.show.text.context_schedule import RATES, ContextSchedule, caveats
from nearfree.show.text.forecast import columns
from nearfree.show.text.schedule import heading, idle_note, memory_end


def choices_table(schedules: Sequence[ContextSchedule], notes: Sequence[str]) -> Iterator[str]:
    """Yield one table per context: the best K and its gain over no drafts, at doubling batch sizes.

    Parameters
    ----------
    notes
        Assumptions, and warnings about the drafter.
    """
    yield "# no option without --acceptance: best K, and its gain over serving without drafts"
    yield from (f"# {note}" for note in choice_notes(schedules, notes))
    for schedule in schedules:
        yield f"# {heading(schedule.forecast)}"
        head: list[object] = ["b", *(f"acceptance {rate}" for rate in RATES)]
        rows: list[list[object]] = [head]
        for batch in _doubling(max(schedule.best[RATES[0]])):
            choices = (schedule.best[rate][batch] for rate in RATES)
            cells = [f"K = {choice.k}, {choice.speedup - 1:+.0%}" for choice in choices]
            rows.append([batch, *cells])
        yield from columns(rows, left=0)
        yield from memory_end(schedule.deployments, len(schedule.forecast.deployments))


def choice_notes(schedules: Sequence[ContextSchedule], notes: Sequence[str]) -> Iterator[str]:
    """Yield distinct notes and caveats, and a drafter's idle cost if the best K is 0 anywhere."""
    yield from dict.fromkeys((*notes, *caveats(schedules)))
    yield from idle_note(
        choice
        for schedule in schedules
        for by_batch in schedule.best.values()
        for choice in by_batch.values()
    )


def _doubling(last: int) -> Iterator[int]:
    batch = 1
    while batch < last:
        yield batch
        batch *= 2
    yield last
