"""The fused MoE kernel of vLLM and SGLang: the functions that choose its BLOCK_SIZE_M.

The functions have the same names in both packages: `get_default_config` is the fallback rule,
`try_get_optimal_moe_config` looks for a tuned file first, and `get_config_file_name` names it.
"""

import ast
from collections.abc import Mapping, Sequence
from typing import Any

from nearfree.backends.moe_kernels import ALIGNED
from nearfree.errors import MovedError
from nearfree.sources.language.cuts import (
    argument_of,
    arguments_of,
    assignments,
    calls_of,
    value_of,
)
from nearfree.sources.language.functions import nodes_of
from nearfree.sources.language.program import (
    Function,
    Program,
    bound_by,
    made_function,
    quote,
    statement_at,
)
from nearfree.sources.language.python_source import Modules
from nearfree.sources.language.reading import DENSE, Mechanism, Reading
from nearfree.sources.tuned import SIZES

LEAVES = {
    r"(envs\.VLLM_BATCH_INVARIANT|vllm_is_batch_invariant\(\))": "deterministic",
    r"[\w.()]+\.enable_deterministic_inference": "deterministic",
    r"(current_platform\.is_rocm\(\)|is_hip_flag|is_hip_|_is_hip)": "rocm",
    r"current_platform\.is_cuda\(\)": "not rocm",
    r"_get_cuda_shared_memory_per_block_optin\(\)": "smem_per_block",
    r"(.+)\.bit_length\(\)": r"bit_length(\1)",
    r"(current_platform\.)?get_device_name\(\w*\)": "device",
    r"re\.sub\(r?('[^']+'), ('[^']*'), (\w+)\)": r"re_sub(\1, \2, \3)",
    r"get_config\(\)": "None",
    r"w2_shape": "(E, K, w2_size)",
    r"torch\.float": "'float32'",
    r"envs\.VLLM_FUSED_MOE_CHUNK_SIZE": "chunk_tokens",
}
QUANTISATIONS: tuple[tuple[str | None, tuple[int, int] | None], ...] = (
    (None, None),
    ("fp8_w8a8", None),
    ("fp8_w8a8", (128, 128)),
    ("int8_w8a8", None),
    ("int8_w8a16", None),
    ("int8_w8a16", (0, 64)),
    ("int4_w4a16", (0, 128)),
)
SHAPES = ((8, 2), (64, 6), (128, 8), (256, 8), (256, 32))
_ONE = ((256, 8),)
_SHARES = tuple(
    ((1 << power) + 1) * experts - step
    for experts, _ in SHAPES[:4]
    for power in range(9)
    for step in (0, 1)
)
"""Numbers of tokens M on both sides of those at which M // E, tokens per expert, passes a power of
two."""
BIG, SMALL = 232448, 101376
"""Shared memory that a block may opt in to on Hopper and on Ada, in bytes."""
_MODES: dict[str, Any] = {
    "is_marlin": False,
    "rocm": False,
    "deterministic": False,
    "smem_per_block": BIG,
}


def block_contexts(
    shapes: Sequence[tuple[int, int]] = SHAPES, **modes: Any
) -> list[Mapping[str, Any]]:
    """Return the settings at which a block rule is compared: quantisations by experts."""
    return [
        {"E": experts, "topk": top_k, "N": 512, "K": 2048, "dtype": dtype, "block_shape": shape}
        | _MODES
        | modes
        for dtype, shape in QUANTISATIONS
        for experts, top_k in shapes
    ]


def block_sizes(modules: Modules) -> list[Reading]:
    """Return the readings of a configuration's values without a tuned file.

    Every configuration sets BLOCK_SIZE_M. Some leave other values to the launched kernel, which
    chooses them by its own rules: the reading then gives None.
    """
    return [
        Reading(
            key.lower(),
            *modules.program(["get_default_config"], LEAVES),
            key=key,
            may_be_absent=key != "BLOCK_SIZE_M",
            axis="M",
            contexts=[*block_contexts(), *block_contexts(_ONE, smem_per_block=SMALL)],
            extra_contexts=[
                *block_contexts(_ONE, deterministic=True),
                *block_contexts(_ONE, is_marlin=True),
                *block_contexts(_ONE, rocm=True, smem_per_block=None),
            ],
            dense=(*DENSE, *_SHARES) if key == "GROUP_SIZE_M" else DENSE,
        )
        for key in SIZES
    ]


_ROWS, _OF_8_BITS = "block_size_m", "input_dtype is not None and input_dtype.itemsize == 1"
"""The rows, and what vLLM asks of 8-bit activations: they take 16 rows or more
(vllm/model_executor/layers/fused_moe/experts/marlin_moe.py of 0.33.0, line 350)."""


def marlin_blocks(modules: Modules) -> list[Reading]:
    """Return the reading of the rows of a block of the Marlin kernel, for 4- and 8-bit weights.

    The rule is a loop over sizes, for activations of 16 bits. Before 0.10.1 vLLM had no such loop,
    and used the sizes of `block_sizes`; the list is then empty.

    Raises
    ------
    SourceError
        Another statement sets those rows, too.
    """
    definition = modules.find("fused_marlin_moe")
    setters = [] if definition is None else [s for s in definition[1].body if _ROWS in bound_by(s)]
    if definition is None or not any(isinstance(statement, ast.For) for statement in setters):
        return []
    setters = [
        s for s in setters if not (isinstance(s, ast.If) and ast.unparse(s.test) == _OF_8_BITS)
    ]
    if len(setters) > 1:
        raise MovedError(f"fused_marlin_moe sets {_ROWS} {len(setters)} times")
    loop = setters[0]
    answer = statement_at(f"return {_ROWS}", loop)
    cut = made_function("marlin_block_size_m", (), [loop, answer], loop)
    program, root = modules.program_of(definition[0], cut, LEAVES)
    contexts = [{"E": experts, "topk": top_k} for experts, top_k in SHAPES]
    return [Reading("marlin_block_size_m", program, root, axis="M", contexts=contexts)]


def config_dtype(modules: Modules) -> Reading:
    """Return the reading of a quantisation's name in file names and rules."""
    names = ["get_config_dtype_str", "_get_config_dtype_str"]
    flags = ("use_fp8_w8a8", "use_int8_w8a8", "use_int8_w8a16", "use_int4_w4a16")
    off = dict.fromkeys(flags, False)
    return Reading(
        "config_dtype",
        *modules.program(names, LEAVES),
        axis=None,
        contexts=[
            off | {flag: True, "dtype": dtype}
            for flag in (*flags, "none")
            for dtype in ("bfloat16", "float32")
        ],
    )


def tuned_key(modules: Modules) -> Reading:
    """Return the reading of a tuned file's key: experts, size, dtype and block shape."""
    path, function = modules.locate(["try_get_optimal_moe_config"])
    return Reading(
        "tuned_key",
        *modules.program_of(path, arguments_of(function, "get_moe_configs"), LEAVES),
        axis="w2_size",
        dense=(1, 2, 3, 128, 512),
        contexts=[
            {
                "E": 256,
                "K": 2048,
                "dtype": dtype,
                "block_shape": shape,
                "per_channel_quant": per_channel,
            }
            for dtype, shape in QUANTISATIONS
            for per_channel in (False, True)
        ],
        interpret_whole=False,
    )


def tuned_name(modules: Modules) -> Reading:
    """Return the reading of the tuned file's name for a key and a device."""
    path, function = modules.locate(["get_moe_configs"])
    inputs = frozenset({"E", "N", "dtype", "block_n", "block_k", "per_channel_quant", "down_moe"})
    cut = value_of(function, "json_file_name", inputs)
    return Reading(
        "tuned_name",
        *modules.program_of(path, cut, LEAVES),
        axis="N",
        dense=(1, 2, 3, 128, 512),
        contexts=[
            {"E": 256, "dtype": dtype, "block_n": shape[0], "block_k": shape[1], "device": device}
            | {"per_channel_quant": per_channel, "down_moe": False}
            for dtype in (None, "fp8_w8a8", "int4_w4a16")
            for shape in ((0, 0), (128, 128), (0, 64))
            for per_channel in (False, True)
            for device in ("NVIDIA H20", "NVIDIA H200 NVL", "AMD Instinct / X")
        ],
    )


def config_tokens(modules: Modules, chunk: Mapping[str, ast.expr]) -> Reading:
    """Return the reading of M, the number of tokens that selects a configuration.

    It is the number of tokens or, if the call works in chunks, that of the first chunk.
    """
    path, function = launcher(modules)
    if assignments(function, "M"):
        cut = value_of(function, "M", frozenset({"num_tokens"}))
    else:
        _, callee = modules.locate(["try_get_optimal_moe_config"])
        cut = argument_of(function, callee, "M")
    program, root = modules.program_of(path, cut, LEAVES)
    program = Program(program.functions, {**program.constants, **chunk})
    return Reading(
        rule="config_tokens", program=program, root=root, axis="num_tokens", contexts=[{}]
    )


def launcher(modules: Modules) -> tuple[str, Function]:
    """Return the function that chooses the configuration and aligns the tokens."""
    names = ["_prepare_fused_moe_run", "fused_experts_impl"]
    return next(filter(None, map(modules.find, names)), None) or modules.locate(names)


def always_aligned(modules: Modules) -> tuple[str, Function]:
    """Return a rule without inputs: the launcher aligns any number of tokens to blocks.

    Raises
    ------
    SourceError
        The launcher does not call the alignment, or only under a condition.
    """
    path, function = launcher(modules)
    alignment_calls = calls_of(function, "moe_align_block_size")
    tests = [node for node in nodes_of(function) if isinstance(node, ast.If | ast.IfExp)]
    if not alignment_calls or any(calls_of(test, "moe_align_block_size") for test in tests):
        where = "under a condition" if alignment_calls else "nowhere"
        raise MovedError(f"{function.name} calls moe_align_block_size {where}: a new kernel path")
    answer = statement_at(f"return {ALIGNED!r}", alignment_calls[0])
    return path, made_function("path", (), [answer], alignment_calls[0])


def alignment(modules: Modules) -> Mechanism:
    """Return the calls that pass BLOCK_SIZE_M to the alignment of tokens."""
    quotes = []
    for _, call in modules.nodes(ast.Call, "moe_align_block_size("):
        arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
        is_alignment = ast.unparse(call.func) == "moe_align_block_size"
        if is_alignment and "config['BLOCK_SIZE_M']" in map(ast.unparse, arguments):
            quotes.append(quote(call))
    says = "moe_align_block_size pads each expert's tokens to BLOCK_SIZE_M"
    return Mechanism("alignment", says, tuple(quotes))


def tuned_ignored(modules: Modules) -> Mechanism:
    """Return the tests by which deterministic modes ignore tuned files."""
    path, function = modules.locate(["get_moe_configs"])
    program, root = modules.program_of(path, function, LEAVES)
    tests = [
        statement.test
        for statement in program.functions[root].body
        if isinstance(statement, ast.If) and ast.unparse(statement.test) == "deterministic"
    ]
    says = "deterministic modes leave tuned files aside"
    return Mechanism("tuned_ignored", says, tuple(map(quote, tests)))
