"""vLLM: the rules of its Triton fused MoE, and which path a call takes."""

import ast
from collections.abc import Mapping

from nearfree.backends.moe_kernels import ALIGNED, NAIVE
from nearfree.errors import SourceError
from nearfree.sources.backends import fused_moe
from nearfree.sources.language.cuts import calls, made, returning, value_of
from nearfree.sources.language.expressions import UnknownConstructError
from nearfree.sources.language.program import Function, at, quote
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
"""gpt-oss's experts: 16-bit activations, weights in mxfp4, an expert's tokens side by side."""
_ORDER_LEAVES = fused_moe.LEAVES | {
    r"current_platform\.is_(xpu|cpu|tpu)\(\)": "False",
    r"current_platform\.is_device_capability_family\((\d+)\)": r"(sm // 10 == \1 // 10)",
    r"moe_config\.moe_parallel_config\.dp_size": "dp_size",
    r"moe_config\.activation": "activation",
    r"MoEActivation\.(\w+)": r"'\1'",
    r"UnquantizedMoeBackend\.(\w+)": r"'\1'",
}
# Expert maps and weights in host memory are modes of their own: neither is asked about here.
_PATH_LEAVES = fused_moe.LEAVES | {
    r"expert_map": "None",
    r"top_k_num": "topk",
    r"tokens_in_chunk": "num_tokens",
    r"global_num_experts": "E",
    r"weights_host_resident": "False",
}


def readings(files: Mapping[str, str]) -> list[Reading]:
    """Return how to read a release's rules."""
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
    """Return the default of VLLM_FUSED_MOE_CHUNK_SIZE: the text that os.getenv falls back on."""
    for path in modules.files:
        if not path.endswith("envs.py"):
            continue
        for node in ast.walk(modules.tree(path)):
            if isinstance(node, ast.Dict):
                for key, value in zip(node.keys, node.values, strict=True):
                    if isinstance(key, ast.Constant) and key.value == "VLLM_FUSED_MOE_CHUNK_SIZE":
                        return {"chunk_tokens": _fallback(value)}
    return {}


def _fallback(value: ast.expr) -> ast.expr:
    for call in ast.walk(value):
        if isinstance(call, ast.Call) and ast.unparse(call.func) in {"os.getenv", "os.environ.get"}:
            whole = ast.Call(ast.Name("int", ast.Load()), [call.args[1]], [])
            return at(whole, call)
    raise SourceError("VLLM_FUSED_MOE_CHUNK_SIZE has no default of the known form")


def triton_kernels_blocks(modules: Modules) -> list[Reading]:
    """Return how to read the rows of a block of `triton_kernels`, which runs gpt-oss's experts.

    `m` counts routed rows, tokens times experts a token; nothing is expected of an expert's share,
    and nobody constrains the block. Empty where the wheel has no such package.
    """
    found = modules.find("make_default_opt_flags_nvidia")
    if found is None:
        return []
    cut = returning(found[1], "block_m")
    cut.args = made("none", cut.body, cut).args
    return [
        Reading(
            "triton_kernels_block_m",
            *modules.program_of(found[0], cut, _OPT_FLAGS | _GPT_OSS),
            axis="m",
            contexts=[{"E": e, "sm": sm, "deterministic": False} for e in (8, 32, 128)
                      for sm in (90, 100)],
            also=[{"E": 32, "sm": 90, "deterministic": True}],
            whole=False,
        )
    ]  # fmt: skip


def assignment(modules: Modules) -> Reading:
    """Return how to read whether tokens are aligned to blocks, or each gets a block of its own.

    Without alignment no two tokens share a block, so a block has no slack to share.
    """
    found = modules.having("naive_block_assignment")
    if found is None:
        found = fused_moe.always_aligned(modules)
    else:
        found = found[0], _naive_or_aligned(found[1])
    return Reading(
        "path",
        *modules.program_of(*found, _PATH_LEAVES),
        axis="num_tokens",
        contexts=[
            {"E": experts, "topk": top_k, "block_shape": shape}
            | {"use_int8_w8a16": dtype == "int8_w8a16", "use_int4_w4a16": dtype == "int4_w4a16"}
            for dtype, shape in fused_moe.QUANTISATIONS
            for experts, top_k in fused_moe.SHAPES
        ],
    )


def backend_order(modules: Modules) -> list[Reading]:
    """Return how to read in which order serving tries its 16-bit kernels; empty in old releases.

    The first kernel that supports the layer is taken; only `TRITON` follows the rules above.
    """
    found = modules.find("_get_priority_backends")
    if found is None or "unquantized" not in found[0]:
        return []
    program, root = modules.program_of(*found, _ORDER_LEAVES)
    contexts = [
        {"rocm": rocm, "dp_size": size, "activation": "SILU"}
        for rocm in (False, True)
        for size in (1, 2)
    ]
    return [
        Reading(
            rule="backend_order",
            program=program,
            root=root,
            axis="sm",
            dense=(80, 86, 89, 90, 100, 103, 120),
            contexts=contexts,
        )
    ]


def _naive_or_aligned(function: Function) -> Function:
    stop = {"expert_map", "top_k_num", "tokens_in_chunk", "num_tokens", "global_num_experts"}
    stop |= {"weights_host_resident", "use_int8_w8a16", "use_int4_w4a16", "block_shape"}
    cut = value_of(function, "naive_block_assignment", frozenset(stop))
    answer = cut.body[-1]
    if not isinstance(answer, ast.Return) or answer.value is None:
        raise UnknownConstructError("naive_block_assignment has no value", answer)
    texts = [at(ast.Constant(each), answer) for each in (NAIVE, ALIGNED)]
    answer.value = at(ast.IfExp(answer.value, *texts), answer)
    return cut


def mechanisms(files: Mapping[str, str]) -> list[Mechanism]:
    """Return the lines that make BLOCK_SIZE_M matter, and those that skip it."""
    modules = Modules(files)
    skipped = modules.having("naive_block_assignment")
    tests = [] if skipped is None else _tests(skipped[1])
    return [
        fused_moe.alignment(modules),
        Mechanism(
            "naive",
            "few tokens skip moe_align_block_size: each routed pair has a block of its own",
            tuple(quote(each) for each in tests),
        ),
        _modular(modules),
        fused_moe.tuned_ignored(modules),
    ]


def _tests(function: Function) -> list[ast.expr]:
    return [
        each.test
        for each in ast.walk(function)
        if isinstance(each, ast.If) and "naive_block_assignment" in ast.unparse(each.test)
    ]


def _modular(modules: Modules) -> Mechanism:
    """Return whether the experts class that serving uses can skip the alignment too."""
    says = "the modular TritonExperts takes the same paths"
    found = modules.method("TritonExperts", "apply")
    shared = [] if found is None else calls(found[1], "_prepare_expert_assignment")
    return Mechanism("modular_naive", says, tuple(quote(each) for each in shared))
