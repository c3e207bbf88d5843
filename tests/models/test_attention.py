"""A decoder's attention on each backend, against torch, through calls with real signatures."""

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from backends.adapters import test_flash_attn, test_flashinfer
from backends.adapters.signatures import change_points, signature, versions_between
from backends.adapters.test_flashinfer import NAMES, PREFILL, TEXT, literal
from nearfree.backends.adapters import flash_attn_3
from nearfree.backends.adapters.kernel import ExecutionContext
from nearfree.core.setting import Mask
from nearfree.errors import EvidenceError
from nearfree.models import attention as attending
from nearfree.models.attention import AttentionMask, Flash, make_attention_runner
from nearfree.models.forward import DecoderForward
from nearfree.sources.fetching.cache import Cache

from models import libraries
from models.small import BATCH, CONTEXT, MOST, document, error, make_forward, tokens

pytestmark = pytest.mark.usefixtures("inference")

POSITIONS = (1, 2, 7)
MASKS: tuple[Mask, ...] = ("causal", "block")
WINDOWED = document("mistral", sliding_window=12)
by_backend = pytest.mark.parametrize("backend", libraries.ATTENTION)
by_mask = pytest.mark.parametrize("mask", MASKS)


def pair(
    folder: Path, config: dict[str, Any], backend: str, **options: Any
) -> tuple[DecoderForward, DecoderForward]:
    """Return torch's forward and a backend's, of the same weights and the same L cached tokens.

    What lies after these in the backend's cache is no number, so it is not read.
    """
    base = make_forward(folder, config, **options)
    other = make_forward(folder, config, attention=backend, **options)
    for mine, theirs in zip((*other.keys, *other.values), (*base.keys, *base.values), strict=True):
        mine[:, :, CONTEXT:] = float("nan")
        mine[:, :, :CONTEXT] = theirs[:, :, :CONTEXT]
    return base, other


def check(base: DecoderForward, other: DecoderForward) -> None:
    """Assert that two forwards have the same logits at each N, in any order."""
    for n in (*POSITIONS, *reversed(POSITIONS)):
        assert error(other.forward(tokens(n)), base.forward(tokens(n))) < 1e-5


@by_mask
@pytest.mark.parametrize("kind", ["qwen3", "bailing_moe_v2"])
@by_backend
def test_logits_are_those_of_torch(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, backend: str, kind: str, mask: Mask
) -> None:
    """Each backend reads the L cached and N new keys under the mask, and no others."""
    libraries.ATTENTION[backend](monkeypatch)
    check(*pair(tmp_path, document(kind), backend, mask=mask))


@by_backend
def test_a_window_is_given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, backend: str) -> None:
    """A query sees the last 12 keys, as in torch."""
    libraries.ATTENTION[backend](monkeypatch)
    check(*pair(tmp_path, WINDOWED, backend))


@by_backend
def test_windows_go_by_layer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, backend: str) -> None:
    """Layers with and without a window, and a logit scale, are as in torch."""
    libraries.ATTENTION[backend](monkeypatch)
    check(*pair(tmp_path, document("gemma3_text"), backend))


@pytest.mark.parametrize("kind", ["gpt_oss", "gemma2", "llama4_text", "deepseek_v3"])
@by_backend
def test_what_no_call_is_given_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, backend: str, kind: str
) -> None:
    """Sinks, capped logits, chunks and latents are refused with the backend's name."""
    libraries.ATTENTION[backend](monkeypatch)
    with pytest.raises(EvidenceError, match=f"{backend} on cpu is not run with"):
        make_forward(tmp_path, document(kind), attention=backend)


def test_a_release_without_windows_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A FlashInfer release without windows in its plan refuses a model with windows."""
    signatures = literal(TEXT.replace("window_left=-1, ", ""))
    libraries.flashinfer(monkeypatch, signatures)
    forward = make_forward(tmp_path, WINDOWED, attention="flashinfer_fa2")
    with pytest.raises(EvidenceError, match="plans no window"):
        forward.forward(tokens(1))


@by_mask
def test_flash_attention_2_reads_the_whole_cache(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mask: Mask
) -> None:
    """The call gets the cache as it lies in memory and its used length."""
    called = libraries.flash_2(monkeypatch)
    forward = pair(tmp_path, document("qwen3"), "flash_attn", mask=mask)[1]
    forward.forward(tokens(7))
    given = test_flash_attn.last_arguments(called)
    assert given == {
        "q": (BATCH, 7, 8, 16),
        "k_cache": (BATCH, CONTEXT + MOST, 2, 16),
        "v_cache": (BATCH, CONTEXT + MOST, 2, 16),
        "cache_seqlens": [CONTEXT + 7] * BATCH,
        "causal": mask == "causal",
    }
    caches = [bound.arguments["k_cache"].data_ptr() for bound in called.calls]
    assert caches == [keys.data_ptr() for keys in forward.keys]


@by_mask
def test_flash_attention_3_reads_the_whole_cache(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mask: Mask
) -> None:
    """As for FlashAttention 2, with the causal mask's other name."""
    operator = libraries.flash_3(monkeypatch)
    pair(tmp_path, document("qwen3"), "flash_attn_3", mask=mask)[1].forward(tokens(7))
    assert operator.given() == {
        "q": (BATCH, 7, 8, 16),
        "k": (BATCH, CONTEXT + MOST, 2, 16),
        "v": (BATCH, CONTEXT + MOST, 2, 16),
        "seqused_k": [CONTEXT + 7] * BATCH,
        "is_causal": mask == "causal",
    }


@by_mask
@pytest.mark.parametrize("kernels", ["fa2", "fa3"])
def test_flashinfer_reads_the_cache_as_pages(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kernels: str, mask: Mask
) -> None:
    """Of 4 pages of 16 positions a request needs 2 for N = 7, 14 in the second."""
    wrappers = libraries.flashinfer(monkeypatch)
    config = document("qwen3")
    forward = pair(tmp_path, config, f"flashinfer_{kernels}", mask=mask)[1]
    forward.forward(tokens(7))
    assert forward.keys[0].shape == (BATCH, 2, 64, 16)
    given = wrappers.given(PREFILL)
    assert (given["backend"], given["kv_layout"]) == (kernels, "NHD")
    assert wrappers.given(f"{PREFILL}.plan") == {
        "qo_indptr": [0, 7, 14],
        "paged_kv_indptr": [0, 2, 4],
        "paged_kv_indices": [0, 1, 4, 5],
        "paged_kv_last_page_len": [14, 14],
        "num_qo_heads": 8,
        "num_kv_heads": 2,
        "head_dim_qk": 16,
        "page_size": 16,
        "causal": mask == "causal",
        "q_data_type": torch.float32,
        "kv_data_type": torch.float32,
    }
    runs = wrappers.parts[f"{PREFILL}.run"].calls
    assert wrappers.given(f"{PREFILL}.run")["enable_pdl"] is False
    pages = [bound.arguments["paged_kv_cache"] for bound in runs]
    assert [keys.data_ptr() for keys, _ in pages] == [keys.data_ptr() for keys in forward.keys]
    assert pages[0][1].shape == (BATCH * 4, 16, 2, 16)


def test_each_n_is_planned_once_for_all_layers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Three layers share the plan of an N; a second forward plans nothing."""
    wrappers = libraries.flashinfer(monkeypatch)
    forward = make_forward(tmp_path, document("qwen3"), attention="flashinfer_fa2")
    assert not wrappers.parts[f"{PREFILL}.plan"].calls
    for planned, n in ((1, 2), (2, 7), (2, 2), (2, 7)):
        forward.forward(tokens(n))
        assert len(wrappers.parts[f"{PREFILL}.plan"].calls) == planned


def test_forwards_share_plans(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """All forwards of one execution share one plan per N, for any k and routing."""
    wrappers, plans = libraries.flashinfer(monkeypatch), {}
    for top_k, routing in product((4, 2), ("router", "balanced")):
        config = document("qwen3_moe", num_experts_per_tok=top_k)
        base = make_forward(tmp_path, config, routing=routing)
        forward = make_forward(
            tmp_path, config, attention="flashinfer_fa2", routing=routing, shared=plans
        )
        for mine, theirs in zip(
            (*forward.keys, *forward.values), (*base.keys, *base.values), strict=True
        ):
            mine[:, :, :CONTEXT] = theirs[:, :, :CONTEXT]
        for n in (2, 7):
            assert error(forward.forward(tokens(n)), base.forward(tokens(n))) < 1e-5
    assert len(wrappers.parts[PREFILL].calls) == 2


SHAPE: dict[str, Any] = {
    "backend": "flashinfer_fa2", "mask": "causal", "context": 8, "window": None, "batch": 2,
    "heads": 8, "kv_heads": 2, "head_dim": 16, "n": 3, "room": 32, "dtype": torch.float32,
}  # fmt: skip


def attend(execution: ExecutionContext, **changes: Any) -> None:
    """Run the attention of one forward."""
    given = SHAPE | changes
    attention_mask = AttentionMask(given["mask"], given["context"], given["window"])
    queries = torch.zeros(given["batch"], given["heads"], given["n"], given["head_dim"])
    cache = torch.zeros(given["batch"], given["room"], given["kv_heads"], given["head_dim"])
    keys = cache.to(given["dtype"]).transpose(1, 2)
    way = make_attention_runner(given["backend"], attention_mask, given["dtype"], execution)
    way.attend(queries.to(given["dtype"]), keys, keys)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("backend", "flashinfer_fa3"), ("mask", "block"), ("context", 9), ("window", 4),
        ("batch", 3), ("heads", 4), ("kv_heads", 4), ("head_dim", 32), ("n", 4), ("room", 48),
        ("dtype", torch.bfloat16),
    ],
)  # fmt: skip
def test_another_plan_is_not_shared(
    monkeypatch: pytest.MonkeyPatch, name: str, value: object
) -> None:
    """Other plan arguments, such as a request's pages, make another plan in the same workspace."""
    wrappers, execution = libraries.flashinfer(monkeypatch), ExecutionContext()
    for changes in ({}, {name: value}, {}, {name: value}):
        attend(execution, **changes)
    made = wrappers.parts[PREFILL].calls
    assert len(made) == 2
    assert len({bound.arguments["float_workspace_buffer"].data_ptr() for bound in made}) == 1


def test_places_share_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another execution has its own workspace and plans."""
    wrappers = libraries.flashinfer(monkeypatch)
    places = ExecutionContext(), ExecutionContext()
    for execution in places:
        attend(execution)
    made = wrappers.parts[PREFILL].calls
    assert len({bound.arguments["float_workspace_buffer"].data_ptr() for bound in made}) == 2


def test_masks_are_made_once_for_each_n(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """On a CPU all layers and forwards of an N share one mask."""
    forward, made = make_forward(tmp_path, document("qwen3")), []
    real = attending.causal_mask

    def masked(n: int, *args: Any, **kwargs: Any) -> torch.Tensor:
        made.append(n)
        return real(n, *args, **kwargs)

    monkeypatch.setattr(attending, "causal_mask", masked)
    for n in (1, 2, 7, 2, 7):
        forward.forward(tokens(n))
    assert made == [2, 7]


def test_lengths_are_made_once_for_each_n(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """All layers and forwards of an N get the same tensor of lengths, for CUDA graphs."""
    called = libraries.flash_2(monkeypatch)
    forward = make_forward(tmp_path, document("qwen3"), attention="flash_attn")
    for n in (2, 7, 2, 7):
        forward.forward(tokens(n))
    lengths = [bound.arguments["cache_seqlens"] for bound in called.calls]
    assert len(lengths) == 4 * 3
    assert len({id(tensor) for tensor in lengths}) == 2


def test_an_unknown_backend_is_refused(tmp_path: Path) -> None:
    """An unknown backend is refused, and the message lists the known ones."""
    with pytest.raises(EvidenceError, match="attention on 'xformers'") as caught:
        make_forward(tmp_path, document("qwen3"), attention="xformers")
    assert "torch_sdpa, flash_attn, flash_attn_3, flashinfer_fa2" in caught.value.remedy


@pytest.mark.parametrize("backend", ["torch_sdpa", *libraries.ATTENTION])
def test_a_gpu_attends_in_16_bits(backend: str) -> None:
    """GPU kernels refuse float32 before a library is loaded."""
    with pytest.raises(EvidenceError, match=f"{backend} does not run in torch.float32"):
        make_attention_runner(
            backend, AttentionMask("causal", 8), torch.float32, ExecutionContext(device="cuda")
        )


def test_flash_attention_3_is_for_9_0(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Another compute capability than 9.0 is refused, as for the module alone."""
    libraries.flash_3(monkeypatch)
    monkeypatch.setattr(flash_attn_3, "compute_capability", lambda _: 80)
    with pytest.raises(EvidenceError, match=r"9\.0 alone"):
        make_forward(tmp_path, document("qwen3"), attention="flash_attn_3")


def test_torch_on_a_gpu_is_its_flash_op() -> None:
    """On a GPU torch's FlashAttention operator runs, over a cache with positions first."""
    execution = ExecutionContext(device="cuda")
    runner = make_attention_runner(
        "torch_sdpa", AttentionMask("block", 8), torch.bfloat16, execution
    )
    assert isinstance(runner, Flash)
    assert runner.positions_first


@pytest.mark.slow
def test_flash_attention_2_is_bound(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, source_cache: Cache
) -> None:
    """The call fits the signatures of the first, the last and every changed release."""
    first, last = test_flash_attn.FIRST, test_flash_attn.LAST
    cache, versions = source_cache, versions_between("flash-attn", first, last)
    execution = ("flash-attn", test_flash_attn.MEMBER, libraries.CACHE_CALL)
    points = change_points(execution[0], versions, *execution[1:], cache)
    assert {first, last} <= set(points)
    for version in points:
        libraries.flash_2(monkeypatch, signature(execution[0], version, *execution[1:], cache))
        check(*pair(tmp_path, WINDOWED, "flash_attn"))
        check(*pair(tmp_path, document("qwen3"), "flash_attn", mask="block"))


@pytest.mark.slow
def test_flashinfer_is_bound(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, source_cache: Cache
) -> None:
    """Wrapper, plan and run fit the signatures of the first, the last and every changed release."""
    package, members = "flashinfer-python", test_flashinfer.MEMBERS
    first, last = test_flashinfer.FIRST, test_flashinfer.LAST
    cache, versions = source_cache, versions_between(package, first, last)
    names = [name for name in NAMES if name.startswith(PREFILL)]
    points = {
        version
        for name in names
        for version in change_points(package, versions, members, name, cache)
    }
    assert {first, last} <= points
    for version in sorted(points):
        real = {name: signature(package, version, members, name, cache) for name in NAMES}
        libraries.flashinfer(monkeypatch, real)
        check(*pair(tmp_path, WINDOWED, "flashinfer_fa2"))
        check(*pair(tmp_path, document("qwen3"), "flashinfer_fa3", mask="block"))
