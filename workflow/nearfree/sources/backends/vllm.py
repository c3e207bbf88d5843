"""vLLM: the rules of its Triton fused MoE, and the path of a call."""

import ast
from collections.abc import Mapping

from nearfree.backends.moe_kernels import ALIGNED, NAIVE
from nearfree.errors import SourceError
from nearfree.sources.backends import fused_moe
from nearfree.sources.language.cuts import calls_of, returning_names, value_of
from nearfree.sources.language.expressions import UnknownConstructError
from nearfree.sources.language.functions import nodes_of
from nearfree.sources.language.program import Function, at, quote, signature
from nearfree.sources.language.python_source import Modules
from nearfree.sources.language.reading import Mechanism, Reading

_MOE = r"vllm/model_executor/layers/fused_moe/"
WANTED = (
    rf"{_MOE}((experts/marlin|fused_marlin)_moe|fused_moe|config|moe_align_block_size|experts/triton_moe|oracle/unquantized)\.py"
    r"|vllm/third_party/triton_kernels/matmul_ogs_details/opt_flags\.py"
    r"|vllm/envs\.py|vllm/utils/(math_utils|platform_utils|__init__)\.py|vllm/utils\.py"
)
TUNED = rf"{_MOE}configs/.*\.json"
_OPT_FLAGS = {
    r"routing_data\.expected_tokens_per_expt": "None",
    r"routing_data\.expt_hist": "True",
    r"routing_data\.n_expts_tot": "E",
    r"constraints\.get\('block_m', None\)": "None",
    r"triton\.next_power_of_2\((.+)\)": r"(1 << bit_length(\1 - 1))",
    r"torch\.cuda\.get_device_capability\(\)": "(sm // 10, sm % 10)",
    r"torch\.(\w+)": r"'\1'",
}
_GPT_OSS = {
    "routing_data": "True",
    "batch_size": "1",
    "enforce_bitwise_invariance": "deterministic",
    "lhs_dtype": "'bfloat16'",
    "rhs_dtype": "'mxfp4'",
    "FP4": "'mxfp4'",
}
"""gpt-oss's experts: 16-bit activations, weights in mxfp4, an expert's tokens contiguous."""
_ORDER_LEAVES = fused_moe.LEAVES | {
    r"current_platform\.is_(xpu|cpu|tpu)\(\)": "False",
    r"current_platform\.is_device_capability_family\((\d+)\)": r"(sm // 10 == \1 // 10)",
    r"moe_config\.moe_parallel_config\.dp_size": "dp_size",
    r"moe_config\.activation": "activation",
    r"MoEActivation\.(\w+)": r"'\1'",
    r"UnquantizedMoeBackend\.(\w+)": r"'\1'",
}
# Expert maps and weights in host memory are separate modes, which are not read.
_PATH_LEAVES = fused_moe.LEAVES | {
    r"expert_map": "None",
    r"top_k_num": "topk",
    r"tokens_in_chunk": "num_tokens",
    r"global_num_experts": "E",
    r"weights_host_resident": "False",
}


def readings(files: Mapping[str, str]) -> list[Reading]:
    """Return the readings of a release's rules."""
    modules = Modules(files)
    return [
        *fused_moe.block_sizes(modules),
        *fused_moe.marlin_blocks(modules),
        *triton_kernels_blocks(modules),
        fused_moe.config_dtype(modules),
        fused_moe.tuned_key(modules),
        fused_moe.tuned_name(modules),
        fused_moe.config_tokens(modules, _chunk(modules)),
        assignment(modules),
        *backend_order(modules),
    ]


def _chunk(modules: Modules) -> dict[str, ast.expr]:
    """Return the default of VLLM_FUSED_MOE_CHUNK_SIZE: the second argument of os.getenv."""
    for _, node in modules.nodes(ast.Dict, end="envs.py"):
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and key.value == "VLLM_FUSED_MOE_CHUNK_SIZE":
                return {"chunk_tokens": _fallback(value)}
    return {}


def _fallback(value: ast.expr) -> ast.expr:
    for call in ast.walk(value):
        if isinstance(call, ast.Call) and ast.unparse(call.func) in {"os.getenv", "os.environ.get"}:
            conversion = ast.Call(ast.Name("int", ast.Load()), [call.args[1]], [])
            return at(conversion, call)
    raise SourceError("VLLM_FUSED_MOE_CHUNK_SIZE has no default of the known form")


def triton_kernels_blocks(modules: Modules) -> list[Reading]:
    """Return the reading of the rows of a block of `triton_kernels`, which runs gpt-oss's experts.

    The axis `m` counts routed rows, tokens times experts per token. The call passes no expected
    tokens per expert and no constraint on the block. The list is empty if the wheel lacks the
    package.
    """
    definition = modules.find("make_default_opt_flags_nvidia")
    if definition is None:
        return []
    cut = returning_names(definition[1], "block_m")
    cut.args = signature()
    return [
        Reading(
            "triton_kernels_block_m",
            *modules.program_of(definition[0], cut, _OPT_FLAGS | _GPT_OSS),
            axis="m",
            contexts=[{"E": e, "sm": sm, "deterministic": False} for e in (8, 32, 128)
                      for sm in (90, 100)],
            extra_contexts=[{"E": 32, "sm": 90, "deterministic": True}],
            interpret_whole=False,
        )
    ]  # fmt: skip


def assignment(modules: Modules) -> Reading:
    """Return the reading of whether tokens are aligned to blocks, or each has its own block.

    Without alignment no two tokens share a block, so further tokens never fill its padding.
    """
    definition = modules.function_assigning("naive_block_assignment")
    if definition is None:
        definition = fused_moe.always_aligned(modules)
    else:
        definition = definition[0], _naive_or_aligned(definition[1])
    return Reading(
        "path",
        *modules.program_of(*definition, _PATH_LEAVES),
        axis="num_tokens",
        contexts=[
            {"E": experts, "topk": top_k, "block_shape": shape}
            | {"use_int8_w8a16": dtype == "int8_w8a16", "use_int4_w4a16": dtype == "int4_w4a16"}
            for dtype, shape in fused_moe.QUANTISATIONS
            for experts, top_k in fused_moe.SHAPES
        ],
    )


def backend_order(modules: Modules) -> list[Reading]:
    """Return the reading of the order in which serving tries its 16-bit kernels.

    The first kernel that supports the layer runs; only `TRITON` follows the rules above. The list
    is empty for old releases.
    """
    definition = modules.find("_get_priority_backends")
    if definition is None or "unquantized" not in definition[0]:
        return []
    contexts = [
        {"rocm": rocm, "dp_size": size, "activation": "SILU"}
        for rocm in (False, True)
        for size in (1, 2)
    ]
    return [
        Reading(
            "backend_order",
            *modules.program_of(*definition, _ORDER_LEAVES),
            axis="sm",
            dense=(80, 86, 89, 90, 100, 103, 120),
            contexts=contexts,
        )
    ]


def _naive_or_aligned(function: Function) -> Function:
    inputs = {"expert_map", "top_k_num", "tokens_in_chunk", "num_tokens", "global_num_experts"}
    inputs |= {"weights_host_resident", "use_int8_w8a16", "use_int4_w4a16", "block_shape"}
    cut = value_of(function, "naive_block_assignment", frozenset(inputs))
    answer = cut.body[-1]
    if not isinstance(answer, ast.Return) or answer.value is None:
        raise UnknownConstructError("naive_block_assignment has no value", answer)
    paths = [at(ast.Constant(path), answer) for path in (NAIVE, ALIGNED)]
    answer.value = at(ast.IfExp(answer.value, *paths), answer)
    return cut


def mechanisms(files: Mapping[str, str]) -> list[Mechanism]:
    """Return the lines that use BLOCK_SIZE_M, and those that bypass it."""
    modules = Modules(files)
    definition = modules.function_assigning("naive_block_assignment")
    nodes = [] if definition is None else nodes_of(definition[1])
    tests = [node.test for node in nodes if isinstance(node, ast.If)]
    return [
        fused_moe.alignment(modules),
        Mechanism(
            "naive",
            "few tokens skip moe_align_block_size: each routed pair has a block of its own",
            tuple(quote(t) for t in tests if "naive_block_assignment" in ast.unparse(t)),
        ),
        _modular(modules),
        fused_moe.tuned_ignored(modules),
    ]


def _modular(modules: Modules) -> Mechanism:
    """Return the lines by which the experts class of serving can skip the alignment, too."""
    says = "the modular TritonExperts takes the same paths"
    method = modules.method("TritonExperts", "apply")
    assignment_calls = [] if method is None else calls_of(method[1], "_prepare_expert_assignment")
    return Mechanism("modular_naive", says, tuple(quote(call) for call in assignment_calls))
