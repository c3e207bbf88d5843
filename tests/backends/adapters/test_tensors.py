"""Tensors that adapters share: random numbers, common weights, and copies that take turns."""

import pytest
import torch
from conftest import make_setting
from nearfree.backends.adapters.kernel import ExecutionContext
from nearfree.backends.adapters.tensors import (
    Pages,
    Turns,
    equal_lengths,
    filled,
    pages_of,
    row_offsets,
    torch_dtype,
    weight,
)
from nearfree.core.precision import Dtype
from nearfree.errors import EvidenceError

BLOCK = 2**20
BYTES = 64 * 4
"""One copy of the small items that take turns here."""


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_dtype_is_torchs_own(dtype: Dtype) -> None:
    """A setting's dtype is the one of that name in torch."""
    assert torch_dtype(make_setting(dtype=dtype)) == getattr(torch, dtype)


@pytest.mark.parametrize("dtype", ["auto", "float8"])
def test_a_dtype_that_torch_lacks_is_refused(dtype: Dtype) -> None:
    """A dtype that is none of torch's is refused by name."""
    with pytest.raises(EvidenceError, match=f"no dtype {dtype}"):
        torch_dtype(make_setting(dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("scale", [1.0, 0.05])
def test_numbers_are_normal(dtype: torch.dtype, scale: float) -> None:
    """Elements are finite, with a mean of zero and the standard deviation that was asked for."""
    tensor = filled(ExecutionContext(), dtype, 200, 1000, scale=scale)
    assert (tensor.shape, tensor.dtype) == ((200, 1000), dtype)
    assert torch.isfinite(tensor).all()
    assert abs(tensor.double().mean().item()) < 0.01 * scale
    assert tensor.double().std().item() == pytest.approx(scale, rel=0.01)


def test_a_block_of_numbers_is_all_random() -> None:
    """Up to 2**20 elements no half repeats the other, and nearly every element is another."""
    tensor = filled(ExecutionContext(), torch.float32, 2, BLOCK // 2)
    assert not torch.equal(tensor[0], tensor[1])
    assert len(tensor.unique()) > 0.9 * BLOCK


def test_larger_tensors_repeat_the_block() -> None:
    """Beyond 2**20 elements the same block comes again, and fills the last part."""
    flat = filled(ExecutionContext(), torch.float32, 2 * BLOCK + 5)
    assert torch.equal(flat[:BLOCK], flat[BLOCK : 2 * BLOCK])
    assert torch.equal(flat[:5], flat[2 * BLOCK :])


def test_a_tensor_that_cannot_be_had() -> None:
    """A tensor that no memory holds is refused by its shape, in one line."""
    with pytest.raises(EvidenceError, match="a tensor of 100000000 x 100000000") as error:
        filled(ExecutionContext(), torch.float32, 10**8, 10**8)
    assert "\n" not in str(error.value)


def test_a_weight_keeps_the_size_of_its_input() -> None:
    """Elements have the variance 1 / in, so rows of variance 1 come out with variance 1."""
    execution = ExecutionContext()
    matrix = weight(execution, torch.float32, 300, 400, copy=0)
    assert matrix.var().item() == pytest.approx(1 / 400, rel=0.05)
    out = filled(execution, torch.float32, 500, 400) @ matrix.t()
    assert out.var().item() == pytest.approx(1.0, rel=0.05)


def test_settings_of_a_shape_share_a_weight() -> None:
    """Who asks for the same dtype, shape and copy in the same execution gets the same tensor."""
    execution = ExecutionContext(copies=2)
    first_weight = weight(execution, torch.float32, 8, 4, copy=0)
    assert weight(execution, torch.float32, 8, 4, copy=0) is first_weight
    other_weights = [
        weight(execution, torch.float32, 8, 4, copy=1),
        weight(execution, torch.float32, 4, 8, copy=0),
        weight(execution, torch.bfloat16, 8, 4, copy=0),
        weight(execution, torch.float32, 8, 4, copy=0, projection="down"),
        weight(ExecutionContext(copies=2), torch.float32, 8, 4, copy=0),
    ]
    assert len({tensor.data_ptr() for tensor in (first_weight, *other_weights)}) == 6


@pytest.mark.parametrize("copies", [1, 2, 3])
def test_copies_take_turns(copies: int) -> None:
    """Each forward takes the next copy, and the first again after the last."""
    items = [torch.zeros(64) for _ in range(copies)]
    turns = Turns(items, ExecutionContext(copies=copies))
    visited = [turns.next() for _ in range(2 * copies + 1)]
    assert [id(item) for item in visited] == [id(item) for item in (*items, *items, items[0])]


@pytest.mark.parametrize(
    ("copies", "cache_bytes", "share", "cache"),
    [
        (2, BYTES, 1.0, "cold"),
        (2, BYTES + 1, 1.0, "warm"),
        (3, 2 * BYTES, 1.0, "cold"),
        (3, 2 * BYTES + 1, 1.0, "warm"),
        (2, BYTES // 2, 0.5, "cold"),
        (2, BYTES // 2 + 1, 0.5, "warm"),
        (1, 1, 1.0, "warm"),
        (1, 0, 1.0, "cold"),
    ],
)
@pytest.mark.parametrize("parts", [1, 2])
def test_copies_are_cold_if_those_in_between_fill_the_cache(
    copies: int, cache_bytes: int, share: float, cache: str, parts: int
) -> None:
    """A copy is cold when what is read of the others is as large as the last-level cache."""
    items = [(torch.zeros(64),) * parts for _ in range(copies)]
    execution = ExecutionContext(
        copies=copies, cache_bytes=cache_bytes * parts - (parts - 1) * (cache == "warm")
    )
    assert Turns(items, execution, share=share).cache == cache
    if parts == 1:
        assert Turns([item[0] for item in items], execution, share=share).cache == cache


def test_requests_of_one_length_begin_evenly() -> None:
    """Starts and ends are int32, as every kernel asks."""
    ends = row_offsets(3, 5, "cpu")
    assert (ends.tolist(), ends.dtype) == ([0, 5, 10, 15], torch.int32)


def test_requests_of_one_length_say_it_each() -> None:
    """Lengths are int32, as every kernel asks."""
    lengths = equal_lengths(3, 5, "cpu")
    assert (lengths.tolist(), lengths.dtype) == ([5, 5, 5], torch.int32)


@pytest.mark.parametrize(
    ("length", "pages", "last"), [(1, 1, 1), (15, 1, 15), (16, 1, 16), (17, 2, 1), (33, 3, 1)]
)
def test_the_last_page_holds_the_rest(length: int, pages: int, last: int) -> None:
    """A full last page counts its whole size, and never none."""
    assert pages_of(length, 16) == pages
    pages_ = Pages(2, length, 16, 3, "cpu")
    assert pages_.last.tolist() == [last, last]
    assert pages_.indptr.tolist() == [0, pages, 2 * pages]


def test_each_request_has_pages_of_its_own() -> None:
    """A request's pages are in order, and a shorter length takes the first of them."""
    assert Pages(2, 40, 16, 4, "cpu").table.tolist() == [[0, 1, 2], [4, 5, 6]]
    short_pages = Pages(2, 20, 16, 4, "cpu")
    assert short_pages.indices.tolist() == [0, 1, 4, 5]
    assert {tensor.dtype for tensor in vars(short_pages).values()} == {torch.int32}
