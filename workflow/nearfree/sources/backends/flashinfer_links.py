"""FlashInfer: the lines that make a tile matter to its kernels.

Each pattern is a statement or a call as the syntax tree has it, so no comment is taken for code.
"""

import ast
import re
from collections.abc import Iterator, Mapping

from nearfree.errors import SourceError
from nearfree.log.events import Quote
from nearfree.sources.cpp.source import CppFiles, walk, words
from nearfree.sources.language.program import Function, quote
from nearfree.sources.language.python_source import Modules
from nearfree.sources.language.reading import Mechanism

PLANNER = "PrefillSplitQOKVIndptr"
SM90_PLANNER = "PrefillSM90Plan"
LENGTH = r"(\w+)\[(\w+) \+ 1\] - \1\[\2\]"
CPP = (
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
AUTO = r"self\._backend = determine_attention_backend\(.*\)"
PAGED, RAGGED = "BatchPrefillWithPagedKVCacheWrapper", "BatchPrefillWithRaggedKVCacheWrapper"


def mechanisms(files: Mapping[str, str]) -> list[Mechanism]:
    """Return the links from the rules to the kernels, with the lines that were found."""
    cpp = CppFiles({path: text for path, text in files.items() if path.endswith(".cuh")})
    modules = Modules({path: text for path, text in files.items() if path.endswith(".py")})
    found = [
        Mechanism(name, says, _cpp_lines(cpp, function, pattern))
        for name, says, function, pattern in CPP
    ]
    plans = [plan for owner in (PAGED, RAGGED) for plan in _methods(modules, owner, "plan")]
    return [
        *found,
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


def _cpp_lines(cpp: CppFiles, function: str, pattern: str) -> tuple[Quote, ...]:
    try:
        found = cpp.locate(function)
    except SourceError:
        return ()
    return tuple(
        found.text.quote(node.start_point[0] + 1, node.end_point[0] + 1)
        for node in walk(found.node)
        if re.fullmatch(pattern, words(node))
    )


def _methods(modules: Modules, owner: str, name: str) -> Iterator[Function]:
    for path, content in sorted(modules.files.items()):
        if f"class {owner}" in content:
            for group in modules.tree(path).body:
                if isinstance(group, ast.ClassDef) and group.name == owner:
                    yield from (
                        node
                        for node in group.body
                        if isinstance(node, ast.FunctionDef) and node.name == name
                    )


def _lines(function: Function, pattern: str) -> tuple[Quote, ...]:
    nodes = (each for each in ast.walk(function) if isinstance(each, ast.Assign | ast.BoolOp))
    return tuple(quote(each) for each in nodes if re.fullmatch(pattern, ast.unparse(each)))


def _replaced(modules: Modules) -> tuple[Quote, ...]:
    """Return where the ragged wrapper's plan sets its backend after it was chosen."""
    found = []
    for plan in _methods(modules, RAGGED, "plan"):
        chosen = [quote.lines[1] for quote in _lines(plan, AUTO)]
        later = _lines(plan, r"self\._backend = .*")
        found += [each for each in later if chosen and each.lines[0] > max(chosen)]
    return tuple(found)
