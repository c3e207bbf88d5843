"""An engine's fused MoE without its kernels: real signatures, and the calls its source makes."""

import ast
from inspect import BoundArguments, Signature
from types import ModuleType
from typing import Any

import torch
from nearfree.backends.adapters.fused_moe import FusedMoe
from nearfree.core.setting import Setting

from backends.adapters.signatures import StandIn, stand_in

NAMES = ("fused_experts", "try_get_optimal_moe_config", "get_moe_configs")
SETTING = Setting(
    module="moe_ffn",
    backend="vllm",
    dtype="bfloat16",
    batch=2,
    d_model=32,
    d_ff=16,
    experts=16,
    top_k=2,
    routing="balanced",
)
CONFIG = {"BLOCK_SIZE_M": 4, "BLOCK_SIZE_N": 8}
ASSERTED = frozenset(
    {
        *("topk_weights.shape == topk_ids.shape", "topk_weights.size() == topk_ids.size()"),
        *("hidden_states.is_contiguous()", "w1.is_contiguous()", "w2.is_contiguous()"),
        *("w1.stride(-1) == 1", "w2.stride(-1) == 1"),
        *("hidden_states.shape[1] == w1.shape[2]", "hidden_states.size(1) == w1.size(2)"),
        "hidden_states.shape[1] == w1.shape[2] - padded_size",
        "hidden_states.dtype in [torch.float32, torch.float16, torch.bfloat16]",
    }
)
"""What releases assert about 16-bit arguments: `check_arguments` asserts the same."""
ASSERTED_OF_PACKED = frozenset(
    {
        *("hidden_states.shape[1] // 2 == w1.shape[2]", "hidden_states.size(1) // 2 == w1.size(2)"),
        *(
            "hidden_states.size(1) == w1.size(2) * 2",
            "hidden_states.size(1) == w1.size(2) * 4 // 3",
        ),
    }
)
"""What they assert of packed 4-bit and 6-bit weights alone."""


def make_engine(
    launcher: ModuleType,
    chooser: ModuleType,
    signatures: dict[str, Signature],
    *,
    tuned: bool = False,
    aligned: bool = True,
) -> StandIn:
    """Fill an engine's modules with functions of given signatures; return `fused_experts`.

    As in the engines, names are looked up in the modules when called. The kernels are left out:
    the output has the input's form.
    """

    def experts(bound: BoundArguments) -> torch.Tensor:
        arguments = bound.arguments
        ids = (
            arguments["topk_ids"] if "topk_ids" in arguments else arguments["topk_output"].topk_ids
        )
        chosen = launcher.try_get_optimal_moe_config(
            arguments["w1"].shape, arguments["w2"].shape, ids.shape[1], None, len(ids)
        )
        if aligned:
            launcher.moe_align_block_size(ids, chosen["BLOCK_SIZE_M"], len(arguments["w1"]))
        return torch.empty_like(arguments["hidden_states"])

    def choose(bound: BoundArguments) -> dict[str, int]:
        experts, _, d_ff = bound.arguments["w2_shape"]
        configs = chooser.get_moe_configs(experts, d_ff, None)
        return configs[1] if configs else CONFIG

    def align(ids: torch.Tensor, rows: int, experts: int) -> tuple[None, None, torch.Tensor]:
        counts = torch.bincount(ids.flatten(), minlength=experts)
        return None, None, ((counts + rows - 1) // rows * rows).sum()

    tuned_configs = {1: CONFIG | {"BLOCK_SIZE_M": 8}} if tuned else None
    fused = stand_in(signatures["fused_experts"], experts)
    put(launcher, fused_experts=fused, moe_align_block_size=align)
    put(
        launcher,
        try_get_optimal_moe_config=stand_in(signatures["try_get_optimal_moe_config"], choose),
    )
    put(chooser, get_moe_configs=stand_in(signatures["get_moe_configs"], lambda _: tuned_configs))
    return fused


def put(module: ModuleType, **names: Any) -> None:
    """Set attributes of a module."""
    vars(module).update(names)


def check_arguments(bound: BoundArguments, setting: Setting, n: int) -> None:
    """Assert what the real functions assert of their arguments, and what their kernels need."""
    arguments = dict(bound.arguments)
    if "topk_output" in arguments:
        arguments["topk_weights"], arguments["topk_ids"], _ = arguments["topk_output"]
    rows, w1, w2 = (arguments[name] for name in ("hidden_states", "w1", "w2"))
    shares, ids = arguments["topk_weights"], arguments["topk_ids"]
    tokens = setting.batch * n
    assert rows.shape == (tokens, setting.d_model)
    assert w1.shape == (setting.experts, 2 * (setting.d_ff or 0), setting.d_model)
    assert w2.shape == (setting.experts, setting.d_model, setting.d_ff)
    assert rows.is_contiguous()
    assert w1.is_contiguous()
    assert w2.is_contiguous()
    assert rows.dtype == w1.dtype == w2.dtype == torch.bfloat16
    assert shares.shape == ids.shape == (tokens, setting.top_k)
    assert (shares.dtype, ids.dtype) == (torch.float32, torch.int32)
    assert torch.allclose(shares.sum(1), torch.ones(tokens))
    assert int(ids.min()) >= 0
    assert int(ids.max()) < (setting.experts or 0)


def check_forwards(kernel: FusedMoe, fused: StandIn, setting: Setting) -> None:
    """Run a kernel at N = 1 and 5, and assert outputs, arguments and work."""
    for n in (1, 5):
        out = kernel.forward(n)
        assert (out.shape, out.dtype) == ((2 * n, 32), torch.bfloat16)
        check_arguments(fused.calls[-1], setting, n)
    work = kernel.work(5)
    assert (work.blocks, work.block_rows, work.tiles) == (16, 4, 16 * 4)
    assert work.flop_executed == 2 * 3 * 16 * 4 * 32 * 16


def module_names(text: str) -> set[str]:
    """Return what a module defines or imports at its top: names that can be watched."""
    names: set[str] = set()
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
    return names


def asserted(text: str) -> set[str]:
    """Return what `fused_experts_impl` asserts about its tensors."""
    tensors = {"hidden_states", "w1", "w2", "topk_weights", "topk_ids"}
    return {
        ast.unparse(node.test)
        for function in ast.parse(text).body
        if isinstance(function, ast.FunctionDef) and function.name == "fused_experts_impl"
        for node in ast.walk(function)
        if isinstance(node, ast.Assert)
        and tensors & {name_.id for name_ in ast.walk(node.test) if isinstance(name_, ast.Name)}
    }


def third_results(text: str) -> set[str]:
    """Return what `moe_align_block_size` returns third: where the padded rows are read."""
    return {
        ast.unparse(node.value.elts[2])
        for function in ast.parse(text).body
        if isinstance(function, ast.FunctionDef) and function.name == "moe_align_block_size"
        for node in ast.walk(function)
        if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple)
    }
