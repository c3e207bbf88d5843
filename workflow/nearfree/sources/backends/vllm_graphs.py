"""vLLM's CUDA graphs: the captured numbers of tokens, to which a step is padded.

There are two lists: `capture_sizes`, and `decode_sizes` for steps in which every request decodes q
tokens. Since 0.11.1 the latter's sizes are multiples of q. Steps above the largest size run without
graph and padding (mechanism `beyond`). If a backend's full graphs support only one token per
request (mechanisms `support_...`), its attention runs outside of graphs when requests decode
several, and the sizes of such a server are not rounded.
"""

import ast
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from nearfree.backends.records import BACKENDS
from nearfree.errors import MovedError
from nearfree.sources.backends.graph_sizes import (
    SIZES,
    joined,
    list_function,
    method_of,
    required_method,
    wrapper_reading,
)
from nearfree.sources.language.functions import nodes_of
from nearfree.sources.language.program import (
    Function,
    Program,
    copied,
    made_function,
    names_in,
    quote,
    statement_at,
)
from nearfree.sources.language.python_source import Modules
from nearfree.sources.language.reading import Mechanism, Reading

WANTED = (
    r"vllm/config\.py|vllm/config/(__init__|compilation|scheduler|vllm)\.py"
    r"|vllm/engine/arg_utils\.py|vllm/utils/(__init__|math_utils)\.py|vllm/utils\.py"
    r"|vllm/v1/cudagraph_dispatcher\.py|vllm/v1/worker/gpu_model_runner\.py"
    r"|vllm/v1/attention/backends/(flash_attn|triton_attn|flashinfer)\.py"
    r"|vllm/v1/attention/backends/mla/(flashattn|flashmla|cutlass|triton|flashinfer)(_mla)?\.py"
)
LATENT = {
    "fa3": "flashattn_mla",
    "flashmla": "flashmla",
    "cutlass": "cutlass_mla",
    "triton_decode": "triton_mla",
    "trtllm_gen": "flashinfer_mla",
}
"""The file name of vLLM's latent-attention backend, by the kernel that it runs."""
GROUPED = frozenset(record.vllm_file for record in BACKENDS if record.vllm_file)
"""The file names of vLLM's backends of grouped-query attention."""
INPUTS = ("max_num_seqs", "max_num_batched_tokens", "q", "sm", "performance_mode")
DECODE_INPUTS = (*INPUTS, "tp")
_LEAVES = {
    r"envs\.VLLM_USE_V1": "True",
    r"self\.model_config": "True",
    r"self\.model_config\.enforce_eager": "False",
    r"self\.compilation_config\.cudagraph_mode": "'FULL_AND_PIECEWISE'",
    r"CUDAGraphMode\.(\w+)": r"'\1'",
    r"self\.compilation_config\.(max_cudagraph_capture_size|cudagraph_capture_sizes)": "None",
    r"self\.compilation_config\.pass_config\.enable_(sp|sequence_parallelism)": "False",
    r"self\.parallel_config\.tensor_parallel_size": "1",
    r"self\.scheduler_config\.(max_num_seqs|max_num_batched_tokens)": r"\1",
    r"self\.(max_num_seqs)": r"\1",
    r"self\.(speculative_config\.)?num_speculative_tokens": "(q - 1)",
    r"self\.speculative_config": "True",
    # A draft length by batch size has other sizes; only fixed draft lengths are read.
    r"speculative_config\.uses_dynamic_speculative_decoding\(\)": "False",
    r"self\.uniform_decode_query_len": "q",
    r"self\.performance_mode": "performance_mode",
    r"current_platform\.is_device_capability_family\((\d+)\)": r"(sm // 10 == \1 // 10)",
}
_SERVER = "UsageContext.OPENAI_API_SERVER"
_DEFAULTS = {
    r"device_memory": "(memory_gib * 1073741824)",
    r"GiB_bytes": "1073741824",
    r"UsageContext\.(\w+)": r"'\1'",
    r"is_gb10": "(sm == 121)",
}
_ADJUST = "adjust_cudagraph_sizes_for_spec_decode"
_CAPTURED = "captured"


def readings(files: Mapping[str, str]) -> list[Reading]:
    """Return the readings of a release's rules."""
    modules = Modules(files)
    path, method = required_method(
        method_of(modules, ["_set_cudagraph_sizes"]), "_set_cudagraph_sizes"
    )
    names = ("cudagraph_capture_sizes", "batch_size_capture_list")
    stored = names_in(method, context=ast.Store)
    answer = next((name for name in names if name in stored), None)
    if answer is None:
        raise MovedError(f"{method.name} sets neither {' nor '.join(names)}")
    leaves = _LEAVES | {r"self\.scheduler_config\.cuda_graph_sizes": _graph_sizes(modules)}
    program, _ = modules.program_of(path, list_function(method, answer, INPUTS, leaves), {})
    return [
        wrapper_reading("capture_sizes", program, SIZES, INPUTS, list(_contexts())),
        *_decode(modules, program),
        _most_requests(modules),
    ]


def _contexts() -> Iterator[dict[str, Any]]:
    """Yield the options and GPUs at which lists are compared."""
    combinations = product((1, 13, 100, 256, 1024), (100, 8192), (1, 2, 3, 5, 8), _GPUS)
    for sequences, tokens, q, gpu in combinations:
        yield dict(zip(INPUTS, (sequences, tokens, q, *gpu), strict=True))


_GPUS = ((90, "balanced"), (100, "balanced"), (90, "interactivity"))


def _graph_sizes(modules: Modules) -> str:
    """Return the default of `cuda_graph_sizes`, the option of releases before 0.11.1.

    It is a list that the scheduler's configuration sets if it is empty, or the field's default.
    """
    for path in sorted(modules.files):
        if "cuda_graph_sizes" not in modules.files[path]:
            continue
        nodes = nodes_of(modules.tree(path))
        for node in nodes:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == (
                "self.cuda_graph_sizes"
            ):
                return ast.unparse(node.value).replace("self.max_num_seqs", "max_num_seqs")
        for node in nodes:
            if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "cuda_graph_sizes":
                lambdas = [child for child in nodes_of(node) if isinstance(child, ast.Lambda)]
                if len(lambdas) == 1:
                    return ast.unparse(lambdas[0].body)
    return "None"


def _decode(modules: Modules, program: Program) -> Iterator[Reading]:
    """Yield the reading of the sizes for decodes of q tokens per request; none before 0.11.1."""
    definition = method_of(modules, [_ADJUST])
    if definition is None:
        if "q" in names_in(*program.functions[SIZES].body):
            raise MovedError(f"{_ADJUST} is nowhere in the release")
        return
    path, method = definition
    rounded = list_function(
        _with_captured_list(method), "rounded_sizes", DECODE_INPUTS, _ADJUSTED, name="rounded"
    )
    joined_program = joined(program, modules, path, rounded)
    contexts = [{**context, "tp": tp} for context in _contexts() for tp in (1, 8)]
    yield wrapper_reading("decode_sizes", joined_program, "rounded", DECODE_INPUTS, contexts)


_ADJUSTED = {
    r"self\.cudagraph_capture_sizes": _CAPTURED,
    r"self\.max_cudagraph_capture_size": f"{_CAPTURED}[-1]",
    r"self\.pass_config\.enable_(sp|sequence_parallelism)": "False",
    r"uniform_decode_query_len": "q",
    r"tensor_parallel_size": "tp",
}


def _with_captured_list(method: Function) -> Function:
    """Return the method that rounds sizes, with the list from its object set at the start."""
    started = copied(method)
    assignment = statement_at(f"{_CAPTURED} = {SIZES}({', '.join(INPUTS)})", started.body[0])
    started.body = [assignment, *started.body]
    return started


def _most_requests(modules: Modules) -> Reading:
    """Return the reading of a server's default `max_num_seqs`, by a GPU's memory."""
    name = "default_max_num_seqs"
    for path, node in modules.nodes(ast.If, end="arg_utils.py"):
        if "device_memory >=" in ast.unparse(node.test):
            return Reading(
                "max_num_seqs",
                *modules.program_of(path, _server_default(node, name), _DEFAULTS),
                axis="memory_gib",
                contexts=[
                    {"device_name": device, "sm": sm}
                    for device, sm in (("h100", 90), ("a100", 80), ("gb10", 121))
                ],
            )
    raise MovedError(f"{name} is nowhere set by a GPU's memory")


def _server_default(node: ast.If, name: str) -> Function:
    """Return a function of a condition on memory that returns a server's default."""
    is_table = f"{name} = {{" in ast.unparse(node)
    answer = statement_at(f"return {name}[{_SERVER}]" if is_table else f"return {name}", node)
    inputs = ("memory_gib", "device_name", "sm")
    return made_function("most_requests", inputs, [copied(node), answer], node)


def mechanisms(files: Mapping[str, str]) -> list[Mechanism]:
    """Return the lines by which steps above the largest size run without graph and padding.

    Further mechanisms are the backends' support of full graphs.
    """
    modules = Modules(files)
    quotes = [
        quote(node)
        for end, text in _BEYOND
        for _, node in modules.nodes(ast.Compare, end=end)
        if text in ast.unparse(node)
    ]
    statement = "above the largest size a step runs without graph, its tokens not padded"
    supports = [_support(modules, name) for name in sorted({*GROUPED, *LATENT.values()})]
    return [Mechanism("beyond", statement, tuple(quotes[:1])), *supports]


_BEYOND = (
    ("cudagraph_dispatcher.py", "num_tokens > max_size"),
    ("cudagraph_dispatcher.py", "num_tokens > self.compilation_config.max_cudagraph"),
    ("gpu_model_runner.py", "tokens <= self.cudagraph_batch_sizes[-1]"),
)
"""The files, by their ends, and comparisons that skip graphs; the first that is found counts."""


def _support(modules: Modules, name: str) -> Mechanism:
    """Return the batches for which a backend supports full graphs, by vLLM's names.

    If a method of the backend decides, these are all values that it may return, joined by `or`.
    """
    nodes = [node for _, node in modules.nodes(ast.AST, end=f"/{name}.py")]
    statements: Sequence[ast.AST] = [
        node
        for node in nodes
        if isinstance(node, ast.Assign | ast.AnnAssign)
        and ast.unparse(node.targets[0] if isinstance(node, ast.Assign) else node.target)
        in ("cudagraph_support", "_cudagraph_support")
    ][:1]
    statements = statements or [
        child
        for node in nodes
        if isinstance(node, ast.FunctionDef) and node.name == "get_cudagraph_support"
        for child in nodes_of(node)
        if isinstance(child, ast.Return)
    ]
    names = [
        attribute.attr
        for node in statements
        for attribute in nodes_of(node)
        if isinstance(attribute, ast.Attribute)
        and ast.unparse(attribute.value) == "AttentionCGSupport"
    ]
    supports = " or ".join(sorted(set(names)))
    return Mechanism(
        f"support_{name}", supports, tuple(quote(node) for node in statements[:1] if names)
    )
