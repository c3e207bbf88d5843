"""How to read FlashInfer's rules: the tile, the length that selects it, and the kernel.

It also finds the lines by which kernels use the tile.
"""

import ast
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from nearfree.errors import SourceError
from nearfree.hardware.occupancy import shared_memory
from nearfree.log.events import Quote
from nearfree.sources.attention import capability
from nearfree.sources.language.cuts import one_request, returning_names, without_unreachable
from nearfree.sources.language.program import Function, Program, quote
from nearfree.sources.language.python_source import Modules
from nearfree.sources.language.reading import Mechanism, Reading

if TYPE_CHECKING:
    from nearfree.sources.cpp.source import CppFiles

SELECTORS = ("FA2DetermineCtaTileQ", "DetermineCtaTileQ")
PLANNER = "PrefillSplitQOKVIndptr"
SM90_PLANNER = "PrefillSM90Plan"
AUTO = "determine_attention_backend"
CAPABILITIES = (75, 80, 86, 90, 100)
HEAD_DIMS = ((64, 64), (128, 128), (192, 128), (256, 256), (448, 256), (576, 512), (512, 512))
"""Head sizes of queries and keys, and of values."""
DEVICE = {
    r"GetCudaComputeCapability\(\)": "(cc_major, cc_minor)",
    r"device_attribute\('cudaDevAttrMaxSharedMemoryPerBlockOptin'\)": "smem_per_block",
}
ALIKE = {r"qo_indptr_h\[\w+ \+ 1\]": "qo_len", r"qo_indptr_h\[\w+\]": "0"}
"""The offsets of the first request, if each has `qo_len` rows."""
NAMES = {r"head_dim(_vo)?": "head_dim"}
CUDA = (12, 8)
"""The assumed CUDA version of PyTorch, since a query has none; newer ones give the same."""
BACKEND = {
    r"get_compute_capability\(device\)": "(cc_major, cc_minor)",
    r"version_at_least\(torch\.version\.cuda, '(\d+)\.(\d+)'\)": r"cuda >= (\1, \2)",
    r"torch\.version\.cuda": "cuda_text",
    r"torch\.(\w+)": r"'\1'",
    r"device": "None",
    r"PosEncodingMode\.(\w+)\.value": r"'\1'",
}

LENGTH = r"(\w+)\[(\w+) \+ 1\] - \1\[\2\]"
LINKS = (
    (
        "tiles",
        "fa2: a request takes ceil(packed length / CTA_TILE_Q) tiles",
        PLANNER,
        r"ceil_div\(packed_qo_len(_arr\[\w+\])?, cta_tile_q\)",
    ),
    (
        "packed_rows",
        "fa2: the packed length is the query length times the query heads per key-value head",
        PLANNER,
        rf"packed_qo_len_arr\[\w+\] = int64_t\({LENGTH}\) \* int64_t\(gqa_group_size\)",
    ),
    (
        "sm90_tiles",
        "fa3: a request takes ceil(query length / tile) tiles for each query head",
        SM90_PLANNER,
        r"ceil_div\(qo_len, cta_tile_q\)",
    ),
    (
        "sm90_rows",
        "fa3: the length is the query length alone",
        SM90_PLANNER,
        rf"qo_len = {LENGTH}",
    ),
)
CAPTURED = r"self\._max_total_num_rows (= total_num_rows|or total_num_rows)"
CHOSEN = r"self\._backend = determine_attention_backend\(.*\)"
PAGED, RAGGED = "BatchPrefillWithPagedKVCacheWrapper", "BatchPrefillWithRaggedKVCacheWrapper"
"""Patterns match statements or calls of the syntax tree, so a comment never counts as code."""


def readings(files: Mapping[str, str]) -> list[Reading]:
    """Return the readings of a release's rules from its files."""
    cpp, modules = _parsed(files)
    rules = [_tile(cpp), _packed_length(cpp), _sm90_tile(cpp)]
    return [*rules, _backend(modules)] if modules.find(AUTO) else rules


def _parsed(files: Mapping[str, str]) -> tuple["CppFiles", Modules]:
    """Return the C++ files and the Python files of a release."""
    from nearfree.sources.cpp.source import CppFiles

    cpp = {path: text for path, text in files.items() if path.endswith(".cuh")}
    python = {path: text for path, text in files.items() if path.endswith(".py")}
    return CppFiles(cpp), Modules(python)


def _tile(cpp: "CppFiles") -> Reading:
    """Return the reading of CTA_TILE_Q by packed length."""
    from nearfree.sources.cpp.program import cpp_reading

    contexts = [
        {"head_dim": vo, "head_dim_qk": qk, "kv_dtype_bytes": size}
        | capability(sm)
        | {"smem_per_block": shared_memory(sm).per_block}
        for sm in CAPABILITIES
        for qk, vo in HEAD_DIMS
        for size in ((1, 2) if qk != vo else (2,))
    ]
    return cpp_reading(
        "tile", cpp, *SELECTORS, leaves=DEVICE, axis="avg_packed_qo_len", contexts=contexts
    )


def _packed_length(cpp: "CppFiles") -> Reading:
    """Return the reading of the packed length and head size that select the tile."""
    from nearfree.sources.cpp.expressions import Meaning
    from nearfree.sources.cpp.program import cpp_program

    meaning = Meaning(answers=dict.fromkeys(SELECTORS, (0, 1)))
    program, root = cpp_program(cpp, PLANNER, leaves=ALIKE, meaning=meaning)
    planner = without_unreachable(one_request(program.functions[root], "batch_size"))
    contexts = [
        {"batch_size": batch, "num_qo_heads": 8 * group, "num_kv_heads": 8, "head_dim": 128}
        | {"enable_cuda_graph": graph, "total_num_rows": rows * batch, "uniform_q_len": uniform}
        for group in (1, 4)
        for batch in (1, 4)
        for graph, rows, uniform in ((False, 16, 0), (True, 16, 0), (True, 64, 0), (True, 16, 16))
    ]
    return Reading(
        rule="packed_length",
        program=Program({root: planner}, program.constants),
        root=root,
        axis="qo_len",
        contexts=contexts,
        interpret_whole=False,
    )


def _sm90_tile(cpp: "CppFiles") -> Reading:
    """Return the reading of the tile that the planner for sm90 sets by head size."""
    from nearfree.sources.cpp.program import cpp_program

    program, root = cpp_program(cpp, SM90_PLANNER, leaves=NAMES)
    planner = returning_names(program.functions[root], "cta_tile_q")
    return Reading(
        rule="sm90_tile",
        program=Program({root: planner}, program.constants),
        root=root,
        axis="head_dim",
        contexts=[{}],
        interpret_whole=False,
        dense=range(1, 577),
    )


def _backend(modules: Modules) -> Reading:
    """Return the reading of the kernel that backend="auto" selects."""
    return Reading(
        "backend",
        *modules.program([AUTO], BACKEND),
        axis="head_dim_qk",
        contexts=[backend_facts(90), *(backend_facts(sm) for sm in (75, 80, 89, 100, 120))],
        extra_contexts=[
            backend_facts(90, **{name: value})
            for name, value in (
                ("head_dim_vo", 64),
                ("head_dim_vo", None),
                ("pos_encoding_mode", "ROPE_LLAMA"),
                ("use_custom_mask", True),
                ("dtype_kv", "float8_e4m3fn"),
                ("dtype_kv", "uint8"),
            )
        ],
    )


def backend_facts(sm: int | None, **changes: Any) -> dict[str, Any]:
    """Return the facts that select a kernel for a call in 16 bits on one compute capability."""
    facts = {
        "cuda": CUDA,
        "cuda_text": ".".join(map(str, CUDA)),
        "head_dim_vo": 128,
        "pos_encoding_mode": "NONE",
        "use_custom_mask": False,
        "use_fp16_qk_reductions": False,
        "allow_fp16_qk_reductions": False,
        "dtype_q": "bfloat16",
        "dtype_kv": "bfloat16",
    }
    return facts | ({} if sm is None else capability(sm)) | changes


def mechanisms(files: Mapping[str, str]) -> list[Mechanism]:
    """Return the links from the rules to the kernels, with their lines."""
    cpp, modules = _parsed(files)
    links = [
        Mechanism(name, says, _cpp_lines(cpp, function, pattern))
        for name, says, function, pattern in LINKS
    ]
    plans = [plan for owner in (PAGED, RAGGED) for _, plan in modules.methods(owner, "plan")]
    return [
        *links,
        Mechanism(
            "captured_rows",
            "under a CUDA graph a plan is made for the rows of the first one",
            tuple(line for plan in plans for line in _lines(plan, CAPTURED)),
        ),
        Mechanism(
            "ragged_auto",
            "the wrapper for ragged keys may replace what auto became",
            _replaced(modules),
        ),
    ]


def _cpp_lines(cpp: "CppFiles", function: str, pattern: str) -> tuple[Quote, ...]:
    from nearfree.sources.cpp.source import text_of, walk

    try:
        definition = cpp.locate(function)
    except SourceError:
        return ()
    nodes = (node for node in walk(definition.node) if re.fullmatch(pattern, text_of(node)))
    return tuple(map(definition.quote, nodes))


def _lines(function: Function, pattern: str) -> tuple[Quote, ...]:
    nodes = (node for node in ast.walk(function) if isinstance(node, ast.Assign | ast.BoolOp))
    return tuple(quote(node) for node in nodes if re.fullmatch(pattern, ast.unparse(node)))


def _replaced(modules: Modules) -> tuple[Quote, ...]:
    """Return the lines of the ragged wrapper's plan that set its backend after its selection."""
    replacements: list[Quote] = []
    for _, plan in modules.methods(RAGGED, "plan"):
        choice_lines = [quote.lines[1] for quote in _lines(plan, CHOSEN)]
        assignments = _lines(plan, r"self\._backend = .*")
        replacements += [
            assignment
            for assignment in assignments
            if choice_lines and assignment.lines[0] > max(choice_lines)
        ]
    return tuple(replacements)
