"""MoE FFN in SGLang: its functional Triton experts, `fused_experts`, 0.4.2 and later.

Newer releases take the routing as one object (0.4.9.post3), take a config (0.5.1), read server
arguments of the whole process (0.5.4.post2), and need a tensor-parallel group (0.5.16). The adapter
passes each only if the installed release has a parameter of that name.
"""

import atexit
import inspect
import shutil
import tempfile
from functools import cache
from importlib import import_module
from importlib.metadata import version
from typing import Any

from torch import Tensor

from nearfree.backends.adapters.fused_moe import Call, Engine, FusedMoe
from nearfree.backends.adapters.kernel import accepted
from nearfree.backends.records import checked_releases
from nearfree.errors import EvidenceError

_FOLDERS = ("moe_runner.triton_utils", "fused_moe_triton")
"""Packages of the functions: since 0.5.11, and before it."""
_SERVER_ARGS = ("get_global_server_args", "get_server_args", "get_exec")


def sglang_module(name: str) -> Any:
    """Import and return a module of `sglang.srt`; None if the installed release lacks it."""
    try:
        return import_module(f"sglang.srt.{name}")
    except ModuleNotFoundError as error:
        if not f"sglang.srt.{name}".startswith(error.name or "?"):
            raise  # the module exists, but a package that it imports is missing
        return None


def modules() -> tuple[Any, Any]:
    """Return the module that launches the kernel, and the one that looks up tuned files."""
    for folder in _FOLDERS:
        launcher = sglang_module(f"layers.moe.{folder}.fused_moe")
        if launcher is not None:
            config_module = sglang_module(f"layers.moe.{folder}.fused_moe_triton_config")
            return launcher, launcher if config_module is None else config_module
    raise EvidenceError(
        "the installed sglang has its fused MoE in none of the known places",
        remedy=f"Take a release from {checked_releases('sglang')}",
    )


@cache
def prepare(launcher: Any, chooser: Any) -> None:
    """Set default server arguments and a group of one process, once, if the call needs them.

    SGLang itself uses the model path `dummy` for arguments without a model.
    """
    if any(hasattr(module, name) for module in (launcher, chooser) for name in _SERVER_ARGS):
        server = sglang_module("server_args")
        arguments = server.ServerArgs(model_path="dummy")
        server.set_global_server_args_for_scheduler(arguments)
    if hasattr(launcher, "use_symmetric_memory"):
        parallel = sglang_module("distributed.parallel_state")
        if not parallel.model_parallel_is_initialized():
            folder = tempfile.mkdtemp(prefix="nearfree-")
            atexit.register(
                shutil.rmtree, folder, ignore_errors=True
            )  # the group reads it until exit
            parallel.init_distributed_environment(
                world_size=1,
                rank=0,
                local_rank=0,
                distributed_init_method=f"file://{folder}/group",
            )
            parallel.initialize_model_parallel()


def call_of(launcher: Any, experts: int) -> Call:
    """Return the call over E experts, with the parameters that the installed function takes."""
    function = launcher.fused_experts
    parameters = inspect.signature(function).parameters
    options = accepted(function, inplace=False)
    if "moe_runner_config" in parameters:
        options["moe_runner_config"] = _runner_config(experts)
    as_one = "topk_output" in parameters

    def call(rows: Tensor, gate_up: Tensor, down: Tensor, shares: Tensor, ids: Tensor) -> Tensor:
        routed = {"topk_weights": shares, "topk_ids": ids}
        if as_one:
            routed = _topk_output(shares, ids)
        out: Tensor = function(hidden_states=rows, w1=gate_up, w2=down, **routed, **options)
        return out

    return call


def _runner_config(experts: int) -> Any:
    """Return a config in which all experts are local; otherwise SGLang filters rows by expert."""
    config_class = sglang_module("layers.moe.moe_runner").MoeRunnerConfig
    counts = accepted(config_class, num_experts=experts, num_local_experts=experts)
    return config_class(inplace=False, **counts)


def _topk_output(shares: Tensor, ids: Tensor) -> dict[str, Any]:
    module = sglang_module("layers.moe.topk")
    output_class = getattr(module, "StandardTopKOutput", None) or module.TopKOutput
    return {"topk_output": output_class(topk_weights=shares, topk_ids=ids, router_logits=None)}


def engine(experts: int) -> Engine:
    """Return the installed SGLang, ready to run E experts."""
    launcher, chooser = modules()
    prepare(launcher, chooser)
    return Engine(f"sglang=={version('sglang')}", call_of(launcher, experts), launcher, chooser)


class SglangMoe(FusedMoe):
    """SGLang's fused experts on controlled routing."""

    engine = staticmethod(engine)
