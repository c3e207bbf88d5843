"""vLLM's fused experts: each call bound against the signatures that real releases have."""

from inspect import Signature
from types import ModuleType

import pytest
import torch
from msgspec.structs import replace
from nearfree.backends.adapters import vllm_moe
from nearfree.backends.adapters.kernel import ExecutionContext
from nearfree.backends.adapters.vllm_moe import VllmMoe
from nearfree.backends.records import BY_NAME
from nearfree.core.setting import Setting
from nearfree.errors import EvidenceError
from nearfree.sources.fetching.cache import Cache

from backends.adapters.moe_engine import (
    ASSERTED,
    ASSERTED_OF_PACKED,
    NAMES,
    SETTING,
    asserted,
    check_forwards,
    make_engine,
    module_names,
    third_results,
)
from backends.adapters.signatures import (
    StandIn,
    bring,
    change_points,
    signature,
    signature_of,
    versions_between,
)

_FOLDER = "vllm/model_executor/layers/fused_moe"
MEMBER = f"{_FOLDER}/fused_moe.py"
MEMBERS = (MEMBER, f"{_FOLDER}/moe_align_block_size.py")
FIRST, LAST = BY_NAME["vllm"].releases or ("", "")
TEXT = """
def fused_experts(hidden_states, w1, w2, topk_weights, topk_ids, inplace=False, activation='silu'):
    pass
def try_get_optimal_moe_config(w1_shape, w2_shape, top_k, dtype, M, block_shape=None):
    pass
def get_moe_configs(E, N, dtype, block_n=None, block_k=None):
    pass
"""
KNOWN = {name: signature_of(TEXT, name) for name in NAMES}


def make(
    monkeypatch: pytest.MonkeyPatch,
    signatures: dict[str, Signature],
    setting: Setting = SETTING,
    *,
    tuned: bool = False,
    aligned: bool = True,
    copies: int = 2,
) -> tuple[VllmMoe, StandIn]:
    """Return the adapter on a stand-in for vLLM, and the function that it calls."""
    module = ModuleType("fused_moe")
    fused = make_engine(module, module, signatures, tuned=tuned, aligned=aligned)
    monkeypatch.setattr(vllm_moe, "load", lambda: ("vllm==1.2.3", module))
    return VllmMoe(setting, (1, 5), ExecutionContext(copies=copies, sms=8)), fused


def test_the_call_has_the_form_of_the_installed_function(monkeypatch: pytest.MonkeyPatch) -> None:
    """`inplace` is turned off where the function has it, and not given where it has not."""
    kernel, fused = make(monkeypatch, KNOWN)
    check_forwards(kernel, fused, SETTING)
    assert fused.calls[0].arguments["inplace"] is False
    newer = signature_of(TEXT.replace("inplace=False, ", ""), "fused_experts")
    kernel, fused = make(monkeypatch, KNOWN | {"fused_experts": newer})
    check_forwards(kernel, fused, SETTING)
    assert "inplace" not in fused.calls[0].arguments


def test_copies_of_the_weights_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each forward is given the next copy of the weights."""
    kernel, fused = make(monkeypatch, KNOWN, copies=2)
    for _ in range(3):
        kernel.forward(1)
    first_copy, second_copy, third_copy = (call.arguments["w1"].data_ptr() for call in fused.calls)
    assert first_copy == third_copy != second_copy


@pytest.mark.parametrize("routing", ["balanced", "skewed"])
def test_routing_is_the_settings(monkeypatch: pytest.MonkeyPatch, routing: str) -> None:
    """Skewed routing sends all tokens to the first k experts, balanced to all in turn."""
    setting = replace(SETTING, routing=routing)
    kernel, fused = make(monkeypatch, KNOWN, setting)
    kernel.forward(5)
    used = torch.unique(fused.calls[0].arguments["topk_ids"]).tolist()
    assert used == (list(range(16)) if routing == "balanced" else [0, 1])


@pytest.mark.parametrize(
    ("tuned", "aligned", "basis", "blocks", "block_rows"),
    [
        (False, True, "vllm==1.2.3, default config, aligned to blocks", 6, 4),
        (True, True, "vllm==1.2.3, tuned file config, aligned to blocks", 4, 8),
        (False, False, "vllm==1.2.3, default config, a block a pair", 20, 4),
    ],
)
def test_work_is_what_the_engine_chose(
    monkeypatch: pytest.MonkeyPatch,
    *,
    tuned: bool,
    aligned: bool,
    basis: str,
    blocks: int,
    block_rows: int,
) -> None:
    """Blocks are those that the engine aligned 10 tokens on 2 experts to, or one for each pair."""
    setting = replace(SETTING, routing="skewed")
    kernel, _ = make(monkeypatch, KNOWN, setting, tuned=tuned, aligned=aligned)
    work = kernel.work(5)
    assert (work.basis, work.blocks, work.block_rows) == (basis, blocks, block_rows)
    assert work.tiles == blocks * 4
    assert work.waves == blocks * 4 / 8


def test_the_engine_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counting the work puts back what it watched."""
    kernel, fused = make(monkeypatch, KNOWN)
    module = vllm_moe.load()[1]
    before = dict(vars(module))
    kernel.work(1)
    assert vars(module) == before
    assert module.fused_experts is fused


def test_chunks_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forward that the engine cuts in two has no one block size, and is refused."""
    kernel, fused = make(monkeypatch, KNOWN)
    original = fused._result
    fused._result = lambda bound: (original(bound), original(bound))[1]
    with pytest.raises(EvidenceError, match="ran 10 tokens in chunks"):
        kernel.work(5)


@pytest.mark.parametrize("changes", [{"dtype": "float32"}, {"block_size_m": 32}])
def test_what_the_engine_cannot_do_is_refused(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, object]
) -> None:
    """float32 and a fixed block size are refused, not ignored."""
    with pytest.raises(EvidenceError, match=r"float32|32"):
        make(monkeypatch, KNOWN, replace(SETTING, **changes))


@pytest.mark.slow
def test_each_form_of_the_call_is_bound(
    monkeypatch: pytest.MonkeyPatch, source_cache: Cache
) -> None:
    """In the first and last release, and each with another signature, the calls bind and run."""
    versions = versions_between("vllm", FIRST, LAST)
    points = [change_points("vllm", versions, MEMBER, name, source_cache) for name in NAMES]
    assert "0.23.0" in points[0]
    for version in sorted({version_ for changes in points for version_ in changes}):
        real = {name: signature("vllm", version, MEMBER, name, source_cache) for name in NAMES}
        kernel, fused = make(monkeypatch, real)
        check_forwards(kernel, fused, SETTING)
        assert ("inplace" in fused.calls[0].arguments) == (
            "inplace" in real["fused_experts"].parameters
        )


@pytest.mark.slow
def test_every_release_can_be_watched_and_takes_these_tensors(source_cache: Cache) -> None:
    """Each release looks the watched names up in its module, and asserts nothing unknown."""
    for version in versions_between("vllm", FIRST, LAST):
        source = bring("vllm", version, MEMBERS, source_cache)
        text = source.text(MEMBER)
        results = [third_results(source.text(path)) for path in source.paths()]
        assert set().union(*results) == {"num_tokens_post_pad"}, version
        assert module_names(text) >= {*NAMES, "moe_align_block_size"}, version
        assertions = asserted(text)
        assert "hidden_states.is_contiguous()" in assertions
        assert assertions <= ASSERTED | ASSERTED_OF_PACKED, version


@pytest.mark.slow
def test_options_left_alone_are_off(source_cache: Cache) -> None:
    """What the adapter does not pass means SiLU, no quantisation and no expert parallelism."""
    passed = {"hidden_states", "w1", "w2", "topk_weights", "topk_ids"}
    for version in change_points(
        "vllm", versions_between("vllm", FIRST, LAST), MEMBER, "fused_experts", source_cache
    ):
        parameters = signature("vllm", version, MEMBER, "fused_experts", source_cache).parameters
        defaults = {
            name: repr(parameter.default)
            for name, parameter in parameters.items()
            if name not in passed
        }
        assert defaults.pop("activation") in {"'silu'", "MoEActivation.SILU"}
        assert defaults.pop("is_act_and_mul", "True") == "True"
        assert defaults.pop("global_num_experts") == "-1"
        assert set(defaults.values()) <= {"None", "False"}, version
