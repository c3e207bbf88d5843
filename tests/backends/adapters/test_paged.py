"""Pages of a KV cache, in the forms that kernels ask for."""

import pytest
import torch
from nearfree.backends.adapters.paged import Pages, alike, evenly, pages_of


def test_requests_of_one_length_begin_evenly() -> None:
    """Starts and ends are int32, as every kernel asks."""
    ends = evenly(3, 5, "cpu")
    assert (ends.tolist(), ends.dtype) == ([0, 5, 10, 15], torch.int32)


def test_requests_of_one_length_say_it_each() -> None:
    """Lengths are int32, as every kernel asks."""
    lengths = alike(3, 5, "cpu")
    assert (lengths.tolist(), lengths.dtype) == ([5, 5, 5], torch.int32)


@pytest.mark.parametrize(
    ("length", "pages", "last"), [(1, 1, 1), (15, 1, 15), (16, 1, 16), (17, 2, 1), (33, 3, 1)]
)
def test_the_last_page_holds_the_rest(length: int, pages: int, last: int) -> None:
    """A full last page counts its whole size, and never none."""
    assert pages_of(length, 16) == pages
    found = Pages(2, length, 16, 3, "cpu")
    assert found.last.tolist() == [last, last]
    assert found.indptr.tolist() == [0, pages, 2 * pages]


def test_each_request_has_pages_of_its_own() -> None:
    """A request's pages are in order, and a shorter length takes the first of them."""
    assert Pages(2, 40, 16, 4, "cpu").table.tolist() == [[0, 1, 2], [4, 5, 6]]
    short = Pages(2, 20, 16, 4, "cpu")
    assert short.indices.tolist() == [0, 1, 4, 5]
    assert {each.dtype for each in vars(short).values()} == {torch.int32}
