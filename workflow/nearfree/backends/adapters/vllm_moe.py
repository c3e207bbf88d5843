"""MoE FFN in vLLM: its functional Triton experts, `fused_experts`, 0.8.0 and later.

All its options but `inplace` keep their defaults: SiLU, no quantisation, all experts local.
"""

from importlib import import_module
from importlib.metadata import version
from typing import Any

from torch import Tensor

from nearfree.backends.adapters.fused_moe import Call, Engine, FusedMoe
from nearfree.backends.adapters.kernel import accepted

_MODULE = "vllm.model_executor.layers.fused_moe.fused_moe"


def load() -> tuple[str, Any]:
    """Return the installed release and its fused-MoE module."""
    return f"vllm=={version('vllm')}", import_module(_MODULE)


def call_of(module: Any) -> Call:
    """Return the call with the parameters that the installed function takes.

    Release 0.23.0 dropped `inplace`.
    """
    function = module.fused_experts
    options = accepted(function, inplace=False)

    def call(rows: Tensor, gate_up: Tensor, down: Tensor, shares: Tensor, ids: Tensor) -> Tensor:
        out: Tensor = function(
            hidden_states=rows, w1=gate_up, w2=down, topk_weights=shares, topk_ids=ids, **options
        )
        return out

    return call


def engine(experts: int) -> Engine:  # noqa: ARG001 (one signature for all engines)
    """Return the installed vLLM, ready to run experts."""
    release, module = load()
    return Engine(release, call_of(module), module, module)


class VllmMoe(FusedMoe):
    """vLLM's fused experts on controlled routing."""

    engine = staticmethod(engine)
