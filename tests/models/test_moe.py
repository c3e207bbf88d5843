"""A decoder's experts in serving engines, against torch, through calls with real signatures."""

from pathlib import Path

import pytest
import torch
from backends.adapters import test_sglang_moe, test_vllm_moe
from backends.adapters.signatures import StandIn, change_points, signature, versions_between
from backends.adapters.test_sglang_moe import OLD, OLDEST, OTHER_MODULES, Release, signatures_in
from nearfree.backends.adapters.kernel import ExecutionContext
from nearfree.core.routing_names import ModelRouting
from nearfree.core.setting import Mask
from nearfree.decoders.decoder import Experts
from nearfree.errors import EvidenceError
from nearfree.models.expert_runners import ExpertRunner, make_expert_runner
from nearfree.models.forward import DecoderForward
from nearfree.models.layers import RandomWeights
from nearfree.sources.fetching.cache import Cache
from torch import Tensor

from models import libraries
from models.small import BATCH, document, error, make_forward, tokens

pytestmark = pytest.mark.usefixtures("inference")

POSITIONS = (1, 2, 7)
KINDS = ("qwen3_moe", "qwen2_moe", "bailing_moe_v2")
"""Experts alone, shared ones behind a gate, and shares that are scaled."""
MASKS: tuple[Mask, ...] = ("causal", "block")
ROUTINGS: tuple[ModelRouting, ...] = ("router", "balanced", "skewed")
by_backend = pytest.mark.parametrize("backend", libraries.EXPERTS)
by_routing = pytest.mark.parametrize("routing", ROUTINGS)


def check(folder: Path, kind: str, backend: str, routing: ModelRouting, mask: Mask) -> None:
    """Assert that a backend's forward has the logits of torch_padded at each N, in any order."""
    base, other = (
        make_forward(folder, document(kind), routing=routing, mask=mask, moe=moe)
        for moe in ("torch_padded", backend)
    )
    for n in (*POSITIONS, *reversed(POSITIONS)):
        assert error(other.forward(tokens(n)), base.forward(tokens(n))) < 1e-5


@by_routing
@pytest.mark.parametrize("kind", KINDS)
@by_backend
def test_logits_are_those_of_torch(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, backend: str, kind: str, routing: ModelRouting
) -> None:
    """Each engine runs the chosen experts with their shares, under every routing."""
    libraries.EXPERTS[backend](monkeypatch)
    for mask in MASKS:
        check(tmp_path, kind, backend, routing, mask)


def test_the_older_form_of_sglang_gives_the_same(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Shares and ids may be separate arguments instead of one object."""
    fused = libraries.sglang(monkeypatch, Release(signatures_in(OLDEST), OLD, set()))
    check(tmp_path, "qwen3_moe", "sglang", "router", "causal")
    assert fused.calls[0].arguments["inplace"] is False


def given(called: StandIn, name: str, call: int = -1) -> Tensor:
    """Return an argument of a call of vLLM."""
    argument: Tensor = called.calls[call].arguments[name]
    return argument


@pytest.mark.parametrize("routing", ["balanced", "skewed"])
def test_controlled_experts_weigh_alike(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, routing: ModelRouting
) -> None:
    """Token i goes to experts (i k + j) mod E, or all to the first k, with 1 / k each."""
    called = libraries.vllm(monkeypatch)
    forward = make_forward(tmp_path, document("bailing_moe_v2"), moe="vllm", routing=routing)
    forward.forward(tokens(7))
    starts = 4 * torch.arange(BATCH * 7)[:, None] if routing == "balanced" else 0
    expected = (starts + torch.arange(4)).remainder(16).expand(BATCH * 7, 4)
    assert given(called, "topk_ids").equal(expected.to(torch.int32))
    assert given(called, "topk_weights").equal(torch.full((BATCH * 7, 4), 0.25))


def test_a_scaled_rule_scales_shares(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Shares of Ling's router are normalised and then scaled by its factor."""
    called = libraries.vllm(monkeypatch)
    forward = make_forward(tmp_path, document("bailing_moe_v2"), moe="vllm")
    forward.forward(tokens(7))
    sums = given(called, "topk_weights").sum(1)
    assert torch.allclose(sums, torch.full_like(sums, 2.5))


def test_controlled_routing_is_made_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """All layers and forwards of an N get the same ids and shares, for CUDA graphs."""
    called = libraries.vllm(monkeypatch)
    forward = make_forward(tmp_path, document("qwen3_moe"), moe="vllm", routing="balanced")
    for n in (2, 7, 2, 7):
        forward.forward(tokens(n))
    assert len(called.calls) == 4 * 3
    for name in ("topk_ids", "topk_weights"):
        assert len({id(given(called, name, call)) for call in range(12)}) == 2


def test_rows_are_not_written_in_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Routed experts leave their input rows unchanged, which shared experts read."""
    called = libraries.vllm(monkeypatch)
    make_forward(tmp_path, document("bailing_moe_v2"), moe="vllm").forward(tokens(2))
    assert {bound.arguments["inplace"] for bound in called.calls} == {False}


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put all libraries in execution, which answer by shape alone: no value of a tensor is read."""
    libraries.flash_2(monkeypatch)._result = lambda bound: torch.empty_like(bound.arguments["q"])
    wrappers = libraries.flashinfer(monkeypatch)
    wrappers._result = lambda _, bound: torch.empty_like(bound.arguments["q"])
    for fused in (libraries.vllm(monkeypatch), libraries.sglang(monkeypatch)):
        fused._result = lambda bound: torch.empty_like(bound.arguments["hidden_states"])


def twice(folder: Path, **options: str) -> None:
    """Run a forward of each N twice where tensors have no values: reading one raises."""
    dtype, device = torch.bfloat16, "meta"
    weights = RandomWeights(dtype, device)
    config = document("bailing_moe_v2")
    forward = make_forward(folder, config, weights=weights, dtype=dtype, device=device, **options)
    for n in (2, 7, 2, 7):
        out = forward.forward(torch.zeros(BATCH, n, dtype=torch.int64, device=device))
        assert out.shape == (BATCH, n, 97)


@by_routing
@pytest.mark.parametrize("moe", ["torch_grouped", "vllm", "sglang"])
@pytest.mark.parametrize("attention", ["flash_attn", "flashinfer_fa2"])
@pytest.mark.usefixtures("bare")
def test_nothing_waits_for_the_device(
    tmp_path: Path, attention: str, moe: str, routing: ModelRouting
) -> None:
    """A forward reads no value of a tensor back, not even the first: a CUDA graph can hold it."""
    twice(tmp_path, attention=attention, moe=moe, routing=routing)


@pytest.mark.usefixtures("bare")
def test_padded_blocks_of_a_router_wait_for_it(tmp_path: Path) -> None:
    """torch_padded reads the router's ids, which the test above would find."""
    with pytest.raises(NotImplementedError, match="meta"):
        twice(tmp_path, attention="flash_attn", moe="torch_padded", routing="router")


def make(
    backend: str,
    routing: ModelRouting,
    *,
    device: str = "cuda",
    dtype: torch.dtype = torch.bfloat16,
) -> ExpertRunner:
    """Return what runs four experts."""
    return make_expert_runner(
        backend,
        Experts(experts=4, top_k=2, d_ff=8),
        routing,
        dtype,
        ExecutionContext(device=device),
    )


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the GPU have compute capability 9.0."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))


@by_routing
@pytest.mark.usefixtures("hopper")
def test_padded_blocks_of_a_router_are_refused_on_a_gpu(routing: ModelRouting) -> None:
    """There the host would wait for the router; controlled routing is laid out beforehand."""
    make("torch_grouped", routing)
    make("torch_padded", routing, device="cpu")
    if routing != "router":
        make("torch_padded", routing)
        return
    with pytest.raises(EvidenceError, match="wait for its own router") as caught:
        make("torch_padded", routing)
    assert "torch_grouped, vllm or sglang, or balanced" in caught.value.remedy


@pytest.mark.parametrize("capability", [(8, 0), (8, 9), (12, 0)])
def test_bare_rows_are_refused_where_torch_has_no_kernel(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int]
) -> None:
    """Before 9.0 and after 10 grouped_mm is refused, since it copies to the host."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    with pytest.raises(EvidenceError, match=r"no kernel in torch\.bfloat16 for compute"):
        make("torch_grouped", "balanced")
    make("torch_grouped", "balanced", device="cpu", dtype=torch.float32)
    make("torch_padded", "balanced")


@pytest.mark.usefixtures("hopper")
def test_bare_rows_are_refused_in_other_dtypes() -> None:
    """The kernel of grouped_mm is one of bfloat16."""
    with pytest.raises(EvidenceError, match=r"no kernel in torch\.float16 .* 9\.0"):
        make("torch_grouped", "router", dtype=torch.float16)


def test_blocks_of_controlled_routing_are_laid_out_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """After the first forward of an N, torch_padded lays out nothing either, in any layer."""
    forward = make_forward(tmp_path, document("qwen3_moe"), routing="balanced")
    first = forward.forward(tokens(7))
    monkeypatch.setattr("nearfree.models.expert_runners.Aligned", None)
    assert forward.forward(tokens(7)).equal(first)
    with pytest.raises(TypeError):
        forward.forward(tokens(2))


def test_a_model_without_experts_needs_no_engine(tmp_path: Path) -> None:
    """For a model without experts no engine is loaded."""
    assert isinstance(make_forward(tmp_path, document("qwen3"), moe="vllm"), DecoderForward)


@pytest.mark.slow
def test_vllm_is_bound(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, source_cache: Cache
) -> None:
    """The call fits the signatures of the first, the last and every changed release."""
    cache, member = source_cache, test_vllm_moe.MEMBER
    versions = versions_between("vllm", test_vllm_moe.FIRST, test_vllm_moe.LAST)
    points = change_points("vllm", versions, member, "fused_experts", cache)
    assert {test_vllm_moe.FIRST, "0.23.0", test_vllm_moe.LAST} <= set(points)
    for version in points:
        libraries.vllm(monkeypatch, signature("vllm", version, member, "fused_experts", cache))
        check(tmp_path, "bailing_moe_v2", "vllm", "router", "block")


@pytest.mark.slow
def test_sglang_is_bound(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, source_cache: Cache
) -> None:
    """The call fits the signatures of the first, the last and every changed release."""
    cache, members = source_cache, test_sglang_moe.MEMBERS
    first, last = test_sglang_moe.FIRST, test_sglang_moe.LAST
    versions = versions_between("sglang", first, last)
    points = {
        version
        for name in ("fused_experts", *OTHER_MODULES)
        for version in change_points("sglang", versions, members, name, cache)
    }
    assert {first, "0.4.9.post3", "0.5.1", last} <= points
    wanted = {"get_global_server_args", "get_server_args", "get_exec", "use_symmetric_memory"}
    for version in sorted(points):
        signatures, folder, imported = test_sglang_moe.read(version, cache)
        libraries.sglang(monkeypatch, Release(signatures, folder, wanted & imported))
        check(tmp_path, "bailing_moe_v2", "sglang", "router", "block")
