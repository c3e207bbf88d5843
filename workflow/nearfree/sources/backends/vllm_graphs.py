"""vLLM's CUDA graphs: the numbers of tokens that are captured, to which a step is padded.

Two lists: `capture_sizes`, and `decode_sizes`, the list that remains where every request decodes q
tokens: since 0.11.1 its sizes are multiples of q. Above the largest size there is no graph, and no
padding (mechanism `beyond`). Attention of a backend whose full graphs hold one token a request
(mechanisms `support_...`) is outside of graphs where requests decode several, and sizes of such a
server are not rounded.
"""

import ast
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from nearfree.backends.records import BACKENDS
from nearfree.errors import MOVED, SourceError
from nearfree.sources.backends.graph_sizes import (
    SIZES,
    asking,
    conditions,
    joined,
    listed,
    method_of,
    needed,
    parameters_named,
)
from nearfree.sources.language.functions import nodes_of
from nearfree.sources.language.program import Function, Program, at, copied, names_in, placed, quote
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
"""vLLM's own backend of latent attention, as its file is named, by the kernel that it runs."""
GROUPED = frozenset(record.vllm_file for record in BACKENDS if record.vllm_file)
"""Those of grouped attention."""
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
    # A draft length by batch size has sizes of its own: one of a fixed length is read here.
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
    """Return how to read a release's rules.

    Raises
    ------
    SourceError
        A list is not built as in any known release.
    """
    modules = Modules(files)
    path, method = needed(method_of(modules, ["_set_cudagraph_sizes"]), "_set_cudagraph_sizes")
    names = ("cudagraph_capture_sizes", "batch_size_capture_list")
    stored = names_in(method, context=ast.Store)
    answer = next((name for name in names if name in stored), None)
    if answer is None:
        raise SourceError(f"{method.name} sets neither {' nor '.join(names)}", remedy=MOVED)
    leaves = _LEAVES | {r"self\.scheduler_config\.cuda_graph_sizes": _graph_sizes(modules)}
    program, _ = modules.program_of(path, listed(method, answer, INPUTS, leaves), {})
    return [
        asking("capture_sizes", program, SIZES, INPUTS, list(_contexts())),
        *_decode(modules, program),
        _most_requests(modules),
    ]


def _contexts() -> Iterator[dict[str, Any]]:
    """Yield the options and GPUs at which lists are compared."""
    asked = product((1, 13, 100, 256, 1024), (100, 8192), (1, 2, 3, 5, 8), _GPUS)
    for sequences, tokens, q, gpu in asked:
        yield dict(zip(INPUTS, (sequences, tokens, q, *gpu), strict=True))


_GPUS = ((90, "balanced"), (100, "balanced"), (90, "interactivity"))


def _graph_sizes(modules: Modules) -> str:
    """Return the default of `cuda_graph_sizes`, the option of releases before 0.11.1.

    It is a list that the scheduler's configuration sets where it is empty, or the field's default.
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
                inner = [each for each in nodes_of(node) if isinstance(each, ast.Lambda)]
                if len(inner) == 1:
                    return ast.unparse(inner[0].body)
    return "None"


def _decode(modules: Modules, program: Program) -> Iterator[Reading]:
    """Yield how to read the sizes of decodes of q tokens a request; nothing before 0.11.1.

    Raises
    ------
    SourceError
        Nothing rounds sizes in a release whose list goes by the tokens of a decode.
    """
    found = method_of(modules, [_ADJUST])
    if found is None:
        if "q" in names_in(*program.functions[SIZES].body):
            raise SourceError(f"{_ADJUST} is nowhere in the release", remedy=MOVED)
        return
    there, method = found
    rounded = listed(_starting(method), "rounded_sizes", DECODE_INPUTS, _ADJUSTED, name="rounded")
    whole = joined(program, modules, there, rounded)
    asked = [{**each, "tp": tp} for each in _contexts() for tp in (1, 8)]
    yield asking("decode_sizes", whole, "rounded", DECODE_INPUTS, asked)


_ADJUSTED = {
    r"self\.cudagraph_capture_sizes": _CAPTURED,
    r"self\.max_cudagraph_capture_size": f"{_CAPTURED}[-1]",
    r"self\.pass_config\.enable_(sp|sequence_parallelism)": "False",
    r"uniform_decode_query_len": "q",
    r"tensor_parallel_size": "tp",
}


def _starting(method: Function) -> Function:
    """Return the method that rounds sizes, begun with the list that it finds in its object."""
    whole = copied(method)
    first = whole.body[0]
    arguments = ", ".join(INPUTS)
    begin = ast.parse(f"{_CAPTURED} = {SIZES}({arguments})").body[0]
    whole.body = [placed(begin, first), *whole.body]
    return whole


def _most_requests(modules: Modules) -> Reading:
    """Return how to read `max_num_seqs` of a server that nobody gave one, by a GPU's memory."""
    name = "default_max_num_seqs"
    for path in sorted(modules.files):
        if not path.endswith("arg_utils.py"):
            continue
        for node in nodes_of(modules.tree(path)):
            if isinstance(node, ast.If) and "device_memory >=" in ast.unparse(node.test):
                cut = _chosen(node, name)
                return Reading(
                    "max_num_seqs",
                    *modules.program_of(path, cut, _DEFAULTS),
                    axis="memory_gib",
                    contexts=[
                        {"device_name": device, "sm": sm}
                        for device, sm in (("h100", 90), ("a100", 80), ("gb10", 121))
                    ],
                )
    raise SourceError(f"{name} is nowhere set by a GPU's memory", remedy=MOVED)


def _chosen(node: ast.If, name: str) -> Function:
    """Return a function that takes the ways of a condition on memory and gives a server's value."""
    body: list[ast.stmt] = [copied(node)]
    given = at(ast.Name(name, ast.Load()), node)
    said = ast.unparse(node)
    if f"{name} = {{" in said:
        key = placed(ast.parse(_SERVER, mode="eval").body, node)
        body.append(at(ast.Return(at(ast.Subscript(given, key, ast.Load()), node)), node))
    else:
        body.append(at(ast.Return(given), node))
    inputs = ("memory_gib", "device_name", "sm")
    return at(ast.FunctionDef("most_requests", parameters_named(inputs), body, [], None), node)


def mechanisms(files: Mapping[str, str]) -> list[Mechanism]:
    """Return the lines that leave a step without graph, and without padding, above the largest."""
    modules = Modules(files)
    wanted = ("num_tokens > max_size", "num_tokens > self.compilation_config.max_cudagraph")
    found = [
        quote(node)
        for path in sorted(files)
        if path.endswith("cudagraph_dispatcher.py")
        for text in wanted
        for node in conditions(modules.tree(path), text)
    ]
    old = [
        quote(node)
        for path in sorted(files)
        if path.endswith("gpu_model_runner.py") and not found
        for node in conditions(modules.tree(path), "tokens <= self.cudagraph_batch_sizes[-1]")
    ]
    says = "above the largest size a step runs without graph, its tokens not padded"
    supports = [_support(modules, name) for name in sorted({*GROUPED, *LATENT.values()})]
    return [Mechanism("beyond", says, tuple((found or old)[:1])), *supports]


def _support(modules: Modules, name: str) -> Mechanism:
    """Return which batches a backend takes part in full graphs with, as vLLM calls them.

    Where a method of the backend decides, it is all that it may return, joined by `or`.
    """
    paths = [path for path in sorted(modules.files) if path.endswith(f"/{name}.py")]
    nodes = [node for path in paths for node in nodes_of(modules.tree(path))]
    said: Sequence[ast.AST] = [
        node
        for node in nodes
        if isinstance(node, ast.Assign | ast.AnnAssign)
        and ast.unparse(node.targets[0] if isinstance(node, ast.Assign) else node.target)
        in ("cudagraph_support", "_cudagraph_support")
    ][:1]
    said = said or [
        each
        for node in nodes
        if isinstance(node, ast.FunctionDef) and node.name == "get_cudagraph_support"
        for each in nodes_of(node)
        if isinstance(each, ast.Return)
    ]
    names = [
        part.attr
        for node in said
        for part in nodes_of(node)
        if isinstance(part, ast.Attribute) and ast.unparse(part.value) == "AttentionCGSupport"
    ]
    says = " or ".join(sorted(set(names)))
    return Mechanism(f"support_{name}", says, tuple(quote(node) for node in said[:1] if names))
