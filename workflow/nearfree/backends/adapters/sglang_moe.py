"""MoE FFN in SGLang: its functional Triton experts, `fused_experts`, 0.4.2 and later.

Newer releases take the routing as one object (0.4.9.post3), take a config (0.5.1), read server
arguments of the whole process (0.5.4.post2), and ask for a tensor-parallel group (0.5.16): each is
given as far as the installed release names it.
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
from nearfree.backends.records import checked
from nearfree.errors import EvidenceError

_FOLDERS = ("moe_runner.triton_utils", "fused_moe_triton")
"""Where the functions lie since 0.5.11, and before."""
_SERVER_ARGS = ("get_global_server_args", "get_server_args", "get_exec")


def bring(name: str) -> Any:
    """Return a module under `sglang.srt`, None if the installed release has none of that name."""
    try:
        return import_module(f"sglang.srt.{name}")
    except ModuleNotFoundError as error:
        if not f"sglang.srt.{name}".startswith(error.name or "?"):
            raise  # the module is there, and lacks a package
        return None


def modules() -> tuple[Any, Any]:
    """Return the module of the call, and the one that looks for tuned files."""
    for folder in _FOLDERS:
        launcher = bring(f"layers.moe.{folder}.fused_moe")
        if launcher is not None:
            chooser = bring(f"layers.moe.{folder}.fused_moe_triton_config")
            return launcher, launcher if chooser is None else chooser
    raise EvidenceError(
        "the installed sglang has its fused MoE in none of the known places",
        remedy=f"Take a release from {checked('sglang')}",
    )


@cache
def prepare(launcher: Any, chooser: Any) -> None:
    """Publish default server arguments and a group of one process, if the call asks for them, once.

    A model path of `dummy` is SGLang's own word for arguments without a model.
    """
    if any(hasattr(module, name) for module in (launcher, chooser) for name in _SERVER_ARGS):
        server = bring("server_args")
        arguments = server.ServerArgs(model_path="dummy")
        server.set_global_server_args_for_scheduler(arguments)
    if hasattr(launcher, "use_symmetric_memory"):
        parallel = bring("distributed.parallel_state")
        if not parallel.model_parallel_is_initialized():
            folder = tempfile.mkdtemp(prefix="nearfree-")
            atexit.register(shutil.rmtree, folder, ignore_errors=True)  # groups read it until then
            parallel.init_distributed_environment(
                world_size=1,
                rank=0,
                local_rank=0,
                distributed_init_method=f"file://{folder}/group",
            )
            parallel.initialize_model_parallel()


def call_of(launcher: Any, experts: int) -> Call:
    """Return the call over E experts in the form that the installed function takes."""
    function = launcher.fused_experts
    known = inspect.signature(function).parameters
    options: dict[str, Any] = {"inplace": False} if "inplace" in known else {}
    if "moe_runner_config" in known:
        options["moe_runner_config"] = _runner_config(experts)
    routed = _topk_output if "topk_output" in known else _topk_pair

    def call(rows: Tensor, gate_up: Tensor, down: Tensor, shares: Tensor, ids: Tensor) -> Tensor:
        out: Tensor = function(
            hidden_states=rows, w1=gate_up, w2=down, **routed(shares, ids), **options
        )
        return out

    return call


def _runner_config(experts: int) -> Any:
    """Return a config that says that all experts are local: else rows are filtered by expert."""
    kind = bring("layers.moe.moe_runner").MoeRunnerConfig
    known = inspect.signature(kind).parameters
    local = {"num_experts": experts, "num_local_experts": experts}
    return kind(inplace=False, **{name: local[name] for name in local if name in known})


def _topk_pair(shares: Tensor, ids: Tensor) -> dict[str, Any]:
    return {"topk_weights": shares, "topk_ids": ids}


def _topk_output(shares: Tensor, ids: Tensor) -> dict[str, Any]:
    module = bring("layers.moe.topk")
    kind = getattr(module, "StandardTopKOutput", None) or module.TopKOutput
    return {"topk_output": kind(topk_weights=shares, topk_ids=ids, router_logits=None)}


def engine(experts: int) -> Engine:
    """Return the installed SGLang, ready to run E experts."""
    launcher, chooser = modules()
    prepare(launcher, chooser)
    return Engine(f"sglang=={version('sglang')}", call_of(launcher, experts), launcher, chooser)


class SglangMoe(FusedMoe):
    """SGLang's fused experts on controlled routing."""

    engine = staticmethod(engine)
