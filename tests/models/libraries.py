"""GPU libraries that a forward finds on a machine without them: real signatures, results by torch.

Each function puts one in place, and returns the stand-in that keeps its calls.
"""

from inspect import Signature
from types import ModuleType, SimpleNamespace

import pytest
from backends.adapters import computed, test_flashinfer
from backends.adapters.moe_engine import put
from backends.adapters.signatures import StandIn, stand_in
from backends.adapters.test_flash_attn import SIGNATURES
from backends.adapters.test_flash_attn_3 import SCHEMA, Operator
from backends.adapters.test_flashinfer import TEXT, Signatures, Wrappers, literal
from backends.adapters.test_sglang_moe import NEW, NEWEST, Release, signatures_in
from backends.adapters.test_vllm_moe import KNOWN
from nearfree.backends.adapters import flash_attn, flash_attn_3, vllm_moe

CACHE_CALL = "flash_attn_with_kvcache"


def flash_2(patch: pytest.MonkeyPatch, signature: Signature = SIGNATURES[CACHE_CALL]) -> StandIn:
    """Install a stand-in for FlashAttention 2."""
    function = stand_in(signature, computed.flash_2)
    patch.setattr(flash_attn, "load", lambda: SimpleNamespace(**{CACHE_CALL: function}))
    return function


def flash_3(patch: pytest.MonkeyPatch) -> Operator:
    """Install a stand-in for FlashAttention 3, with the schema of all releases."""
    operator = Operator(SCHEMA, computed.flash_3)
    patch.setattr(flash_attn_3, "load", lambda: operator)
    return operator


def flashinfer(patch: pytest.MonkeyPatch, signatures: Signatures | None = None) -> Wrappers:
    """Install a stand-in for FlashInfer."""
    return test_flashinfer.load(patch, signatures or literal(TEXT), computed.flashinfer)


def vllm(patch: pytest.MonkeyPatch, signature: Signature = KNOWN["fused_experts"]) -> StandIn:
    """Install a stand-in for vLLM."""
    function, module = stand_in(signature, computed.fused), ModuleType("fused_moe")
    put(module, fused_experts=function)
    patch.setattr(vllm_moe, "load", lambda: ("vllm==1.2.3", module))
    return function


def sglang(patch: pytest.MonkeyPatch, release: Release | None = None) -> StandIn:
    """Install a stand-in for SGLang."""
    release = release or Release(signatures_in(NEWEST), NEW, set())
    release.fused._result = computed.fused
    release.install(patch)
    return release.fused


ATTENTION = {
    "flash_attn": flash_2,
    "flash_attn_3": flash_3,
    "flashinfer_fa2": flashinfer,
    "flashinfer_fa3": flashinfer,
}
EXPERTS = {"vllm": vllm, "sglang": sglang}
"""By the backend's name."""
