"""Extract the MoE kernel of a release from its file, and build the requests to compile it.

Only the kernel and the helper that it calls are kept. Each is a function decorated with
`triton.jit` alone and without defaults: loading the file runs nothing of the release but these
decorators.
"""

import ast
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from nearfree.backends.environments.lock import FOLDER
from nearfree.errors import ConfigError, MovedError, SourceError
from nearfree.log.line import sha256

LOCK = FOLDER / "kernels.lock"
KERNEL, HELPER = "fused_moe_kernel", "write_zeros_to_output"
FILES = {
    "vllm": "vllm/model_executor/layers/fused_moe/fused_moe.py",
    "sglang": "sglang/srt/layers/moe/fused_moe_triton/fused_moe_triton_kernels.py",
}
"""The file that holds the kernel, by package."""
HEAD = "import triton\nimport triton.language as tl\n\n\n"
TYPES = {
    "a_ptr": "*bf16",
    "b_ptr": "*bf16",
    "c_ptr": "*bf16",
    "topk_weights_ptr": "*fp32",
    "sorted_token_ids_ptr": "*i32",
    "expert_ids_ptr": "*i32",
    "num_tokens_post_padded_ptr": "*i32",
}
"""Pointer types of a layer in bfloat16; other arguments are 32-bit integers."""
CONSTANTS: Mapping[str, Any] = {
    **dict.fromkeys(("b_bias_ptr", "bias_ptr", "a_scale_ptr", "b_scale_ptr", "a_desc", "b_desc")),
    **dict.fromkeys(("group_n", "group_k"), 0),
    **dict.fromkeys(("stride_ak", "stride_bk", "stride_cn", "GROUP_SIZE_M", "SPLIT_K"), 1),
    **dict.fromkeys(("use_fp8_w8a8", "use_int8_w8a8", "use_int8_w8a16", "HAS_BIAS"), False),
    **dict.fromkeys(("per_channel_quant", "naive_block_assignment", "swap_ab"), False),
    **dict.fromkeys(("MUL_ROUTED_WEIGHT", "c_sorted", "filter_expert"), False),
    "even_Ks": True,
    "top_k": 8,
    "compute_type": "bfloat16",
}
"""Arguments that a call for the up projection of such a layer fixes: no scale, no bias, dense rows.


"""
ALIGNED = {"N", "K", "EM", "stride_am", "stride_be", "stride_bn", "stride_cm"}
"""Integer arguments that are multiples of 16; every pointer is, too."""


class CompileTarget(NamedTuple):
    """A block and its launch settings on a compute capability, 90 for 9.0."""

    sm: int
    block_m: int
    block_n: int
    block_k: int
    warps: int
    stages: int


class KernelSource(NamedTuple):
    """The text of a kernel with its helper, and the names of the kernel's arguments."""

    text: str
    arguments: tuple[str, ...]


def pinned_kernel(package: str, version: str, lock: Path = LOCK) -> tuple[str, str]:
    """Return the path and the SHA-256 of the kernel file that may be compiled.

    Raises
    ------
    ConfigError
        There is no lock, or it pins no kernel of the release.
    """
    try:
        pins = msgspec.json.decode(lock.read_bytes(), type=dict[str, dict[str, dict[str, str]]])
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigError(
            f"{lock} pins no kernels ({type(error).__name__})",
            remedy="Run this in the project's folder, or restore the file",
        ) from error
    path = FILES.get(package, "")
    digest = pins.get(package, {}).get(version, {}).get(path)
    if digest is None:
        pinned_releases = [
            f"{name}=={number}" for name, numbers in pins.items() for number in numbers
        ]
        raise ConfigError(
            f"{lock} pins no kernel of {package} {version}",
            remedy=f"Choose from {', '.join(pinned_releases)}",
        )
    return path, digest


def extract_kernel(text: str, path: str) -> KernelSource:
    """Return the kernel with its helper, and nothing else of a file.

    Raises
    ------
    SourceError
        One of them is missing, or loading it would run more than Triton's decorator.
    """
    try:
        defined = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
    except (SyntaxError, ValueError, RecursionError) as error:
        raise MovedError(f"{path} is no Python ({type(error).__name__})") from error
    nodes = {node.name: node for node in defined if node.name in {KERNEL, HELPER}}
    if nodes.keys() != {KERNEL, HELPER}:
        raise MovedError(f"{path} does not define {KERNEL} and {HELPER} exactly once")
    lines = text.splitlines()
    parts = []
    for name in (HELPER, KERNEL):
        node = nodes[name]
        only_jit = [ast.unparse(decorator) for decorator in node.decorator_list] == ["triton.jit"]
        signature = node.args
        defaults = signature.defaults or signature.kw_defaults
        if not only_jit or defaults or signature.vararg or signature.kwarg:
            raise MovedError(f"{path}: {name} is not a plain triton.jit function")
        annotations = {
            ast.unparse(argument.annotation) for argument in signature.args if argument.annotation
        }
        if annotations - {"tl.constexpr"}:
            raise MovedError(f"{path}: {name} has other annotations than tl.constexpr")
        first = node.decorator_list[0].lineno - 1
        parts.append("\n".join(lines[first : node.end_lineno]))
    arguments = tuple(argument.arg for argument in nodes[KERNEL].args.args)
    return KernelSource(HEAD + "\n\n\n".join(parts) + "\n", arguments)


def compile_requests(
    kernel: KernelSource, targets: Iterable[CompileTarget]
) -> list[dict[str, Any]]:
    """Return the compiler's request for each block: types, alignment, constants."""
    constants = {name: value for name, value in CONSTANTS.items() if name in kernel.arguments}
    sizes = {"BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K"}
    runtime_arguments = [
        name for name in kernel.arguments if name not in constants and name not in sizes
    ]
    return [
        {
            "kernel": KERNEL,
            "sm": target.sm,
            "warps": target.warps,
            "stages": target.stages,
            "types": {name: TYPES.get(name, "i32") for name in runtime_arguments},
            "aligned": [
                name for name in runtime_arguments if name.endswith("_ptr") or name in ALIGNED
            ],
            "constants": {
                **constants,
                "BLOCK_SIZE_M": target.block_m,
                "BLOCK_SIZE_N": target.block_n,
                "BLOCK_SIZE_K": target.block_k,
            },
        }
        for target in targets
    ]


def verified_text(raw: bytes, path: str, digest: str) -> str:
    """Return a file's text; raise SourceError if it is not the pinned one."""
    if sha256(raw) != digest:
        raise SourceError(
            f"{path} is not the file that {LOCK} pins",
            remedy="It was not compiled: review its changes, and pin it if they are harmless",
        )
    return raw.decode()
