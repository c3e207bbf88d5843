"""Which batches of a schedule leave vLLM's full graphs: their next captured count is another K's.

Model runner V2 captures full graphs of each K of a schedule, and looks for a step's among those of
the next captured number of tokens alone. Where all of those are of another K the step runs piece by
piece, attention outside of graphs. This is a port of vLLM 0.33.0, whose lines `engines` pins.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence

MOST_REQUESTS = 1024
"""`max_num_seqs` of a server on a GPU of 70 GiB or more, without an option."""
LARGEST = 512
"""Tokens of the largest captured size, but on sm10x."""


def leaving(
    k_by_batch: Mapping[int, int], *, requests: int = MOST_REQUESTS, largest: int = LARGEST
) -> list[int]:
    """Return the batch sizes whose steps run in no full graph though one is large enough.

    Parameters
    ----------
    k_by_batch
        K by batch size, for each from 1 on; larger batches keep the last K.
    requests
        `max_num_seqs`.
    largest
        The largest captured size, tokens.
    """
    last = max(k_by_batch)
    widths = {b: k_by_batch[min(b, last)] + 1 for b in range(1, requests + 1)}
    captured = _full(
        capture_sizes(widths, requests, largest), {*widths.values()}, requests, largest
    )
    tokens = [count for count, _ in captured]
    found = []
    for batch in range(1, min(last, requests) + 1):
        place = bisect_left(tokens, batch * widths[batch])
        if place < len(captured) and widths[batch] not in captured[place][1]:
            found.append(batch)
    return found


def capture_sizes(widths: Mapping[int, int], requests: int, largest: int) -> list[int]:
    """Return the captured numbers of tokens of a schedule.

    Parameters
    ----------
    widths
        K + 1 by batch size, for each from 1 to `requests`.
    requests, largest
        As of `leaving`.
    """
    widest: dict[int, int] = {width: batch for batch, width in sorted(widths.items())}
    most = min(requests * max(widest) * 2, largest)
    sizes = {*_counts(most)}
    for width, batches in widest.items():
        counts = {*_counts(min(batches, largest)), min(batches, largest)}
        sizes |= {n * width for n in counts if n * width <= most}
    return sorted(sizes)


def _counts(most: int) -> list[int]:
    return [n for n in (1, 2, 4, *range(8, 256, 8), *range(256, most + 1, 16)) if n <= most]


def _full(
    sizes: Iterable[int], widths: Iterable[int], requests: int, largest: int
) -> Sequence[tuple[int, set[int]]]:
    """Return the tokens of full graphs, rising, each with the widths that are captured at it."""
    captured: dict[int, set[int]] = {}
    for size in sizes:
        for width in widths:
            rounded = -(-size // width) * width
            if rounded <= largest and rounded // width <= requests:
                captured.setdefault(rounded, set()).add(width)
    return sorted(captured.items())
