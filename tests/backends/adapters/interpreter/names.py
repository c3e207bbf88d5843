"""What the kernel files of vLLM and SGLang really use of modules that are not pinned."""

import logging
from types import SimpleNamespace

import torch
import triton
import triton.language as tl
from interpreter import compiled
from interpreter.stubs import Names


def no(*_: object, **__: object) -> bool:
    """Return False for any arguments."""
    return False


class Logger(logging.Logger):
    """vLLM's logger, which has two methods more than Python's."""

    info_once = logging.Logger.info
    warning_once = logging.Logger.warning


def round_up(size: int, step: int) -> int:
    """Return the next multiple."""
    return -(-size // step) * step


def unquantised(A: torch.Tensor, *_: object, **__: object) -> tuple[torch.Tensor, None]:  # noqa: N803
    """Return the input as it is, without a scale."""
    return A, None


def config_dtype(dtype: torch.dtype, **_: bool) -> str | None:
    """Return the dtype's part of a tuned file's name."""
    return "float32" if dtype == torch.float32 else None


class Activation(str):
    """The activation, which vLLM 0.20.2 passes as a member of an enumeration."""

    SILU = "silu"
    from_str = str


def vllm(device: str) -> Names:
    """Return the names of vLLM 0.9.1 and 0.20.2, on a GPU of this name."""
    layers = "vllm.model_executor.layers.fused_moe"
    helpers = {"direct_register_custom_op": no, "round_up": round_up}
    return {
        "vllm": {},
        "vllm.envs": {
            "VLLM_ENABLE_MOE_ALIGN_BLOCK_SIZE_TRITON": True,
            "VLLM_FUSED_MOE_CHUNK_SIZE": 32768,
            "VLLM_BATCH_INVARIANT": False,
            "VLLM_TUNED_CONFIG_FOLDER": None,
        },
        "vllm.logger": {"init_logger": Logger},
        "vllm.platforms": {
            "current_platform": SimpleNamespace(
                is_rocm=no,
                get_device_name=lambda: device,
                simple_compile_backend="eager",
            )
        },
        "vllm.triton_utils": {"tl": tl, "triton": triton},
        "vllm.utils": helpers,
        "vllm.utils.torch_utils": helpers,
        "vllm.utils.math_utils": helpers,
        "vllm._custom_ops": {
            "moe_align_block_size": compiled.align,
            "moe_sum": compiled.add_up,
        },
        layers: {"get_config": lambda: None},
        f"{layers}.activation": {
            "MoEActivation": Activation,
            "apply_moe_activation": lambda _, out, both: compiled.gate(out, both),
        },
        f"{layers}.config": {"_get_config_dtype_str": config_dtype},
        f"{layers}.modular_kernel": {
            "FusedMoEExpertsModular": type(
                "FusedMoEExpertsModular",
                (),
                {"adjust_N_for_activation": staticmethod(lambda columns, _: columns // 2)},
            )
        },
        f"{layers}.utils": {"moe_kernel_quantize_input": unquantised},
    }


def sglang(device: str) -> Names:
    """Return the names of SGLang 0.5.9, on a GPU of this name."""
    layers = "sglang.srt.layers.moe.fused_moe_triton"
    server = SimpleNamespace(enable_deterministic_inference=False)
    return {
        "sglang": {},
        "sglang.srt.utils": {
            "is_cuda": lambda: True,
            "is_cpu": no,
            "is_hip": no,
            "is_xpu": no,
            "get_bool_env_var": no,
            "get_device_name": lambda: device,
        },
        "sglang.srt.utils.custom_op": {"register_custom_op": lambda **_: lambda function: function},
        "sglang.srt.server_args": {"get_global_server_args": lambda: server},
        "sglang.srt.batch_invariant_ops": {"is_batch_invariant_mode_enabled": no},
        layers: {"get_config": lambda: None},
        "sgl_kernel": {
            "moe_align_block_size": compiled.align,
            "silu_and_mul": lambda both, out: compiled.gate(out, both),
            "moe_sum_reduce": compiled.add_up,
        },
    }
