"""SGLang's CUDA graphs: the captured numbers of requests, to which a step is padded.

A graph has one width, the positions per request. `decode_sizes` is the list that the decode runner
captures, derived from that of the options (`capture_sizes`), up to `max_bs`, which depends on the
GPU's memory. Under speculation SGLang by default limits running requests to the number in mechanism
`running_requests`.
"""

import ast
from collections.abc import Iterator, Mapping
from itertools import product

from nearfree.errors import MovedError
from nearfree.sources.backends.graph_sizes import (
    SIZES,
    joined,
    list_function,
    method_of,
    required_method,
    wrapper_reading,
)
from nearfree.sources.language.program import (
    Function,
    at,
    copied,
    made_function,
    quote,
    statement_at,
)
from nearfree.sources.language.python_source import Modules
from nearfree.sources.language.reading import Mechanism, Reading

_SRT = r"sglang/srt/"
WANTED = (
    rf"{_SRT}server_args\.py|{_SRT}arg_groups/(cuda_graph|memory|speculative)_hook\.py"
    rf"|{_SRT}model_executor/(cuda_graph_runner|runner/base_cuda_graph_runner)\.py"
)
INPUTS = ("max_bs", "width")
DECODE_INPUTS = (*INPUTS, "max_running_requests", "alignment")
_LISTS = (
    "_generate_cuda_graph_batch_sizes",
    "_generate_decode_cuda_graph_batch_sizes",
    "generate_decode_cuda_graph_batch_sizes",
)
_LEAVES = {
    r"(self|cfg)\.disable_cuda_graph_padding": "False",
    r"(self|cfg)\.speculative_algorithm": "(None if width == 1 else 'EAGLE')",
    r"self\.cuda_graph_max_bs": "max_bs",
}
_CAPTURE = {
    r"server_args\.cuda_graph_bs": f"{SIZES}(max_bs, width)",
    r"list\((server_args|get_exec\(\)\.graph)\.cuda_graph_config\.decode\.bs\)": (
        f"{SIZES}(max_bs, width)"
    ),
    r"model_runner\.req_to_token_pool\.size": "max_running_requests",
    r"DllmConfig\.from_server_args\(.*\)": "None",
    r"(server_args|get_exec\(\)\.overlap)\.enable_two_batch_overlap": "False",
    r"require_gathered_buffer\(server_args\)": "(alignment > 1)",
    r"get_cuda_graph_batch_size_alignment\(.*\)": "alignment",
    r"get_attention_tp_size\(\)|get_parallel\(\)\.attn_tp_size": "alignment",
    r"get_attention_cp_size\(\)|get_parallel\(\)\.attn_cp_size": "1",
    r"ceil_align\((\w+), (\w+)\)": r"((\1 + \2 - 1) // \2 * \2)",
    # ceil_align of that alignment: sglang/srt/utils/common.py of 0.5.17 and 0.5.20.
    r"get_cuda_graph_max_batch_size\((?:server_args, )?(\w+)\)": (
        r"((\1 + alignment - 1) // alignment * alignment)"
    ),
    r"model_runner\.server_args": "None",
    r"num_tokens_per_bs|captured_req_width": "width",
}
_MEMORY = {
    r"is_npu\(\)": "False",
    r"gpu_mem": "(memory_gib * 1024)",
    r"(self|cfg)\.tp_size": "tp",
    r"(self|cfg)\.chunked_prefill_size": "0",
}
_MAX_BS = "max_bs"


def readings(files: Mapping[str, str]) -> list[Reading]:
    """Return the readings of a release's rules."""
    modules = Modules(files)
    path, method = required_method(method_of(modules, _LISTS), "the list of captured batch sizes")
    program, _ = modules.program_of(path, list_function(method, "capture_bs", INPUTS, _LEAVES), {})
    name = "get_batch_sizes_to_capture"
    runner_path, runner = required_method(method_of(modules, [name]), name)
    captured = list_function(runner, "capture_bs", DECODE_INPUTS, _CAPTURE, name="captured")
    joined_program = joined(program, modules, runner_path, captured)
    size_contexts = [{"max_bs": size, "width": width} for size in _SIZES for width in (1, 4)]
    decode_contexts = [
        dict(zip(DECODE_INPUTS, values, strict=True))
        for values in product(_SIZES, (1, 3, 4), (48, 100, 4096), (1, 8))
    ]
    return [
        wrapper_reading("capture_sizes", program, SIZES, INPUTS, size_contexts),
        wrapper_reading("decode_sizes", joined_program, "captured", DECODE_INPUTS, decode_contexts),
        _largest(modules),
    ]


_SIZES = (1, 5, 8, 24, 48, 80, 160, 256, 500, 512, 1000)


def _largest(modules: Modules) -> Reading:
    """Return the reading of the largest captured number of requests, by memory and tp."""
    for path, node in modules.nodes(ast.If, "gpu_mem is not None"):
        cut = _by_memory(node) if ast.unparse(node.test) == "gpu_mem is not None" else None
        if cut is not None:
            return Reading(
                _MAX_BS,
                *modules.program_of(path, cut, _MEMORY),
                axis="memory_gib",
                contexts=[{"tp": tp} for tp in (1, 2, 4, 8)],
            )
    raise MovedError("the largest captured batch is nowhere set by memory")


def _by_memory(node: ast.If) -> Function | None:
    """Return a function of a condition on memory; None if the condition sets no size."""
    renamer = _RenameLargest()
    condition: ast.If = renamer.visit(copied(node))
    if not renamer.seen:
        return None
    initial = statement_at(f"{_MAX_BS} = None", node.test)
    result = statement_at(f"return {_MAX_BS}", node)
    return made_function("largest", ("memory_gib", "tp"), [initial, condition, result], node)


class _RenameLargest(ast.NodeTransformer):
    """Rename the attribute that holds the largest size to a local name; drop other statements."""

    def __init__(self) -> None:
        self.seen = False

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        texts = ("self.cuda_graph_max_bs", "decode_cuda_graph_config.max_bs")
        if ast.unparse(node) not in texts:
            return node
        self.seen = True
        return at(ast.Name(_MAX_BS, node.ctx), node)

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        self.generic_visit(node)
        sets_local = isinstance(node.targets[0], ast.Name)
        return node if sets_local else ast.copy_location(ast.Pass(), node)

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        return ast.copy_location(ast.Pass(), node)


def mechanisms(files: Mapping[str, str]) -> list[Mechanism]:
    """Return the default limit of running requests under speculation."""
    modules = Modules(files)
    limits = list(_limits(modules))
    numbers = sorted({value for value, _ in limits})
    says = " or ".join(map(str, numbers))
    return [Mechanism("running_requests", says, tuple(quote(node) for _, node in limits[:1]))]


def _limits(modules: Modules) -> Iterator[tuple[int, ast.expr]]:
    """Yield the numbers to which `max_running_requests` is set, with their nodes."""
    for _, node in modules.nodes(ast.AST, "Max running requests is reset"):
        value: ast.AST | None = getattr(node, "value", None)
        number = value.value if isinstance(value, ast.Constant) else None
        if isinstance(value, ast.expr) and isinstance(number, int) and _names_limit(node):
            yield number, value


def _names_limit(node: ast.AST) -> bool:
    """Return whether a statement or an argument sets `max_running_requests`."""
    if isinstance(node, ast.Assign):
        return ast.unparse(node.targets[0]).endswith(".max_running_requests")
    return isinstance(node, ast.keyword) and node.arg == "max_running_requests"
