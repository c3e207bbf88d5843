"""FlashInfer: its wrappers, bound against real signatures, and its tiles against our rules."""

import inspect
from collections.abc import Callable
from inspect import BoundArguments
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from nearfree.backends.adapters import flashinfer, flashinfer_plan
from nearfree.backends.adapters.flashinfer import (
    FlashInferDecode,
    FlashInferFa2,
    FlashInferFa3,
    fa2_rows,
    fa3_rows,
)
from nearfree.backends.adapters.kernel import ExecutionContext
from nearfree.backends.records import BY_NAME
from nearfree.core.setting import Mask
from nearfree.errors import EvidenceError
from nearfree.sources.fetching.cache import Cache

from backends.adapters.attention import make_attention, make_query, resolved
from backends.adapters.signatures import (
    StandIn,
    change_points,
    signature,
    signature_of,
    stand_in,
    versions_between,
)

MEMBERS = ["flashinfer/prefill.py", "flashinfer/decode.py"]
FIRST, LAST = BY_NAME["flashinfer_fa2"].releases or ("", "")
PREFILL, DECODE = "BatchPrefillWithPagedKVCacheWrapper", "BatchDecodeWithPagedKVCacheWrapper"
NAMES = [name + part for name in (PREFILL, DECODE) for part in ("", ".plan", ".run")]
FIXED = (
    *("indptr", "indices", "last_page_len"),
    *("num_qo_heads", "num_kv_heads", "head_dim", "page_size"),
)
"""What every plan of the decode wrapper takes first."""
TEXT = """
class BatchPrefillWithPagedKVCacheWrapper:
    def __init__(self, float_workspace_buffer, kv_layout="NHD", use_cuda_graph=False,
        qo_indptr_buf=None, paged_kv_indptr_buf=None, paged_kv_indices_buf=None,
        paged_kv_last_page_len_buf=None, custom_mask_buf=None, mask_indptr_buf=None,
        backend="auto", jit_args=None, jit_kwargs=None): ...
    def plan(self, qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len,
        num_qo_heads, num_kv_heads, head_dim_qk, page_size, head_dim_vo=None, custom_mask=None,
        packed_custom_mask=None, causal=False, pos_encoding_mode="NONE", sm_scale=None,
        window_left=-1, q_data_type="float16", kv_data_type=None, o_data_type=None,
        non_blocking=True): ...
    def run(self, q, paged_kv_cache, *args, k_scale=None, v_scale=None, out=None, lse=None,
        return_lse=False, enable_pdl=None, window_left=None, sinks=None): ...
class BatchDecodeWithPagedKVCacheWrapper:
    def __init__(self, float_workspace_buffer, kv_layout="NHD", use_cuda_graph=False,
        use_tensor_cores=False, paged_kv_indptr_buffer=None, paged_kv_indices_buffer=None,
        paged_kv_last_page_len_buffer=None, backend="auto", jit_args=None): ...
    def plan(self, indptr, indices, last_page_len, num_qo_heads, num_kv_heads, head_dim,
        page_size, *deprecated_positional_args, **kwargs): ...
    def run(self, q, paged_kv_cache, *args, out=None, lse=None, return_lse=False,
        enable_pdl=None, window_left=None, sinks=None): ...
"""
"""Signatures of 0.6 and later, without what no call here uses."""
OLDER = TEXT.replace(" enable_pdl=None,", "").replace("head_dim_qk", "head_dim")
Signatures = dict[str, inspect.Signature]


Result = Callable[[BoundArguments, BoundArguments], torch.Tensor]
"""What a run gives, by the arguments of its wrapper's plan and its own."""


def empty(planned: BoundArguments, bound: BoundArguments) -> torch.Tensor:
    """Return a tensor like the queries."""
    return torch.empty_like(bound.arguments["q"])


class Wrappers:
    """What stands in for the package: two wrappers, of which each part keeps its calls."""

    def __init__(self, signatures: Signatures, result: Result = empty) -> None:
        self._signatures, self._result = signatures, result
        self.parts: dict[str, StandIn] = {}
        for name in (PREFILL, DECODE):
            wrapper = stand_in(signatures[name], lambda _, name=name: self._made(name))
            self.parts[name] = wrapper
            for part in ("plan", "run"):
                self.parts[f"{name}.{part}"] = stand_in(
                    signatures[f"{name}.{part}"], lambda _: None
                )
            setattr(self, name, wrapper)

    def _made(self, name: str) -> SimpleNamespace:
        """Return one wrapper, which runs as it was planned."""
        plans: list[BoundArguments] = []

        def planned(bound: BoundArguments) -> None:
            plans.append(bound)
            self.parts[f"{name}.plan"].calls.append(bound)

        def ran(bound: BoundArguments) -> torch.Tensor:
            self.parts[f"{name}.run"].calls.append(bound)
            return self._result(plans[-1], bound)

        plan = stand_in(self._signatures[f"{name}.plan"], planned)
        return SimpleNamespace(plan=plan, run=stand_in(self._signatures[f"{name}.run"], ran))

    def given(self, part: str, call: int = -1) -> dict[str, Any]:
        """Return a call's arguments: tensors of int32 as lists, others by shape."""
        arguments: dict[str, Any] = {}
        for name, value in self.parts[part].calls[call].arguments.items():
            if isinstance(value, torch.Tensor):
                is_int32 = value.dtype == torch.int32
                arguments[name] = value.tolist() if is_int32 else tuple(value.shape)
            else:
                arguments[name] = value
        return arguments


def literal(text: str) -> Signatures:
    """Return the signatures of a text."""
    return {name: signature_of(text, name) for name in NAMES}


def load(patch: pytest.MonkeyPatch, signatures: Signatures, result: Result = empty) -> Wrappers:
    """Return the stand-ins, which adapters then find."""
    stand_ins = Wrappers(signatures, result)
    for module in (flashinfer_plan, flashinfer):
        patch.setattr(module, "load", lambda: stand_ins)
    patch.setattr(flashinfer_plan, "_LEAST_WORKSPACE_BYTES", 1024)
    return stand_ins


@pytest.fixture
def wrappers(monkeypatch: pytest.MonkeyPatch) -> Wrappers:
    """Return stand-ins with signatures of later releases."""
    return load(monkeypatch, literal(TEXT))


def test_each_n_is_planned_once(wrappers: Wrappers) -> None:
    """A plan has the starts of queries and pages of requests, and the length of the last pages."""
    FlashInferFa2(make_attention(), (1, 9), ExecutionContext())
    assert len(wrappers.parts[f"{PREFILL}.plan"].calls) == 2
    assert wrappers.given(f"{PREFILL}.plan") == {
        "qo_indptr": [0, 9, 18],
        "paged_kv_indptr": [0, 4, 8],
        "paged_kv_indices": [0, 1, 2, 3, 4, 5, 6, 7],
        "paged_kv_last_page_len": [1, 1],
        "num_qo_heads": 4,
        "num_kv_heads": 2,
        "head_dim_qk": 16,
        "page_size": 16,
        "causal": True,
        "q_data_type": torch.bfloat16,
        "kv_data_type": torch.bfloat16,
    }
    plan = wrappers.given(f"{PREFILL}.plan", 0)
    assert plan["paged_kv_indices"] == [0, 1, 2, 4, 5, 6]
    assert plan["paged_kv_last_page_len"] == [9, 9]


def test_a_forward_runs_without_overlap(wrappers: Wrappers) -> None:
    """Consecutive launches do not overlap: that would shorten what is timed."""
    out = FlashInferFa2(make_attention(page_size=8), (1, 3), ExecutionContext()).forward(3)
    assert out.shape == (6, 4, 16)
    assert wrappers.given(f"{PREFILL}.run") == {
        "q": (6, 4, 16),
        "paged_kv_cache": (12, 2, 8, 2, 16),
        "enable_pdl": False,
    }


@pytest.mark.parametrize(("adapter", "backend"), [(FlashInferFa2, "fa2"), (FlashInferFa3, "fa3")])
def test_the_kernel_is_named_and_never_chosen(
    wrappers: Wrappers, adapter: type[FlashInferFa2], backend: str
) -> None:
    """Left alone, the wrapper picks fa3 on compute capability 9.0."""
    adapter(make_attention(), (1,), ExecutionContext())
    arguments = wrappers.given(PREFILL)
    assert (arguments["backend"], arguments["kv_layout"]) == (backend, "NHD")
    assert "use_cuda_graph" not in arguments


def test_a_cuda_graph_gets_buffers_of_the_plans_sizes(wrappers: Wrappers) -> None:
    """What a captured graph reads lies in buffers, one wrapper for each N."""
    FlashInferFa2(make_attention(cuda_graph=True), (1, 9), ExecutionContext())
    assert len(wrappers.parts[PREFILL].calls) == 2
    arguments, planned = wrappers.given(PREFILL), wrappers.given(f"{PREFILL}.plan")
    assert arguments["use_cuda_graph"] is True
    for name in ("qo_indptr", "paged_kv_indptr", "paged_kv_indices", "paged_kv_last_page_len"):
        assert len(arguments[f"{name}_buf"]) == len(planned[name])


def test_an_argument_that_a_release_lacks_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Releases before 0.2.7 know no overlap, and until 0.2.0 the head size has another name."""
    older = load(monkeypatch, literal(OLDER))
    FlashInferFa2(make_attention(), (1,), ExecutionContext()).forward(1)
    assert "enable_pdl" not in older.given(f"{PREFILL}.run")
    assert older.given(f"{PREFILL}.plan")["head_dim"] == 16


@pytest.mark.parametrize(("mask", "causal"), [(None, True), ("causal", True), ("block", False)])
def test_the_mask_is_planned(wrappers: Wrappers, mask: Mask | None, *, causal: bool) -> None:
    """A block of positions that see each other is planned without the causal mask."""
    for adapter in (FlashInferFa2, FlashInferFa3):
        adapter(make_attention(mask=mask), (3,), ExecutionContext())
        assert wrappers.given(f"{PREFILL}.plan")["causal"] is causal


def test_copies_of_the_cache_take_turns(wrappers: Wrappers) -> None:
    """Each forward reads the next copy of all pages."""
    kernel = FlashInferFa2(make_attention(), (1,), ExecutionContext(copies=2))
    for _ in range(3):
        kernel.forward(1)
    calls = wrappers.parts[f"{PREFILL}.run"].calls
    first_copy, second_copy, third_copy = (
        bound.arguments["paged_kv_cache"].data_ptr() for bound in calls
    )
    assert first_copy == third_copy != second_copy


@pytest.mark.parametrize(("more", "cache"), [(0, "cold"), (1, "warm")])
def test_pages_of_the_smallest_n_fill_the_cache(wrappers: Wrappers, more: int, cache: str) -> None:
    """What is left of a page, and room for more positions, displaces nothing."""
    execution = ExecutionContext(copies=2, cache_bytes=2 * 2 * 2 * 41 * 16 * 2 + more)
    assert FlashInferFa2(make_attention(), (1, 9), execution).cache == cache


def test_decode_is_one_query_of_each_request(wrappers: Wrappers) -> None:
    """Its rows are requests; it runs on CUDA cores, and no other library is chosen for it."""
    kernel = FlashInferDecode(make_attention(cuda_graph=True), (1,), ExecutionContext())
    assert kernel.forward(1).shape == (2, 4, 16)
    arguments = wrappers.given(DECODE)
    assert (arguments["use_tensor_cores"], arguments["backend"]) == (False, "fa2")
    assert arguments["paged_kv_indptr_buffer"] is not None
    planned = wrappers.given(f"{DECODE}.plan")
    assert planned["kwargs"] == {"q_data_type": torch.bfloat16, "kv_data_type": torch.bfloat16}
    assert (planned["indptr"], planned["last_page_len"]) == ([0, 3, 6], [9, 9])
    assert wrappers.given(f"{DECODE}.run")["enable_pdl"] is False


def test_decode_of_more_positions_is_refused(wrappers: Wrappers) -> None:
    """It has no rows for a second position."""
    with pytest.raises(EvidenceError, match="N=1 alone, not 1, 2"):
        FlashInferDecode(make_attention(), (1, 2), ExecutionContext())


def test_decode_pads_nothing(wrappers: Wrappers) -> None:
    """Executed and logical work are equal."""
    work = FlashInferDecode(make_attention(), (1,), ExecutionContext()).work(1)
    assert work.flop_executed == work.flop_logical


def test_a_graph_may_need_a_larger_workspace() -> None:
    """All tiles of the largest N then keep partial outputs in float32."""
    eager = make_attention(batch=32, heads=32, kv_heads=8, head_dim=128)
    graph = make_attention(batch=32, heads=32, kv_heads=8, head_dim=128, cuda_graph=True)
    larger = flashinfer.graph_bytes(graph, 512)
    assert flashinfer.graph_bytes(eager, 512) == 0
    assert larger >= 4 * 32 * 512 * 4 * 32 * 129


@pytest.mark.parametrize("version", ["0.6.13", LAST])
@pytest.mark.parametrize("shape", [(1, 32, 32, 128), (1, 32, 8, 128), (8, 32, 8, 64)])
def test_tiles_are_those_of_the_recorded_rules(version: str, shape: tuple[int, ...]) -> None:
    """The tile of both kernels, with and without a CUDA graph, on both sides of each change."""
    sizes = dict(zip(("batch", "heads", "kv_heads", "head_dim"), shape, strict=True))
    for backend, graph, n in product(
        ("fa2", "fa3"), (False, True), (1, 2, 4, 5, 8, 16, 17, 33, 64, 65, 129)
    ):
        setting = make_attention(cuda_graph=graph, **sizes)
        query = make_query(setting, 4096 + n, sm=90, sms=132, backend=backend)
        if graph and backend == "fa2":
            query = make_query(setting, 4096 + n, sm=90, backend=backend, capture_positions=n)
        tile = resolved("flashinfer-python", version, query, n)
        group = query.group if backend == "fa2" else 1
        rows = fa2_rows(setting, n) if backend == "fa2" else fa3_rows(query.head_dim)
        assert (rows, group) == (tile.tile, tile.rows_per_position), (backend, graph, n)


@pytest.mark.parametrize(("adapter", "blocks"), [(FlashInferFa2, 2 * 2), (FlashInferFa3, 2 * 4)])
def test_work_counts_tiles_of_packed_heads_once(
    wrappers: Wrappers, adapter: type[FlashInferFa2], blocks: int
) -> None:
    """fa2 has a tile for a key-value head, fa3 one for each query head."""
    assert adapter(make_attention(), (3,), ExecutionContext()).work(3).blocks == blocks


@pytest.mark.slow
def test_each_form_of_the_calls_is_bound(
    monkeypatch: pytest.MonkeyPatch, source_cache: Cache
) -> None:
    """At the first, the last and every changed release, all calls have the form it takes."""
    cache, versions = source_cache, versions_between("flashinfer-python", FIRST, LAST)
    points = {
        name: change_points("flashinfer-python", versions, MEMBERS, name, cache) for name in NAMES
    }
    assert points[f"{PREFILL}.plan"][1:3] == ["0.2.0.post2", "0.2.1"]
    for version in {version_ for changes in points.values() for version_ in changes}:
        real = {
            name: signature("flashinfer-python", version, MEMBERS, name, cache) for name in NAMES
        }
        stand_ins = load(monkeypatch, real)
        for graph in (False, True):
            setting = make_attention(cuda_graph=graph)
            FlashInferFa2(setting, (1, 3), ExecutionContext()).forward(3)
            FlashInferDecode(setting, (1,), ExecutionContext()).forward(1)
        planned = stand_ins.given(f"{PREFILL}.plan")
        head_dim = planned.get("head_dim_qk", planned.get("head_dim"))
        assert (head_dim, planned["page_size"], planned["causal"]) == (16, 16, True), version
        for name in (PREFILL, DECODE):
            pinned = stand_ins.given(f"{name}.run").get("enable_pdl")
            assert pinned is (False if "enable_pdl" in real[f"{name}.run"].parameters else None)
        if "kwargs" in real[f"{DECODE}.plan"].parameters:
            inner = f"{DECODE}._plan_impl"
            inner_signature = signature("flashinfer-python", version, MEMBERS, inner, cache)
            inner_signature.bind(
                **stand_ins.given(f"{DECODE}.plan")["kwargs"], **dict.fromkeys(FIXED)
            )
