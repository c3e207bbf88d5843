"""The table that lets one choose an acceptance: best K and its gain, by batch and acceptance."""

from collections.abc import Iterator, Sequence

from nearfree.show.text.forecast import columns
from nearfree.show.text.planned import RATES, Planned


def choices_table(every: Sequence[Planned], doubts: Sequence[str] = ()) -> Iterator[str]:
    """Yield the lines of a table a context: K and gain over no drafts, at doubling batch sizes.

    Parameters
    ----------
    doubts
        What speaks against the drafter.
    """
    yield "# no option without --acceptance: best K, and its gain over serving without drafts"
    caveats = (caveat for each in every for caveat in each.answers.deployments[0].caveats)
    yield from (f"# {each}" for each in dict.fromkeys((*doubts, *caveats)))
    for each in every:
        yield f"# L = {each.context}"
        heads: list[object] = ["b", *(f"acceptance {rate}" for rate in RATES)]
        rows: list[list[object]] = [heads]
        for batch in _doubling(max(each.best[RATES[0]])):
            found = (each.best[rate][batch] for rate in RATES)
            cells = [f"K = {choice.k}, {choice.speedup - 1:+.0%}" for choice in found]
            rows.append([batch, *cells])
        yield from columns(rows, left=0)


def _doubling(last: int) -> Iterator[int]:
    batch = 1
    while batch < last:
        yield batch
        batch *= 2
    yield last
