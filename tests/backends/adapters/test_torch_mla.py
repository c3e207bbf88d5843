"""Latent attention in torch: absorbed it is what widened keys and values give, by torch's SDPA."""

from typing import Any

import pytest
import torch
from nearfree.backends.adapters import torch_mla
from nearfree.backends.adapters.kernel import ExecutionContext, find_adapter
from nearfree.backends.adapters.torch_mla import TorchIndexer, TorchMla, index_scores, top_positions
from nearfree.core.modules.indexer import LOGITS
from nearfree.core.modules.mla import NAIVE
from nearfree.errors import EvidenceError
from nearfree.measure.prepare import kernel_names
from torch import Tensor

from backends.adapters.shapes import counted_flop, is_nearly, make_indexer, make_mla

POSITIONS = (1, 2, 5, 33)
HEADS, LATENT, ROPE, NOPE, CONTEXT, BATCH = 4, 24, 8, 12, 40, 2


def make(*, copies: int = 1, device: str = "cpu", **changes: Any) -> TorchMla:
    """Return the adapter of a small setting with some of its fields changed."""
    execution = ExecutionContext(copies=copies, device=device)
    return TorchMla(make_mla(**changes), POSITIONS, execution)


def reference(kernel: TorchMla, n: int, copy: int = 0) -> Tensor:
    """Return a forward by its definition in float64: query i sees what it may, or has chosen."""
    cache = kernel._caches.copies[copy][:, : CONTEXT + n].double()
    logits = kernel._queries[n].double() @ cache.transpose(1, 2).unsqueeze(1)
    logits /= (NOPE + ROPE) ** 0.5
    if n in kernel._chosen:
        left_out = torch.ones(BATCH, n, CONTEXT + n, dtype=torch.bool)
        left_out.scatter_(-1, kernel._chosen[n], value=False)
        logits.masked_fill_(left_out.unsqueeze(2), float("-inf"))
    elif kernel._setting.mask != "block":
        for i in range(n):
            logits[:, i, :, CONTEXT + i + 1 :] = float("-inf")
    return logits.softmax(-1) @ cache[..., :LATENT].unsqueeze(1)


@pytest.mark.parametrize("changes", [{}, {"mask": "block"}, {"selected": 6}], ids=str)
@pytest.mark.parametrize("n", POSITIONS)
def test_a_forward_is_its_definition(changes: dict[str, Any], n: int) -> None:
    """Each head of N queries attends to one latent head: all it sees, all, or those chosen."""
    kernel = make(**changes)
    out = kernel.forward(n)
    assert out.shape == (BATCH, n, HEADS, LATENT)
    assert is_nearly(out, reference(kernel, n))


@pytest.mark.parametrize("n", POSITIONS)
def test_16_bits_give_nearly_the_same(n: int) -> None:
    """In bfloat16 the output stays within its rounding of the definition."""
    kernel = make(dtype="bfloat16")
    out, expected = kernel.forward(n), reference(kernel, n)
    assert (out.double() - expected).norm() < 0.02 * expected.norm()


def test_copies_of_the_cache_take_turns() -> None:
    """Each forward reads the next copy."""
    kernel = make(copies=2)
    for copy in (0, 1, 0):
        assert is_nearly(kernel.forward(5), reference(kernel, 5, copy))


def test_the_flash_kernel_runs() -> None:
    """Rows of all heads are one head's queries of torch's flash kernel, with and without a mask."""
    kernel = make()
    for n in POSITIONS:
        assert "_scaled_dot_product_flash_attention_for_cpu" in kernel_names(kernel, n, "cpu")


@pytest.mark.parametrize("n", POSITIONS)
def test_the_work_is_every_key_twice(n: int) -> None:
    """Under a given mask each query meets each key, whose whole width stands for the value."""
    executed_flop = 4 * (LATENT + ROPE) * BATCH * HEADS * n * (CONTEXT + n)
    assert make().work(n).flop_executed == executed_flop
    visible = n * CONTEXT + n * (n + 1) // 2
    assert make().work(n).flop_logical == 2 * (2 * LATENT + ROPE) * BATCH * HEADS * visible
    assert make(selected=6).work(n).flop_executed == executed_flop // (CONTEXT + n) * 6


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"device": "cuda"}, "torch_sdpa runs latent attention on a CPU"),
        ({"api": NAIVE}, "in its absorbed form"),
        ({"selected": 41}, "41 positions cannot be selected of 40"),
        ({"selected": 72}, "72 positions cannot be selected of 40"),
    ],
)
def test_what_is_not_run_is_refused(changes: dict[str, Any], message: str) -> None:
    """A GPU, the naive form, and more positions than there are."""
    with pytest.raises(EvidenceError, match=message):
        make(**changes)


def test_a_selection_of_all_positions_is_the_whole_attention() -> None:
    """Where as many are selected as are seen, the forward is that of all."""
    all_selected = make(selected=CONTEXT + max(POSITIONS))
    for n in POSITIONS:
        assert is_nearly(all_selected.forward(n), reference(all_selected, n))
        assert all_selected.work(n).flop_executed == make().work(n).flop_executed


@pytest.mark.parametrize(("more", "cache"), [(0, "cold"), (1, "warm")])
def test_positions_of_the_smallest_n_fill_the_cache(more: int, cache: str) -> None:
    """Room for 33 new positions displaces nothing at N = 1, of latents and of an indexer's keys."""
    for kind, setting, width in ((TorchMla, make_mla(), 32), (TorchIndexer, make_indexer(), 7)):
        read_size = BATCH * (CONTEXT + 1) * width * 4
        execution = ExecutionContext(copies=2, cache_bytes=read_size + more)
        assert kind(setting, POSITIONS, execution).cache == cache


@pytest.mark.parametrize("n", POSITIONS)
def test_an_indexers_numbers_are_of_what_is_seen(monkeypatch: pytest.MonkeyPatch, n: int) -> None:
    """Each query has a number of each position that it sees, at the FLOPs of every one.

    Where there are more positions than are selected, it has those with the largest numbers.
    """
    kernel = TorchIndexer(make_indexer(), POSITIONS, ExecutionContext())
    out = kernel.forward(n)
    assert (out.shape, out.dtype) == ((BATCH, n, CONTEXT + n), torch.float32)
    assert bool(out.isfinite().all())
    visible = (out > -1e37).sum(-1)
    assert visible.tolist() == [[CONTEXT + 1 + i for i in range(n)]] * BATCH
    assert kernel.work(n).flop_executed == 2 * BATCH * n * 5 * 7 * (CONTEXT + n)
    sums = 2 * BATCH * n * 5 * (CONTEXT + n)
    assert counted_flop(kernel, n) == kernel.work(n).flop_executed + sums
    monkeypatch.setattr(torch_mla, "SELECTED", 6)
    assert kernel.forward(n).equal(out.topk(6, -1).indices)
    logits_setting = make_indexer(api=LOGITS)
    assert TorchIndexer(logits_setting, POSITIONS, ExecutionContext()).forward(n).shape == out.shape
    with pytest.raises(EvidenceError, match="an indexer's scores on a CPU"):
        TorchIndexer(make_indexer(), POSITIONS, ExecutionContext(device="cuda"))


def test_models_have_one_adapter_a_backend() -> None:
    """What runs latents runs models as what runs grouped queries does."""
    assert find_adapter("mla", "torch_sdpa", "cpu").class_path.endswith("torch_mla:TorchMla")
    assert find_adapter("model", "torch_sdpa", "cpu").class_path.endswith("kernel:ModelKernel")


def test_an_indexer_sums_what_is_positive() -> None:
    """A position's score is the weighted sum over heads of products above zero, if it is seen."""
    generator = torch.Generator().manual_seed(1)
    queries = torch.randn(BATCH, 3, 5, 7, generator=generator)
    keys, weights = (torch.randn(BATCH, *shape, generator=generator) for shape in ((9, 7), (3, 5)))
    mask = torch.zeros(3, 9)
    mask[0, 7:] = float("-inf")
    scores = index_scores(queries, keys, weights, mask)
    for b, i, p in ((0, 0, 2), (1, 2, 8), (1, 0, 6)):
        heads = (max(float(queries[b, i, h] @ keys[b, p]), 0.0) for h in range(5))
        expected = sum(float(weights[b, i, h]) * product for h, product in enumerate(heads))
        assert float(scores[b, i, p]) == pytest.approx(expected, abs=1e-5)
    assert bool(scores[:, 0, 7:].isinf().all())
    top = top_positions(scores, 4)
    assert top is not None
    assert top.shape == (BATCH, 3, 4)
    assert top_positions(scores, 9) is None
