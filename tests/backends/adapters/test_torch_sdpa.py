"""Attention in torch: causal from the bottom right, by the flash kernel, at its own tile."""

import pytest
import torch
from nearfree.backends.adapters import torch_sdpa
from nearfree.backends.adapters.kernel import ExecutionContext
from nearfree.backends.adapters.torch_sdpa import (
    TorchSdpa,
    capped,
    causal_mask,
    cpu_tile,
    with_sinks,
)
from nearfree.core.precision import Dtype
from nearfree.core.setting import Mask
from nearfree.measure.prepare import kernel_names
from torch import Tensor

from backends.adapters.shapes import is_nearly, make_sdpa

POSITIONS = (1, 2, 5, 33)
HEADS = [(4, 2), (4, 4), (4, 1)]
by_heads = pytest.mark.parametrize(("heads", "kv_heads"), HEADS)


def make(
    dtype: Dtype = "float32",
    *,
    copies: int = 1,
    heads: tuple[int, int] = (4, 2),
    mask: Mask | None = None,
) -> TorchSdpa:
    """Return the adapter of a small setting."""
    setting = make_sdpa(dtype=dtype, heads=heads[0], kv_heads=heads[1], mask=mask)
    return TorchSdpa(setting, POSITIONS, ExecutionContext(copies=copies))


def reference(kernel: TorchSdpa, n: int, copy: int = 0) -> Tensor:
    """Return a forward by its definition in float64.

    Query i sees L cached and i + 1 new keys, or all of them in a block.
    """
    length = 40 + n
    queries = kernel._queries[n].double()
    group = (kernel._setting.heads or 0) // (kernel._setting.kv_heads or 1)
    keys, values = (
        part[:, :, :length].double().repeat_interleave(group, 1)
        for part in kernel._keys.copies[copy]
    )
    scores = queries @ keys.transpose(-1, -2) / 16**0.5
    if kernel._setting.mask != "block":
        for i in range(n):
            scores[:, :, i, 40 + i + 1 :] = float("-inf")
    return scores.softmax(-1) @ values


@by_heads
@pytest.mark.parametrize("n", POSITIONS)
def test_a_forward_is_causal_attention(heads: int, kv_heads: int, n: int) -> None:
    """Each of N queries sees all cached keys and the new ones up to its own, in its group."""
    kernel = make(heads=(heads, kv_heads))
    out = kernel.forward(n)
    assert out.shape == (2, heads, n, 16)
    assert is_nearly(out, reference(kernel, n))


@by_heads
@pytest.mark.parametrize("n", POSITIONS)
def test_in_a_block_all_keys_are_seen(heads: int, kv_heads: int, n: int) -> None:
    """Each of N queries sees all cached and all new keys, and no mask is given."""
    kernel = make(heads=(heads, kv_heads), mask="block")
    assert is_nearly(kernel.forward(n), reference(kernel, n))
    assert kernel._masks == {}


@pytest.mark.parametrize(("mask", "causal"), [(None, True), ("causal", True), ("block", False)])
def test_on_a_gpu_the_op_gets_the_mask(
    monkeypatch: pytest.MonkeyPatch, mask: Mask | None, *, causal: bool
) -> None:
    """The FlashAttention op is causal, or sees all of a block."""
    kernel = make(mask=mask)
    kernel._execution = ExecutionContext(device="cuda")
    causal_flags: list[bool] = []
    monkeypatch.setattr(torch_sdpa, "flash", lambda *_, causal: causal_flags.append(causal))
    kernel.forward(5)
    assert causal_flags == [causal]


@pytest.mark.parametrize("n", POSITIONS)
def test_16_bits_give_nearly_the_same(n: int) -> None:
    """In bfloat16 the output stays within its rounding of the definition."""
    kernel = make("bfloat16")
    out, expected = kernel.forward(n), reference(kernel, n)
    assert out.dtype == torch.bfloat16
    assert (out.double() - expected).norm() < 0.02 * expected.norm()


def test_copies_of_keys_and_values_take_turns() -> None:
    """Each forward reads the next copy of the keys and values."""
    kernel = make(copies=2)
    for copy in (0, 1, 0):
        assert is_nearly(kernel.forward(5), reference(kernel, 5, copy))


@pytest.mark.parametrize(("more", "cache"), [(0, "cold"), (1, "warm")])
def test_keys_of_the_smallest_n_fill_the_cache(more: int, cache: str) -> None:
    """Room for 33 new positions displaces nothing at N = 1, which reads 41 of 73 positions."""
    read_size = 2 * 2 * 2 * 41 * 16 * 4
    execution = ExecutionContext(copies=2, cache_bytes=read_size + more)
    assert TorchSdpa(make_sdpa(), POSITIONS, execution).cache == cache


@by_heads
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_flash_kernel_runs(heads: int, kv_heads: int, dtype: Dtype) -> None:
    """At every N torch takes its flash kernel, and does not fall back to plain products."""
    kernel = make(dtype, heads=(heads, kv_heads))
    for n in POSITIONS:
        names = kernel_names(kernel, n, "cpu")
        assert "_scaled_dot_product_flash_attention_for_cpu" in names
        assert not {"bmm", "softmax", "_softmax", "_scaled_dot_product_attention_math"} & set(names)


@pytest.mark.parametrize(
    ("n", "tile"), [(1, 32), (191, 32), (192, 64), (767, 64), (768, 256), (5000, 256)]
)
def test_the_tile_grows_with_n(n: int, tile: int) -> None:
    """The kernel splits queries in 32 rows, from 192 on in 64, from 768 on in 256."""
    assert cpu_tile(n) == tile


@pytest.mark.parametrize("n", POSITIONS)
def test_a_given_mask_saves_no_work(n: int) -> None:
    """Under a given mask every key is computed for every query; the definition needs fewer."""
    work = make().work(n)
    assert work.flop_executed == 4 * 2 * 4 * 16 * n * (40 + n)
    assert work.flop_logical == 4 * 2 * 4 * 16 * sum(40 + i + 1 for i in range(n))
    assert (work.blocks, work.block_rows) == (-(-n // 32) * 4 * 2, 32)
    keys, queries = 2 * 2 * 2 * (40 + n) * 16, 2 * 2 * 4 * n * 16
    assert work.bytes_compulsory == 4 * (keys + queries)


@pytest.mark.parametrize("n", POSITIONS)
def test_a_block_asks_for_every_key(n: int) -> None:
    """Without a mask nothing is computed that was not asked for."""
    work = make(mask="block").work(n)
    assert work.flop_executed == work.flop_logical == 4 * 2 * 4 * 16 * n * (40 + n)


def test_on_a_gpu_the_work_has_tiles_and_waves() -> None:
    """A GPU's kernel computes whole tiles of 64 x 128, and its waves are over the SMs."""
    kernel = make()
    kernel._execution = ExecutionContext(device="cuda", sms=4)
    work = kernel.work(33)
    assert work.flop_executed == 4 * 2 * 4 * 16 * 64 * 128
    assert (work.tiles, work.waves, work.block_rows) == (8, 2.0, 64)


@pytest.mark.parametrize("context", [0, 3, 40])
@pytest.mark.parametrize("window", [None, 1, 5, 64])
def test_a_mask_hides_what_is_after_a_query_or_before_its_window(
    context: int, window: int | None
) -> None:
    """Query i, at position L + i, sees keys up to its own, and of these the last `window`."""
    mask = causal_mask(7, context, torch.float32, window=window)
    for i, row in enumerate(mask.tolist()):
        first_visible = 0 if window is None else max(0, context + i + 1 - window)
        visible = range(first_visible, context + i + 1)
        assert row == [0.0 if key in visible else float("-inf") for key in range(context + 7)]


def test_the_op_of_a_gpu_has_a_window() -> None:
    """The FlashAttention op takes how far a query sees to its left, by that name."""
    op = torch.ops.aten._flash_attention_forward.default
    keyword_only = {argument.name for argument in op._schema.arguments if argument.kwarg_only}
    assert "window_size_left" in keyword_only


def make_tensors(n: int = 5, keys: int = 20) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return queries of four heads, keys and values of two, and a causal mask."""
    generator = torch.Generator().manual_seed(3)
    queries = torch.randn(2, 4, n, 16, generator=generator)
    cache = [torch.randn(2, 2, keys, 16, generator=generator) for _ in range(2)]
    return queries, *cache, causal_mask(n, keys - n, torch.float32)


def logits_of(queries: Tensor, keys: Tensor, mask: Tensor) -> Tensor:
    """Return logits in float64, [b, heads, N, keys]."""
    repeated = keys.double().repeat_interleave(2, 1)
    return queries.double() @ repeated.transpose(-1, -2) / 4 + mask.double()


def test_a_sink_takes_a_share() -> None:
    """Each head's softmax has one logit more, whose share is no key's."""
    queries, keys, values, mask = make_tensors()
    sinks = torch.tensor([-1.0, 0.0, 2.0, 30.0])
    logits = logits_of(queries, keys, mask)
    sink = sinks.double()[None, :, None, None].expand(2, -1, 5, 1)
    shares = torch.cat((logits, sink), -1).softmax(-1)[..., :-1]
    expected = shares @ values.double().repeat_interleave(2, 1)
    assert is_nearly(with_sinks(queries, keys, values, mask, sinks), expected)


@pytest.mark.parametrize("cap", [0.5, 50.0])
def test_a_logit_is_at_most_its_cap(cap: float) -> None:
    """Logits pass c tanh(x / c) before the mask."""
    queries, keys, values, mask = make_tensors()
    logits = logits_of(queries, keys, torch.zeros_like(mask))
    shares = (cap * (logits / cap).tanh() + mask.double()).softmax(-1)
    expected = shares @ values.double().repeat_interleave(2, 1)
    assert is_nearly(capped(queries, keys, values, mask, cap), expected)
    bare = (cap * (logits / cap).tanh()).softmax(-1) @ values.double().repeat_interleave(2, 1)
    assert is_nearly(capped(queries, keys, values, None, cap), bare)


@pytest.mark.parametrize("context", [0, 3, 8, 13])
def test_a_chunk_begins_anew(context: int) -> None:
    """Query i sees keys from the last multiple of the chunk up to its own."""
    mask = causal_mask(9, context, torch.float32, chunk=4)
    for i, row in enumerate(mask):
        position = context + i
        assert row.isfinite().nonzero().flatten().tolist() == list(
            range(position // 4 * 4, position + 1)
        )
