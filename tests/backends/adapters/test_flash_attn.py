"""FlashAttention 2: its calls, bound against real signatures, and its tiles against our rules."""

import inspect
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from nearfree.backends.adapters import flash_attn, flash_kernel
from nearfree.backends.adapters.flash_attn import FUNCTIONS, FlashAttn
from nearfree.backends.adapters.flash_tiles import fewest_splits, flash_2_tiling
from nearfree.backends.adapters.kernel import ExecutionContext
from nearfree.backends.records import BY_NAME
from nearfree.core.setting import Mask, Setting
from nearfree.errors import EvidenceError
from nearfree.sources.attention import facts, point_of, rule_answer
from nearfree.sources.backends.flash_attn import device_facts
from nearfree.sources.fetching.cache import Cache
from once import one_in

from backends.adapters.attention import make_attention, make_query, recorded, resolved
from backends.adapters.signatures import (
    StandIn,
    change_points,
    signature,
    signature_of,
    stand_in,
    versions_between,
)

MEMBER = "flash_attn/flash_attn_interface.py"
FIRST, LAST = BY_NAME["flash_attn"].releases or ("", "")
"""The first release whose varlen call reads pages, and the newest."""
TEXT = """
def flash_attn_func(q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1),
    softcap=0.0, alibi_slopes=None, deterministic=False, return_attn_probs=False): ...
def flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k,
    dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,
    alibi_slopes=None, deterministic=False, return_attn_probs=False, block_table=None): ...
def flash_attn_with_kvcache(q, k_cache, v_cache, k=None, v=None, rotary_cos=None, rotary_sin=None,
    cache_seqlens=None, cache_batch_idx=None, cache_leftpad=None, block_table=None,
    softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, rotary_interleaved=True,
    alibi_slopes=None, num_splits=0, return_softmax_lse=False): ...
"""
"""The signatures of 2.8.3."""
SIGNATURES = {name: signature_of(TEXT, name) for name in FUNCTIONS.values()}
CALLS = [("kvcache", None), ("kvcache", 256), ("varlen", None), ("varlen", 256), ("dense", None)]
SHAPES = [(1, 32, 32, 128), (1, 32, 8, 128), (4, 32, 8, 64), (8, 16, 4, 256), (1, 32, 32, 96)]
DEVICES = [(80, 108), (86, 84), (90, 132)]


def make(
    patch: pytest.MonkeyPatch,
    setting: Setting,
    signatures: dict[str, inspect.Signature] = SIGNATURES,
    *,
    copies: int = 1,
    cache_bytes: int = 0,
) -> tuple[FlashAttn, StandIn]:
    """Return an adapter over N = 1 and 3, and the stand-in for the function that it calls."""
    functions = {
        name: stand_in(signature_, lambda bound: torch.empty_like(bound.arguments["q"]))
        for name, signature_ in signatures.items()
    }
    patch.setattr(flash_attn, "load", lambda: SimpleNamespace(**functions))
    execution = ExecutionContext(copies=copies, cache_bytes=cache_bytes, sms=132)
    kernel = FlashAttn(setting, (1, 3), execution)
    return kernel, functions[FUNCTIONS[setting.api or ""]]


def last_arguments(called: StandIn) -> dict[str, Any]:
    """Return the last call's arguments: tensors of lengths and pages as lists, others by shape."""
    arguments: dict[str, Any] = {}
    for name, value in called.calls[-1].arguments.items():
        if not isinstance(value, torch.Tensor):
            arguments[name] = value
        elif value.dtype == torch.int32:
            arguments[name] = value.tolist()
        else:
            arguments[name] = tuple(value.shape)
    return arguments


def test_a_cache_call_says_how_long_each_cache_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """The N new keys are in the cache already: it is L + N long, and nothing is appended."""
    kernel, called = make(monkeypatch, make_attention(api="kvcache"))
    out = kernel.forward(3)
    assert out.shape == (2, 3, 4, 16)
    assert last_arguments(called) == {
        "q": (2, 3, 4, 16),
        "k_cache": (2, 43, 2, 16),
        "v_cache": (2, 43, 2, 16),
        "cache_seqlens": [43, 43],
        "causal": True,
    }


def test_a_paged_cache_is_found_by_its_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request has pages of its own, as many as its L + N positions need."""
    setting = make_attention(api="kvcache", context=255, page_size=256)
    kernel, called = make(monkeypatch, setting)
    kernel.forward(1)
    assert last_arguments(called)["block_table"] == [[0], [2]]
    kernel.forward(3)
    assert last_arguments(called)["block_table"] == [[0, 1], [2, 3]]
    assert last_arguments(called)["cache_seqlens"] == [258, 258]
    assert last_arguments(called)["k_cache"] == (4, 256, 2, 16)


def test_a_varlen_call_says_where_requests_begin_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of all requests lie behind each other, N queries and L + N keys of each."""
    kernel, called = make(monkeypatch, make_attention(api="varlen"))
    kernel.forward(3)
    assert last_arguments(called) == {
        "q": (6, 4, 16),
        "k": (86, 2, 16),
        "v": (86, 2, 16),
        "cu_seqlens_q": [0, 3, 6],
        "cu_seqlens_k": [0, 43, 86],
        "max_seqlen_q": 3,
        "max_seqlen_k": 43,
        "causal": True,
    }


def test_a_varlen_call_reads_pages_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """With pages the keys are the whole pool."""
    kernel, called = make(monkeypatch, make_attention(api="varlen", page_size=256))
    kernel.forward(3)
    assert last_arguments(called)["k"] == (2, 256, 2, 16)
    assert last_arguments(called)["block_table"] == [[0], [1]]
    assert last_arguments(called)["cu_seqlens_k"] == [0, 43, 86]


def test_a_dense_call_takes_tensors_of_their_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without lengths, the keys are cut to L + N."""
    kernel, called = make(monkeypatch, make_attention(api="dense"))
    kernel.forward(1)
    shapes = {"q": (2, 1, 4, 16), "k": (2, 41, 2, 16), "v": (2, 41, 2, 16)}
    assert last_arguments(called) == {**shapes, "causal": True}


@pytest.mark.parametrize(("mask", "causal"), [(None, True), ("causal", True), ("block", False)])
def test_the_mask_is_given(
    monkeypatch: pytest.MonkeyPatch, mask: Mask | None, *, causal: bool
) -> None:
    """A block of positions that see each other is called without the causal mask, in each api."""
    for api in FUNCTIONS:
        kernel, called = make(monkeypatch, make_attention(api=api, mask=mask))
        kernel.forward(3)
        assert last_arguments(called)["causal"] is causal


def test_copies_of_the_cache_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each forward reads the next copy of keys and values."""
    kernel, called = make(monkeypatch, make_attention(api="kvcache"), copies=2)
    for _ in range(3):
        kernel.forward(1)
    first_copy, second_copy, third_copy = (
        bound.arguments["k_cache"].data_ptr() for bound in called.calls
    )
    assert first_copy == third_copy != second_copy


@pytest.mark.parametrize("page_size", [None, 256])
@pytest.mark.parametrize(("more", "cache"), [(0, "cold"), (1, "warm")])
def test_keys_of_the_smallest_n_fill_the_cache(
    monkeypatch: pytest.MonkeyPatch, page_size: int | None, more: int, cache: str
) -> None:
    """Neither what is left of a page nor room for more positions displaces what is read."""
    cache_read_bytes = 2 * 2 * 2 * 41 * 16 * 2
    setting = make_attention(api="kvcache", page_size=page_size)
    assert (
        make(monkeypatch, setting, copies=2, cache_bytes=cache_read_bytes + more)[0].cache == cache
    )


@pytest.mark.parametrize("api", ["prefill", None])
def test_an_unknown_api_is_refused(monkeypatch: pytest.MonkeyPatch, api: str | None) -> None:
    """A setting names one of three calls, and the message lists them."""
    with pytest.raises(EvidenceError, match="no api") as error:
        make(monkeypatch, make_attention(api=api))
    assert "kvcache, varlen, dense" in error.value.remedy


@pytest.mark.parametrize(("api", "page_size"), [("kvcache", 16), ("dense", 256)])
def test_unsupported_pages_are_refused(
    monkeypatch: pytest.MonkeyPatch, api: str, page_size: int
) -> None:
    """A page holds a multiple of 256 positions, and a dense call reads none."""
    with pytest.raises(EvidenceError, match="pages"):
        make(monkeypatch, make_attention(api=api, page_size=page_size))


@pytest.mark.parametrize(("n", "first_split"), [(2, True), (384, True), (385, False)])
def test_the_last_split_changes_the_tile(n: int, first_split: bool) -> None:  # noqa: FBT001
    """With 32 heads on 132 SMs keys are split up to N=384; then tiles have 128 rows."""
    setting = make_attention(api="dense", batch=1, heads=32, kv_heads=32, head_dim=128)
    tiling = flash_2_tiling(setting, n, 4096 + n, 132, 90)
    assert (tiling.rows, tiling.splits > 1) == ((64, True) if first_split else (128, False))


def test_one_query_of_a_group_fills_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """At N=1 the query heads of a key-value head are rows of a tile; work counts them so."""
    kernel, _ = make(monkeypatch, make_attention(api="kvcache"))
    one_position, three_positions = kernel.work(1), kernel.work(3)
    assert (one_position.blocks, three_positions.blocks) == (2 * 2, 2 * 4)
    assert "2.8" in one_position.basis


@pytest.mark.parametrize(
    ("head_dim", "sm", "rows"),
    [(128, 80, 128), (128, 86, 64), (64, 86, 128), (256, 80, 128), (256, 90, 64)],
)
def test_shared_memory_decides_the_tile(head_dim: int, sm: int, rows: int) -> None:
    """More of it an SM makes the tile smaller at a head size of 256: two then fit."""
    setting = make_attention(api="varlen", head_dim=head_dim)
    assert flash_2_tiling(setting, 2, 4098, 132, sm).rows == rows


def test_parts_that_are_no_smaller_do_not_count() -> None:
    """Of 9 key blocks, 8 parts hold up to two each, as 5 parts do."""
    assert fewest_splits(8, 264, 9, shrinking=True) == 9
    assert fewest_splits(8, 264, 9, shrinking=False) == 8


def test_keys_are_not_split_over_an_unknown_number_of_sms() -> None:
    """Without it no splits are counted, and no tile is either."""
    setting = make_attention(api="dense", heads=32, kv_heads=32, head_dim=128)
    assert flash_2_tiling(setting, 2, 4098, None, 90).splits == 1


def test_the_gpu_is_asked_for_its_capability(monkeypatch: pytest.MonkeyPatch) -> None:
    """Capability 8.6 is given as 86."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 6))
    assert flash_kernel.compute_capability(ExecutionContext(device="cuda")) == 86


def agree(call: tuple[str, int | None], shape: tuple[int, ...], device: tuple[int, int]) -> None:
    """Compare tile, packed rows and splits with the recorded rules over L and N."""
    (api, page), (batch, heads, kv_heads, head_dim), (sm, sms) = call, shape, device
    rules = recorded("flash-attn", "2.8.3").by_name()
    for context, n in product((100, 1090, 32768), (1, 2, 64, 65, 128, 193, 384, 385)):
        setting = make_attention(
            api=api, page_size=page, batch=batch, heads=heads, kv_heads=kv_heads, head_dim=head_dim
        )
        length = context + n
        capacity = -(-length // page) * page if page else length
        query = make_query(setting, capacity, sm=sm, sms=sms)
        tile = resolved("flash-attn", "2.8.3", query, n)
        known_facts = facts(query, point_of(query, n)) | device_facts(sm)
        call_arguments = rule_answer(rules, f"{api}_call", known_facts).value
        tiling = flash_2_tiling(setting, n, capacity, sms, sm)
        assert (tiling.rows, tiling.group) == (tile.tile, tile.rows_per_position), (context, n)
        assert tiling.splits == max(1, call_arguments[2]), (context, n)


def test_tiles_and_splits_are_those_of_the_recorded_rules() -> None:
    """The paper's shape on an H20, as a cache call."""
    agree(("kvcache", None), SHAPES[0], (90, 78))


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("call", CALLS)
def test_all_tiles_are_those_of_the_recorded_rules(
    call: tuple[str, int | None], device: tuple[int, int]
) -> None:
    """Every call and some shapes, on every kind of device that has a tile of its own."""
    for shape in SHAPES[one_in(4, call, device)]:
        agree(call, shape, device)


@pytest.mark.slow
def test_each_form_of_the_calls_is_bound(
    monkeypatch: pytest.MonkeyPatch, source_cache: Cache
) -> None:
    """At the first, the last and every changed release, all calls have the form it takes."""
    cache, versions = source_cache, versions_between("flash-attn", FIRST, LAST)
    changed = {
        version
        for name in FUNCTIONS.values()
        for version in change_points("flash-attn", versions, MEMBER, name, cache)
    }
    assert changed == {FIRST, "2.6.0.post1", "2.6.1", LAST}
    for version, (api, page) in product(sorted(changed), CALLS):
        real = {
            name: signature("flash-attn", version, MEMBER, name, cache)
            for name in FUNCTIONS.values()
        }
        kernel, called = make(monkeypatch, make_attention(api=api, page_size=page), real)
        kernel.forward(3)
        assert last_arguments(called)["causal"] is True
        assert (api, page is None) == (api, "block_table" not in last_arguments(called))
    assert real == SIGNATURES
