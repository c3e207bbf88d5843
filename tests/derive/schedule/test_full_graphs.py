"""Batch sizes that leave vLLM's full graphs under a schedule, and the captured sizes."""

from collections.abc import Sequence
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nearfree.derive.schedule.engines import vllm_option
from nearfree.derive.schedule.full_graphs import capture_sizes, outside_full_graphs
from nearfree.sources.record import recorded_extraction

from derive.questions import LOG

Parts = Sequence[tuple[int, int]]


def lengths(parts: Parts) -> dict[int, int]:
    """Return K by batch size, from the ends of parts with their K."""
    length_by_batch: dict[int, int] = {}
    for last, k in parts:
        length_by_batch |= dict.fromkeys(range(len(length_by_batch) + 1, last + 1), k)
    return length_by_batch


@pytest.mark.parametrize(
    ("parts", "count"),
    [
        (((8, 4), (32, 2), (256, 1)), 50),
        (((8, 3), (32, 2), (64, 1), (256, 0)), 39),
        (((8, 7), (32, 3), (64, 1), (256, 0)), 0),
        (((16, 15), (32, 7), (100, 1)), 0),
        (((100, 1),), 0),
    ],
)
def test_powers_of_two_leave_no_full_graph(parts: Parts, count: int) -> None:
    """If each width divides the next, no batch leaves the full graphs."""
    for requests in (256, 1024):
        assert len(outside_full_graphs(lengths(parts), requests=requests)) == count


def test_a_batch_leaves_where_the_next_count_is_of_another_width() -> None:
    """Six requests of five tokens leave: 30 is in graphs of three tokens, 35 in those of five."""
    outside = outside_full_graphs(lengths([(8, 4), (32, 2), (256, 1)]))
    assert 6 in outside
    assert {1, 2, 4, 5, 7, 8}.isdisjoint(outside)


@given(
    parts=st.lists(st.tuples(st.integers(1, 100), st.integers(0, 9)), min_size=1, max_size=3),
    requests=st.sampled_from([16, 100, 256]),
    largest=st.sampled_from([64, 128, 512]),
)
def test_a_full_graph_holds_no_more_than_its_tokens_and_requests(
    parts: Parts, requests: int, largest: int
) -> None:
    """A batch leaves where the least count of any full graph that holds it is of other widths.

    A graph of a width has the captured sizes, rounded up to whole requests, as far as there are so
    many requests, and tokens of no more than the largest.
    """
    last, ends = 0, []
    for part, k in parts:
        ends.append(((last := last + part), k))
    by_batch = lengths(ends)
    widths = {b: by_batch[min(b, last)] + 1 for b in range(1, requests + 1)}
    used = {*widths.values()}
    sizes = capture_sizes(widths, requests, largest)
    graphs = {
        (-(-size // width) * width, width)
        for size, width in product(sizes, used)
        if -(-size // width) <= requests and -(-size // width) * width <= largest
    }
    left = []
    for batch in range(1, min(last, requests) + 1):
        tokens = batch * widths[batch]
        following = min((count for count, _ in graphs if count >= tokens), default=None)
        if following and (following, widths[batch]) not in graphs:
            left.append(batch)
    assert outside_full_graphs(by_batch, requests=requests, largest=largest) == left


@pytest.mark.parametrize("k", [0, 1, 2, 4, 7])
@pytest.mark.parametrize("requests", [100, 256, 1024])
def test_a_single_length_has_the_sizes_of_the_release(k: int, requests: int) -> None:
    """For one K the captured sizes are those of the release's own text."""
    extraction = recorded_extraction(LOG, "vllm-graphs", "0.33.0")
    assert extraction is not None
    given = {"max_num_seqs": requests, "max_num_batched_tokens": 8192, "q": k + 1, "sm": 90,
             "performance_mode": "balanced"}  # fmt: skip
    sizes = extraction.by_name()["capture_sizes"].value(given).value
    assert capture_sizes(dict.fromkeys(range(1, requests + 1), k + 1), requests, 512) == sizes


def test_an_option_says_which_batches_leave() -> None:
    """A note counts the batches that leave; without any there is no note."""
    noted = vllm_option(lengths([(8, 4), (32, 2), (256, 1)])).notes[-1]
    assert noted.startswith("50 of 256 batch sizes (6, 9, 10, 12, ")
    assert not any("full graphs" in note for note in vllm_option(lengths([(8, 3), (9, 1)])).notes)


def test_what_is_captured_on_the_gpu_counts() -> None:
    """Batches above the GPU's largest graph are not counted."""
    parts = lengths([(8, 4), (32, 2), (256, 1)])
    left = outside_full_graphs(parts, requests=256, largest=64)
    assert 0 < len(left) < 50
    noted = vllm_option(parts, requests=256, largest=64).notes[-1]
    assert noted.startswith(f"{len(left)} of 256 batch sizes (6, 9, 10, 12, ")
