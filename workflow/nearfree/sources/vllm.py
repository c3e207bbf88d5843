"""vLLM: the block rule of the fused MoE kernel, and which path it takes."""

from collections.abc import Mapping
from typing import Any

from nearfree.sources.python_source import Modules
from nearfree.sources.reading import Reading

LEAVES = {
    r"(envs\.VLLM_BATCH_INVARIANT|vllm_is_batch_invariant\(\))": "batch_invariant",
    r"current_platform\.is_rocm\(\)": "rocm",
    r"current_platform\.is_cuda\(\)": "not rocm",
    r"(.+)\.bit_length\(\)": r"bit_length(\1)",
}
QUANTISATIONS: tuple[tuple[str | None, tuple[int, int] | None], ...] = (
    (None, None),
    ("fp8_w8a8", None),
    ("fp8_w8a8", (128, 128)),
    ("int8_w8a16", None),
    ("int8_w8a16", (0, 64)),
    ("int4_w4a16", (0, 128)),
)


def contexts(**flags: bool) -> list[Mapping[str, Any]]:
    """Return the settings at which a block rule is tried."""
    return [
        {"E": experts, "topk": top_k, "N": 512, "K": 2048, "dtype": dtype, "block_shape": shape}
        | {"is_marlin": False, "rocm": False, "batch_invariant": False}
        | flags
        for dtype, shape in QUANTISATIONS
        for experts, top_k in ((8, 2), (64, 6), (128, 8), (256, 8), (256, 32))
    ]


def fallback(modules: Modules) -> Reading:
    """Return how to read BLOCK_SIZE_M where no tuned file exists."""
    program, root = modules.program(["get_default_config"], LEAVES)
    return Reading(
        rule="block_size_m",
        program=program,
        root=root,
        key="BLOCK_SIZE_M",
        axis="M",
        contexts=contexts(),
        also=[*contexts(batch_invariant=True), *contexts(is_marlin=True), *contexts(rocm=True)],
    )
