"""The table that lets one choose an acceptance: best K and its gain, by batch and acceptance."""

from collections.abc import Iterator, Sequence

from nearfree.show.text.forecast import columns
from nearfree.show.text.planned import RATES, Planned
from nearfree.show.text.schedule import ends, heading, idle


def choices_table(every: Sequence[Planned], notes: Sequence[str]) -> Iterator[str]:
    """Yield the lines of a table a context: K and gain over no drafts, at doubling batch sizes.

    Parameters
    ----------
    notes
        What is assumed, and what speaks against the drafter.
    """
    yield "# no option without --acceptance: best K, and its gain over serving without drafts"
    yield from (f"# {each}" for each in choice_notes(every, notes))
    for each in every:
        yield f"# {heading(each.answers)}"
        heads: list[object] = ["b", *(f"acceptance {rate}" for rate in RATES)]
        rows: list[list[object]] = [heads]
        for batch in _doubling(max(each.best[RATES[0]])):
            found = (each.best[rate][batch] for rate in RATES)
            cells = [f"K = {choice.k}, {choice.speedup - 1:+.0%}" for choice in found]
            rows.append([batch, *cells])
        yield from columns(rows, left=0)
        yield from ends(each.asked, len(each.answers.deployments))


def choice_notes(every: Sequence[Planned], notes: Sequence[str]) -> Iterator[str]:
    """Yield notes and caveats, each once, and what a drafter takes where the best K is 0."""
    caveats = (caveat for each in every for caveat in each.answers.deployments[0].caveats)
    yield from dict.fromkeys((*notes, *caveats))
    found = (best for each in every for best in each.best.values())
    yield from idle(choice for best in found for choice in best.values())


def _doubling(last: int) -> Iterator[int]:
    batch = 1
    while batch < last:
        yield batch
        batch *= 2
    yield last
