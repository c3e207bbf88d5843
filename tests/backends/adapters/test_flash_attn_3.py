"""FlashAttention 3: its calls, through torch's dispatcher under the schema of real releases."""

import re
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest
import torch
from nearfree.backends.adapters import flash_attn_3
from nearfree.backends.adapters.flash_attn_3 import FlashAttn3
from nearfree.backends.adapters.flash_kernel import APIS
from nearfree.backends.adapters.flash_tiles import Tiling, flash_3_tiling
from nearfree.backends.adapters.kernel import ExecutionContext
from nearfree.backends.records import BY_NAME
from nearfree.core.setting import Mask, Setting
from nearfree.errors import EvidenceError
from nearfree.sources.attention import facts, point_of, rule_answer
from nearfree.sources.backends.flash_attn_3 import PASSED
from nearfree.sources.fetching.cache import Cache
from torch.library import Library

from backends.adapters.attention import make_attention, make_query, recorded, resolved
from backends.adapters.signatures import bring, versions_between

HOPPER = "third_party/flash-attention/hopper"
MEMBERS = [f"{HOPPER}/flash_api.cpp", f"{HOPPER}/flash_api_stable.cpp"]
FIRST, LAST = BY_NAME["flash_attn_3"].releases or ("", "")
"""The releases of xformers that install the operator."""
SCHEMA = (
    "fwd(Tensor q,Tensor k,Tensor v,Tensor(k_new!)? k_new = None,Tensor(v_new!)? v_new = None,"
    "Tensor? q_v = None,Tensor(out!)? out = None,Tensor? cu_seqlens_q = None,"
    "Tensor? cu_seqlens_k = None,Tensor? cu_seqlens_k_new = None,Tensor? seqused_q = None,"
    "Tensor? seqused_k = None,int? max_seqlen_q = None,int? max_seqlen_k = None,"
    "Tensor? page_table = None,Tensor? kv_batch_idx = None,Tensor? leftpad_k = None,"
    "Tensor? rotary_cos = None,Tensor? rotary_sin = None,Tensor? seqlens_rotary = None,"
    "Tensor? q_descale = None,Tensor? k_descale = None,Tensor? v_descale = None,"
    "float? softmax_scale = None,bool is_causal = False,int window_size_left = -1,"
    "int window_size_right = -1,int attention_chunk = 0,float softcap = 0.0,"
    "bool is_rotary_interleaved = False,Tensor? scheduler_metadata = None,int num_splits = 0,"
    "bool? pack_gqa = None,int sm_margin = 0) -> (Tensor(out!), Tensor, Tensor, Tensor)"
)
CALLS = [
    *(("kvcache", page) for page in (None, 16, 128)),
    *(("varlen", page) for page in (None, 16)),
    ("dense", None),
]
NUMBERS = count()


Result = Callable[[dict[str, Any]], torch.Tensor]
"""What the operator gives first, by its named arguments."""


class Operator:
    """A schema that torch dispatches by, with a kernel for CPUs that answers by shape.

    With a `result`, that is what it gives once torch has taken the call.
    """

    def __init__(self, schema: str, result: Result | None = None) -> None:
        self._result = result
        name = f"nearfree_test_{next(NUMBERS)}"
        self._library = Library(name, "DEF")
        self._library.define(schema)
        self._library.impl("fwd", self._run, "CPU")
        self._op = getattr(torch.ops, name).fwd
        self.calls: list[dict[str, Any]] = []

    @staticmethod
    def _run(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
        q = args[0] if args else kwargs["q"]
        return (torch.zeros_like(q), *(q.new_zeros(1) for _ in range(3)))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Dispatch, which refuses what the schema does not take, and keep the named arguments."""
        out = self._op(*args, **kwargs)
        self.calls.append(dict(zip(("q", "k", "v"), args, strict=True)) | kwargs)
        return out if self._result is None else (self._result(self.calls[-1]), *out[1:])

    def close(self) -> None:
        """Take the schema back."""
        self._library._destroy()

    def given(self) -> dict[str, Any]:
        """Return the last call: lengths and pages as lists, other tensors by shape."""
        arguments = {}
        for name, value in self.calls[-1].items():
            if isinstance(value, torch.Tensor):
                is_int32 = value.dtype == torch.int32
                arguments[name] = value.tolist() if is_int32 else tuple(value.shape)
            else:
                arguments[name] = value
        return arguments


@pytest.fixture
def operator(monkeypatch: pytest.MonkeyPatch) -> Iterator[Operator]:
    """Return the operator of 0.0.34, which the adapter then finds."""
    stand_in_operator = Operator(SCHEMA)
    monkeypatch.setattr(flash_attn_3, "load", lambda: stand_in_operator)
    yield stand_in_operator
    stand_in_operator.close()


def make(**changes: Any) -> FlashAttn3:
    """Return an adapter over N = 1 and 3."""
    return FlashAttn3(make_attention(**changes), (1, 3), ExecutionContext(sms=132))


def test_a_cache_call_gives_the_length_in_use(operator: Operator) -> None:
    """L + N keys of each request are in the cache, causal, aligned at the end."""
    out = make(api="kvcache").forward(3)
    assert out.shape == (2, 3, 4, 16)
    assert operator.given() == {
        "q": (2, 3, 4, 16),
        "k": (2, 43, 2, 16),
        "v": (2, 43, 2, 16),
        "seqused_k": [43, 43],
        "is_causal": True,
    }


def test_a_paged_cache_is_found_by_its_table(operator: Operator) -> None:
    """A request of 43 keys has three pages of 16, and one of 41 too."""
    make(api="kvcache", page_size=16).forward(3)
    arguments = operator.given()
    assert arguments["page_table"] == [[0, 1, 2], [3, 4, 5]]
    assert (arguments["k"], arguments["seqused_k"]) == ((6, 16, 2, 16), [43, 43])


def test_a_varlen_call_says_where_requests_begin_and_end(operator: Operator) -> None:
    """Rows of all requests lie behind each other."""
    out = make(api="varlen").forward(3)
    assert out.shape == (6, 4, 16)
    assert operator.given() == {
        "q": (6, 4, 16),
        "k": (86, 2, 16),
        "v": (86, 2, 16),
        "cu_seqlens_q": [0, 3, 6],
        "max_seqlen_q": 3,
        "cu_seqlens_k": [0, 43, 86],
        "max_seqlen_k": 43,
        "is_causal": True,
    }


def test_a_paged_varlen_call_gives_lengths_for_ends(operator: Operator) -> None:
    """Ends of keys and pages exclude each other: with pages, the lengths in use are given."""
    make(api="varlen", page_size=16).forward(1)
    arguments = operator.given()
    assert arguments["seqused_k"] == [41, 41]
    assert arguments["cu_seqlens_q"] == [0, 1, 2]
    assert "cu_seqlens_k" not in arguments


def test_a_dense_call_takes_tensors_of_their_length(operator: Operator) -> None:
    """Nothing but the tensors and the mask is given."""
    make(api="dense").forward(1)
    shapes = {"q": (2, 1, 4, 16), "k": (2, 41, 2, 16), "v": (2, 41, 2, 16)}
    assert operator.given() == {**shapes, "is_causal": True}


@pytest.mark.parametrize(("mask", "causal"), [(None, True), ("causal", True), ("block", False)])
def test_the_mask_is_given(operator: Operator, mask: Mask | None, *, causal: bool) -> None:
    """A block of positions that see each other is called without the causal mask, in each api."""
    for api in APIS:
        make(api=api, mask=mask).forward(3)
        assert operator.given()["is_causal"] is causal


def test_a_call_that_the_schema_does_not_take_is_refused(operator: Operator) -> None:
    """The dispatcher that checks these calls knows names and types."""
    q = torch.zeros(1, 1, 1, 16)
    with pytest.raises(RuntimeError, match="block_table"):
        operator(q, q, q, block_table=q)
    with pytest.raises(RuntimeError, match="max_seqlen_q"):
        operator(q, q, q, max_seqlen_q=q)
    assert operator.calls == []


def test_an_unknown_api_is_refused(operator: Operator) -> None:
    """The message lists the known ones."""
    with pytest.raises(EvidenceError, match="no api") as error:
        make(api="prefill")
    assert "kvcache, varlen, dense" in error.value.remedy


def test_another_capability_is_refused(operator: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tiles counted here are those of 9.0."""
    monkeypatch.setattr(flash_attn_3, "compute_capability", lambda _: 80)
    with pytest.raises(EvidenceError, match=r"9\.0 alone"):
        make(api="kvcache")


def test_xformers_without_the_operator_is_refused() -> None:
    """What is missing is named, with the releases that have it."""
    with pytest.raises(EvidenceError, match="no FlashAttention 3") as error:
        flash_attn_3.load()
    assert LAST in error.value.remedy


def test_packed_heads_are_rows_of_one_tile(operator: Operator) -> None:
    """Two heads of a key-value head share a tile in a varlen call, so there are half as many."""
    assert make(api="varlen").work(3).blocks == 2 * 2
    assert "not counted" in make(api="varlen").work(3).basis


def agree(setting: Setting, n: int, sms: int = 132) -> None:
    """Compare tile and packed rows with the recorded rules, and splits where they are fixed."""
    length = (setting.context or 0) + n
    page = setting.page_size
    capacity = -(-length // page) * page if page else length
    query = make_query(setting, capacity, sm=90, sms=sms)
    tiling = flash_3_tiling(setting, n, capacity, sms)
    tile = resolved("xformers", LAST, query, n)
    assert (tiling.rows, tiling.group) == (tile.tile, tile.rows_per_position), (setting, n)
    if setting.api == "dense":
        rules = recorded("xformers", LAST).by_name()
        known_facts = facts(query, point_of(query, n)) | {
            "cc_major": 9,
            "cc_minor": 0,
            "tokens_per_page": 1,
        }
        call_arguments = dict(
            zip(PASSED, rule_answer(rules, "dense_call", known_facts).value, strict=True)
        )
        assert tiling.splits == call_arguments["num_splits"], (setting, n)


def test_split_keys_pack_heads() -> None:
    """Where tiles are few the keys are split, and then the heads of a group share a tile."""
    setting = make_attention(api="dense", batch=1, heads=32, kv_heads=8, head_dim=128)
    few_positions, many_positions = (flash_3_tiling(setting, n, 4096, 132) for n in (64, 2048))
    assert few_positions == Tiling(rows=128, keys=128, group=4, splits=7)
    assert many_positions == Tiling(rows=128, keys=128, group=1, splits=1)


@pytest.mark.parametrize(
    ("head_dim", "rows", "keys"),
    [(64, 192, 128), (96, 192, 144), (128, 128, 128), (192, 128, 112), (256, 128, 80)],
)
def test_the_tile_follows_the_head_size(head_dim: int, rows: int, keys: int) -> None:
    """Under a causal mask, with keys that are no pages."""
    tiling = flash_3_tiling(make_attention(api="dense", head_dim=head_dim), 2, 100, 132)
    assert (tiling.rows, tiling.keys) == (rows, keys)


@pytest.mark.slow
@pytest.mark.parametrize("head_dim", [64, 96, 128, 192, 256])
def test_each_head_size_has_the_tile_of_the_recorded_rules(head_dim: int) -> None:
    """A short cache is not split, so heads are packed only where that fills tiles better."""
    for n in (1, 2, 130):
        agree(make_attention(api="dense", context=100, head_dim=head_dim), n)
        agree(make_attention(api="kvcache", context=100, head_dim=head_dim, page_size=16), n)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(1, 32, 32, 128), (4, 32, 8, 64), (2, 64, 8, 192)])
@pytest.mark.parametrize(("api", "page_size"), CALLS)
def test_tiles_are_those_of_the_recorded_rules(
    api: str, page_size: int | None, shape: tuple[int, ...]
) -> None:
    """Every call and head size, where keys are split and where they are not."""
    sizes = dict(zip(("batch", "heads", "kv_heads", "head_dim"), shape, strict=True))
    for context, n in ((100, 2), (4096, 1), (4096, 65), (32768, 385)):
        agree(make_attention(context=context, api=api, page_size=page_size, **sizes), n)


@pytest.mark.slow
def test_every_release_has_the_schema_that_calls_are_bound_to(source_cache: Cache) -> None:
    """It has not changed from 0.0.31 on, and is equal in both files that define it."""
    schemas = set()
    for version in versions_between("xformers", FIRST, LAST):
        source = bring("xformers", version, MEMBERS, source_cache)
        for path in source.paths():
            defined = re.search(r'm\.def\("fwd\("(.*?)\);', source.text(path), re.DOTALL)
            assert defined
            schemas.add("fwd(" + "".join(re.findall(r'"(.*?)"', defined[1])))
    assert schemas == {SCHEMA}
