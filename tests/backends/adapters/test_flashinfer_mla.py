"""FlashInfer's latent attention: its wrapper, bound against real signatures, and its blocks."""

import inspect
from collections.abc import Callable
from inspect import BoundArguments
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from nearfree.backends.adapters import flashinfer_mla, flashinfer_plan
from nearfree.backends.adapters.flashinfer_mla import (
    FlashInferMlaFa2,
    FlashInferMlaFa3,
    cluster_rows,
)
from nearfree.backends.adapters.kernel import ExecutionContext, find_adapter
from nearfree.backends.records import BY_NAME
from nearfree.core.modules.mla import NAIVE
from nearfree.core.setting import Setting
from nearfree.errors import EvidenceError
from nearfree.sources.fetching.cache import Cache
from nearfree.sources.mla_tiles import measured_tile
from packaging.version import Version
from torch import Tensor

from backends.adapters.computed import flashinfer_latent
from backends.adapters.shapes import make_mla
from backends.adapters.signatures import (
    StandIn,
    signature,
    signature_of,
    stand_in,
    versions_between,
)

MEMBERS = ["flashinfer/mla.py", "flashinfer/mla/_core.py", "flashinfer/mla/_batch_mla/_wrapper.py"]
PINNED = "0.5.3"
FIRST, LAST = BY_NAME["flashinfer_mla_fa2"].releases or ("", "")
WRAPPER = "BatchMLAPagedAttentionWrapper"
NAMES = [WRAPPER, f"{WRAPPER}.plan", f"{WRAPPER}.run"]
TEXT = """
class BatchMLAPagedAttentionWrapper:
    def __init__(self, float_workspace_buffer, use_cuda_graph=False, qo_indptr=None,
        kv_indptr=None, kv_indices=None, kv_len_arr=None, backend="auto"): ...
    def plan(self, qo_indptr, kv_indptr, kv_indices, kv_len_arr, num_heads, head_dim_ckv,
        head_dim_kpe, page_size, causal, sm_scale, q_data_type, kv_data_type,
        use_profiler=False): ...
    def run(self, q_nope, q_pe, ckv_cache, kpe_cache, out=None, lse=None, return_lse=False,
        profiler_buffer=None, kv_len=None, page_table=None, return_lse_base_on_e=False): ...
"""
"""Signatures of 0.5.3."""
LATER = TEXT.replace("use_profiler=False", "use_profiler=False, *, enable_pdl=None")
Result = Callable[[dict[str, Any], dict[str, Any]], Tensor]


class Wrapper:
    """What stands in for the package: each part of its wrapper keeps its calls."""

    def __init__(self, signatures: dict[str, inspect.Signature], result: Result) -> None:
        self.made, self.plans, self.runs = ([] for _ in range(3))
        plans, runs = self.plans, self.runs

        def make(bound: BoundArguments) -> SimpleNamespace:
            own_plans: list[dict[str, Any]] = []

            def plan(bound_plan: BoundArguments) -> None:
                own_plans.append(bound_plan.arguments)
                plans.append(bound_plan.arguments)

            def run(bound_run: BoundArguments) -> Tensor:
                runs.append(bound_run.arguments)
                return result(own_plans[-1], bound_run.arguments)

            self.made.append(bound.arguments)
            return SimpleNamespace(
                plan=stand_in(signatures[f"{WRAPPER}.plan"], plan),
                run=stand_in(signatures[f"{WRAPPER}.run"], run),
            )

        self.BatchMLAPagedAttentionWrapper: StandIn = stand_in(signatures[WRAPPER], make)


def load(
    patch: pytest.MonkeyPatch,
    signatures: dict[str, inspect.Signature],
    result: Result = flashinfer_latent,
) -> Wrapper:
    """Return the stand-in, which adapters then find."""
    stand_in_ = Wrapper(signatures, result)
    patch.setattr(flashinfer_mla, "load", lambda: stand_in_)
    patch.setattr(flashinfer_plan, "_LEAST_WORKSPACE_BYTES", 1024)
    return stand_in_


def literal(text: str) -> dict[str, inspect.Signature]:
    """Return the signatures of a text."""
    return {name: signature_of(text, name) for name in NAMES}


def make_latent(**changes: Any) -> Setting:
    """Return a setting with the widths that the kernels have, some of its fields changed."""
    fields: dict[str, Any] = {"latent": 512, "rope_dim": 64, "nope_dim": 128, "value_dim": 128}
    return make_mla(backend="flashinfer_mla_fa2", **(fields | changes))


@pytest.fixture
def wrapper(monkeypatch: pytest.MonkeyPatch) -> Wrapper:
    """Return a stand-in with the signatures of the release that the environment pins."""
    return load(monkeypatch, literal(TEXT))


def test_each_n_is_planned_once(wrapper: Wrapper) -> None:
    """A plan has the starts of queries and pages of requests, and the length of each request."""
    FlashInferMlaFa2(make_latent(dtype="bfloat16"), (1, 9), ExecutionContext())
    assert [arguments["backend"] for arguments in wrapper.made] == ["fa2", "fa2"]
    first_plan, last_plan = (
        {
            name: value.tolist() if isinstance(value, Tensor) else value
            for name, value in plan.items()
        }
        for plan in wrapper.plans
    )
    assert last_plan == {
        "qo_indptr": [0, 9, 18],
        "kv_indptr": [0, 4, 8],
        "kv_indices": [0, 1, 2, 3, 4, 5, 6, 7],
        "kv_len_arr": [49, 49],
        "num_heads": 4,
        "head_dim_ckv": 512,
        "head_dim_kpe": 64,
        "page_size": 16,
        "causal": True,
        "sm_scale": (128 + 64) ** -0.5,
        "q_data_type": torch.bfloat16,
        "kv_data_type": torch.bfloat16,
    }
    assert (first_plan["kv_indices"], first_plan["kv_len_arr"]) == ([0, 1, 2, 4, 5, 6], [41, 41])


@pytest.mark.parametrize(("more", "cache"), [(0, "cold"), (1, "warm")])
def test_latents_of_the_smallest_n_fill_the_cache(wrapper: Wrapper, more: int, cache: str) -> None:
    """What is left of a page, and room for more positions, displaces nothing."""
    execution = ExecutionContext(copies=2, cache_bytes=2 * 41 * 576 * 2 + more)
    assert FlashInferMlaFa2(make_latent(dtype="bfloat16"), (1, 9), execution).cache == cache


@pytest.mark.parametrize("mask", [None, "block"])
@pytest.mark.parametrize(("n", "page"), [(1, 16), (3, 16), (9, 64), (9, 1)])
def test_a_call_asks_for_the_definition(
    wrapper: Wrapper, mask: str | None, n: int, page: int
) -> None:
    """What the wrapper would compute of its arguments is each head's attention, as it is defined.

    Query i of N stands at L + i; all heads share a key, whose first elements are the value.
    """
    kernel = FlashInferMlaFa2(make_latent(mask=mask, page_size=page), (1, n), ExecutionContext())
    out = kernel.forward(n)
    assert out.shape == (2 * n, 4, 512)
    (cache,), context = kernel._caches.copies, 40
    rows = cache.view(2, -1, 576)[:, : context + n].double()
    queries = torch.cat(kernel._queries[n], -1).view(2, n, 4, 576).double()
    logits = torch.einsum("bnhw,btw->bnht", queries, rows) * 192**-0.5
    if mask is None:
        for i in range(n):
            logits[:, i, :, context + i + 1 :] = float("-inf")
    expected = torch.einsum("bnht,btw->bnhw", logits.softmax(-1), rows[..., :512])
    assert torch.allclose(out.view(2, n, 4, 512).double(), expected, rtol=1e-4, atol=1e-5)


def test_copies_of_the_cache_take_turns(wrapper: Wrapper) -> None:
    """Each forward reads the next copy; latent and rotated elements are parts of one."""
    kernel = FlashInferMlaFa3(make_latent(), (1,), ExecutionContext(copies=2))
    assert wrapper.made[0]["backend"] == "fa3"
    for _ in range(3):
        kernel.forward(1)
    first_copy, second_copy, third_copy = (
        arguments["ckv_cache"].data_ptr() for arguments in wrapper.runs
    )
    assert first_copy == third_copy != second_copy
    ckv, kpe = wrapper.runs[0]["ckv_cache"], wrapper.runs[0]["kpe_cache"]
    assert ckv.stride() == kpe.stride() == (16 * 576, 576, 1)
    assert kpe.data_ptr() - ckv.data_ptr() == 512 * ckv.element_size()


def test_no_overlap_where_a_release_can_leave_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Consecutive launches do not overlap, where a plan can say so."""
    later = load(monkeypatch, literal(LATER))
    FlashInferMlaFa2(make_latent(), (1,), ExecutionContext())
    assert later.plans[0]["enable_pdl"] is False


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"api": NAIVE}, "over all positions, absorbed"),
        ({"selected": 6}, "over all positions, absorbed"),
        ({"latent": 256}, "a latent of 512 and 64 rotated elements, not 256 and 64"),
    ],
)
def test_what_is_not_run_is_refused(
    wrapper: Wrapper, changes: dict[str, Any], message: str
) -> None:
    """The naive form, selected positions, and widths that the kernels have not."""
    with pytest.raises(EvidenceError, match=message):
        FlashInferMlaFa2(make_latent(**changes), (1,), ExecutionContext())


@pytest.mark.parametrize(("heads", "n", "rows"), [(16, 4, 64), (16, 5, 128), (128, 1, 128)])
def test_blocks_are_those_of_the_known_tile(
    wrapper: Wrapper, heads: int, n: int, rows: int
) -> None:
    """Rows are packed, and beyond one block of the kernel's tile padded to pairs of them."""
    setting = make_latent(heads=heads, batch=3)
    tile = measured_tile("flashinfer_mla_fa2", None, heads=heads, sm=90, cached=True, absorbed=True)
    assert (tile.rows, tile.rows_per_position) == (64, heads)
    assert cluster_rows(heads, n) == rows
    work = FlashInferMlaFa2(setting, (n,), ExecutionContext()).work(n)
    assert (work.blocks, work.block_rows) == (3 * -(-heads * n // rows), rows)


def test_it_runs_on_gpus_alone() -> None:
    """Its adapters run on GPUs alone, in FlashInfer's environment."""
    for name in ("flashinfer_mla_fa2", "flashinfer_mla_fa3"):
        assert find_adapter("mla", name, "cuda").environment == "flashinfer"
        with pytest.raises(EvidenceError, match="runs mla on cuda, not on cpu"):
            find_adapter("mla", name, "cpu")


@pytest.mark.slow
def test_each_form_of_the_calls_is_bound(
    monkeypatch: pytest.MonkeyPatch, source_cache: Cache
) -> None:
    """Of the first release, the one that the environment pins and the last of each minor version.

    All calls have the form that it takes.
    """
    versions = versions_between("flashinfer-python", FIRST, LAST)
    lasts = {Version(version).release[:2]: version for version in versions}
    texts: set[str] = set()
    for version in {FIRST, PINNED, *lasts.values()}:
        real = {
            name: signature("flashinfer-python", version, MEMBERS, name, source_cache)
            for name in NAMES
        }
        stand_in_ = load(monkeypatch, real)
        FlashInferMlaFa2(make_latent(), (1, 3), ExecutionContext()).forward(3)
        plan = stand_in_.plans[-1]
        assert (plan["num_heads"], plan["page_size"], plan["causal"]) == (4, 16, True), version
        takes = "enable_pdl" in real[f"{WRAPPER}.plan"].parameters
        assert plan.get("enable_pdl") is (False if takes else None), version
        texts.add(str(real[f"{WRAPPER}.plan"]))
        if version == PINNED:
            assert {name: [*signature_.parameters] for name, signature_ in real.items()} == {
                name: [*signature_.parameters] for name, signature_ in literal(TEXT).items()
            }
    assert len(texts) > 1
