"""Batches of a schedule whose steps run outside of vLLM's full CUDA graphs.

Model runner V2 captures full graphs of each K of a schedule. For a step it considers only the
graphs of the next captured number of tokens. If all of those belong to another K, the step runs
with piecewise graphs, and attention outside of graphs. This is a port of vLLM 0.33.0, whose lines
`engines` pins.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence

MOST_REQUESTS = 1024
"""Default `max_num_seqs` of a server on a GPU of 70 GiB or more."""
LARGEST = 512
"""Tokens of the largest captured size, except on sm10x."""


def outside_full_graphs(
    k_by_batch: Mapping[int, int], *, requests: int = MOST_REQUESTS, largest: int = LARGEST
) -> list[int]:
    """Return the batch sizes whose steps run outside of full graphs though one is large enough.

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
    widths = {
        batch_size: k_by_batch[min(batch_size, last)] + 1 for batch_size in range(1, requests + 1)
    }
    captured = _full_graphs(
        capture_sizes(widths, requests, largest), {*widths.values()}, requests, largest
    )
    tokens = [count for count, _ in captured]
    batches = []
    for batch in range(1, min(last, requests) + 1):
        place = bisect_left(tokens, batch * widths[batch])
        if place < len(captured) and widths[batch] not in captured[place][1]:
            batches.append(batch)
    return batches


def capture_sizes(widths: Mapping[int, int], requests: int, largest: int) -> list[int]:
    """Return the captured numbers of tokens of a schedule.

    Parameters
    ----------
    widths
        K + 1 by batch size, for each from 1 to `requests`.
    requests, largest
        As in `outside_full_graphs`.
    """
    largest_batch: dict[int, int] = {width: batch for batch, width in sorted(widths.items())}
    largest_size = min(requests * max(largest_batch) * 2, largest)
    sizes = {*_base_sizes(largest_size)}
    for width, batch in largest_batch.items():
        counts = {*_base_sizes(min(batch, largest)), min(batch, largest)}
        sizes |= {n * width for n in counts if n * width <= largest_size}
    return sorted(sizes)


def _base_sizes(most: int) -> list[int]:
    return [n for n in (1, 2, 4, *range(8, 256, 8), *range(256, most + 1, 16)) if n <= most]


def _full_graphs(
    sizes: Iterable[int], widths: Iterable[int], requests: int, largest: int
) -> Sequence[tuple[int, set[int]]]:
    """Return the token counts of full graphs, rising, each with the widths K + 1 captured at it."""
    captured: dict[int, set[int]] = {}
    for size in sizes:
        for width in widths:
            rounded = -(-size // width) * width
            if rounded <= largest and rounded // width <= requests:
                captured.setdefault(rounded, set()).add(width)
    return sorted(captured.items())
