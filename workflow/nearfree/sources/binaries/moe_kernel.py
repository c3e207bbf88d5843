"""The MoE kernel of a release, cut out of its file, and how it is asked to be compiled.

Only the kernel and the helper that it calls are kept, each a function decorated with `triton.jit`
alone and without defaults: loading the file runs nothing of the release but these decorators.
"""

import ast
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from nearfree.backends.environments.lock import FOLDER
from nearfree.errors import MOVED, ConfigError, SourceError
from nearfree.log.line import sha256

LOCK = FOLDER / "kernels.lock"
KERNEL, HELPER = "fused_moe_kernel", "write_zeros_to_output"
FILES = {
    "vllm": "vllm/model_executor/layers/fused_moe/fused_moe.py",
    "sglang": "sglang/srt/layers/moe/fused_moe_triton/fused_moe_triton_kernels.py",
}
"""Where each package keeps its kernel."""
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
"""Pointers of a layer in bfloat16; other arguments are whole numbers of 32 bits."""
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
"""What a call for the up projection of such a layer fixes: no scale, no bias, rows beside rows."""
ALIGNED = {"N", "K", "EM", "stride_am", "stride_be", "stride_bn", "stride_cm"}
"""Numbers that 16 divides; so it does every pointer."""


class Asked(NamedTuple):
    """A block on a compute capability, 90 for 9.0."""

    sm: int
    block_m: int
    block_n: int
    block_k: int
    warps: int
    stages: int


class Cut(NamedTuple):
    """A kernel's text by itself, and the names of its arguments."""

    text: str
    arguments: tuple[str, ...]


def pinned(package: str, version: str, lock: Path = LOCK) -> tuple[str, str]:
    """Return the path and the SHA-256 of the file that may be compiled.

    Raises
    ------
    ConfigError
        There is no lock, or it pins no kernel of that release.
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
        known = [f"{name}=={each}" for name, releases in pins.items() for each in releases]
        raise ConfigError(
            f"{lock} pins no kernel of {package} {version}",
            remedy=f"Choose from {', '.join(known)}",
        )
    return path, digest


def cut(text: str, path: str) -> Cut:
    """Return the kernel and its helper, and nothing else of a file.

    Raises
    ------
    SourceError
        One of them is missing, or does more than a function of Triton's does when it is loaded.
    """
    try:
        defined = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
    except (SyntaxError, ValueError, RecursionError) as error:
        raise SourceError(f"{path} is no Python ({type(error).__name__})", remedy=MOVED) from error
    found = {node.name: node for node in defined if node.name in {KERNEL, HELPER}}
    if found.keys() != {KERNEL, HELPER}:
        raise SourceError(f"{path} has not {KERNEL} and {HELPER} once each", remedy=MOVED)
    lines = text.splitlines()
    parts = []
    for name in (HELPER, KERNEL):
        node = found[name]
        plain = [ast.unparse(each) for each in node.decorator_list] == ["triton.jit"]
        given = node.args
        if not plain or given.defaults or given.kw_defaults or given.vararg or given.kwarg:
            raise SourceError(f"{path}: {name} is no plain function of Triton's", remedy=MOVED)
        marks = {ast.unparse(each.annotation) for each in given.args if each.annotation}
        if marks - {"tl.constexpr"}:
            raise SourceError(f"{path}: {name} has other marks than tl.constexpr", remedy=MOVED)
        first = node.decorator_list[0].lineno - 1
        parts.append("\n".join(lines[first : node.end_lineno]))
    arguments = tuple(each.arg for each in found[KERNEL].args.args)
    return Cut(HEAD + "\n\n\n".join(parts) + "\n", arguments)


def questions(kernel: Cut, blocks: Iterable[Asked]) -> list[dict[str, Any]]:
    """Return what the compiler is asked for each block."""
    fixed = {name: value for name, value in CONSTANTS.items() if name in kernel.arguments}
    sizes = {"BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K"}
    left = [each for each in kernel.arguments if each not in fixed and each not in sizes]
    return [
        {
            "kernel": KERNEL,
            "sm": asked.sm,
            "warps": asked.warps,
            "stages": asked.stages,
            "types": {name: TYPES.get(name, "i32") for name in left},
            "aligned": [name for name in left if name.endswith("_ptr") or name in ALIGNED],
            "constants": {
                **fixed,
                "BLOCK_SIZE_M": asked.block_m,
                "BLOCK_SIZE_N": asked.block_n,
                "BLOCK_SIZE_K": asked.block_k,
            },
        }
        for asked in blocks
    ]


def checked(raw: bytes, path: str, digest: str) -> str:
    """Return a file's text; SourceError if it is not the pinned one."""
    if sha256(raw) != digest:
        raise SourceError(
            f"{path} is not the file that {LOCK} pins",
            remedy="It was not compiled: read what changed, and pin it if it may be",
        )
    return raw.decode()
