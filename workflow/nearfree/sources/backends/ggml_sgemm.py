"""llamafile's products in ggml: the weights that they serve, and the columns of a tile.

The `n` columns of the right operand are `n` rows of activations. The rule `sgemm` is the template
that serves a call (ggml-cpu/llamafile/sgemm.cpp, `llamafile_sgemm`). The template for floats splits
the columns into tiles whose widths differ by at most one (`tinyBLAS::matmul`, `gemm`). The template
for quantised blocks takes tiles of one width, then recurses on the remaining columns
(`tinyBLAS_Q0_AVX::mnpack`).
"""

import re
from collections.abc import Mapping

from nearfree.sources.backends.ggml_text import (
    FLAGS,
    Span,
    body_of,
    composed,
    only_match,
    program_by_flags,
    span,
)
from nearfree.sources.cpp.expressions import Meaning
from nearfree.sources.cpp.program import cpp_program, cpp_reading
from nearfree.sources.cpp.source import CppFiles
from nearfree.sources.language.program import Program
from nearfree.sources.language.reading import Reading

PATH = "ggml/src/ggml-cpu/llamafile/sgemm.cpp"
BLOCK = re.compile(
    r"(?P<name>tinyBLAS\w*)<(?P<width>[^,>]*)[^{};]*?>\s*tb\{[^{}]*\};"
    r"(?P<between>\s*)(?:return\s+)?tb\.matmul\(m, n\);(?:\s*return true;)?"
)
"""The construction of a template's object, and its call to multiply."""
LEAVES = {
    r"GGML_TYPE_(\w+)": r"'\1'",
    "Atype": "weight",
    "Btype": "activation",
    "Ctype": "'F32'",
    "n": "rows",
    "m": "columns",
    "k": "depth",
    "KN": "step",
    "params_nth": "threads",
    r"MIN\(m - m0, (\d+)\)": r"min(columns, \1)",
    r"MIN\(n - n0, (\d+)\)": r"min(rows, \1)",
}
COLUMNS = (2048, 576, 100)
HARMLESS = frozenset({"assert", "GGML_LOG_ERROR", "GGML_ASSERT"})
MEANING = Meaning(branching=True, tails=frozenset({"mnpack"}), harmless=HARMLESS)


def sgemm_rules(files: Mapping[str, str]) -> list[Reading]:
    """Return the readings of the products' rules."""
    text = files[PATH]
    return [_served(text), _float(text), _split(text), _blocks(text)]


def _read(
    text: str, source: str, root: str, leaves: Mapping[str, str], meaning: Meaning = MEANING
) -> tuple[Program, str]:
    return cpp_program(
        CppFiles({PATH: source}, quoted={PATH: text}), root, leaves=leaves, meaning=meaning
    )


def _served(text: str) -> Reading:
    function_span = span(PATH, text, r"bool llamafile_sgemm\(")

    def read(compiled: str) -> tuple[Program, str]:
        return _read(text, BLOCK.sub(_template, compiled), "llamafile_sgemm", LEAVES)

    program, root = program_by_flags(PATH, text, [function_span], read)
    types = {"F32": "F32", "F16": "F16", "BF16": "BF16", "Q8_0": "Q8_0", "Q4_0": "Q8_0"}
    types |= {"Q5_0": "Q8_0", "IQ4_NL": "Q8_0", "Q4_1": "Q8_1", "Q5_1": "Q8_1", "Q4_K": "Q8_K"}
    return Reading(
        "sgemm",
        program,
        root,
        axis="rows",
        contexts=[
            {"weight": weight, "activation": activation, **flags}
            for weight, activation in types.items()
            for flags in FLAGS
        ],
        interpret_whole=False,
        minimums={"rows": 1},
        dense=range(1, 18),
    )


def _template(match: re.Match[str]) -> str:
    """Return a statement that returns a template's name and its elements per step."""
    width = match["width"] if match["width"].isdecimal() else "1"
    lines = "\n" * match.group().count("\n")
    return f'return std::make_tuple("{match["name"]}", {width});{lines}'


def _float(text: str) -> Reading:
    """Return the reading of the tile of a product of floats: rows, columns, and their blocks."""
    marker = r"class tinyBLAS \{"
    spans: list[Span] = [
        span(PATH, text, r" +bool matmul\(int64_t m, int64_t n\)", after=marker),
        span(PATH, text, r" +inline void mnpack\(", after=marker),
        span(PATH, text, r"static inline int64_t BLOCK_SIZE\("),
    ]
    # A template's parameters are on the line before it.
    spans[1:] = [(first - 1, last) for first, last in spans[1:]]
    leaves = {
        r"gemm\((\w+), (\w+), (\w+), m, n, BN\)": r"(\1, \2, \3, BN)",
        **{name: new for name, new in LEAVES.items() if name not in {"n", "m"}},
    }

    def read(compiled: str) -> tuple[Program, str]:
        # Rename the parameters m and n of the function of two numbers to the rule's inputs.
        head = "bool matmul(int64_t m, int64_t n)"
        renamed = compiled.replace(head, "bool matmul(int64_t columns, int64_t rows)", 1)
        first, last = spans[0]
        lines = renamed.split("\n")
        for number in range(first, last):
            lines[number] = re.sub(r"\bm\b", "columns", re.sub(r"\bn\b", "rows", lines[number]))
        return _read(text, "\n".join(lines), "matmul", leaves)

    return Reading(
        "float_tile",
        *program_by_flags(PATH, text, spans, read),
        axis="rows",
        contexts=[
            {"columns": columns, "depth": 2048, "step": step, "threads": threads, **flags}
            for columns in COLUMNS
            for step in (8, 16, 32)
            for threads in (1, 2)
            for flags in FLAGS[-2:]
        ],
        interpret_whole=False,
        minimums={"rows": 1, "columns": 1, "depth": 1, "step": 1, "threads": 1},
        dense=range(1, 66),
    )


def _split(text: str) -> Reading:
    """Return the reading of the number of tiles that columns are split into, and of full tiles."""
    body, first = body_of(PATH, text, r" +NOINLINE void gemm\(", after=r"class tinyBLAS \{")
    pieces = []
    for pattern in (r"const int64_t xtiles = .*;", r"const int64_t jj_RN = .*;"):
        match, line = only_match(PATH, body, pattern, first)
        pieces.append((line, match.group()))
    match, line = only_match(PATH, body, r"jj2 < (jj_RN \* RN) \?", first)
    pieces.append((line, f"return std::make_tuple(xtiles, {match[1]});"))
    rest_match, line = only_match(PATH, body, r"gemm_bloc<RM, (RN-1)>\(ii \+ bi, jj\);", first)
    pieces[-1] = (pieces[-1][0], f"return std::make_tuple(xtiles, {match[1]}, {rest_match[1]});")
    return cpp_reading(
        "float_split",
        CppFiles({PATH: composed("gemm", pieces, "")}, quoted={PATH: text}),
        "gemm",
        leaves={"n": "rows", "RN": "tile"},
        axis="rows",
        contexts=[{"tile": tile} for tile in range(1, 7)],
        minimums={"rows": 1, "tile": 1},
        dense=range(1, 66),
    )


def _blocks(text: str) -> Reading:
    """Return the reading of the columns per tile of blocks, and of the columns in such tiles."""
    function_span = span(PATH, text, r" +void mnpack\(", after=r"class tinyBLAS_Q0_AVX \{")
    leaves = {**LEAVES, "m0": "0", "n0": "0"}
    meaning = Meaning(branching=True, harmless=frozenset({"gemm", "gemm4xN", "gemmMx4"}))

    def read(compiled: str) -> tuple[Program, str]:
        match, _ = only_match(PATH, compiled, r"np = (n0 \+ \(n - n0\) / nc \* nc);")
        only_match(PATH, compiled, r"^ +mnpack\(mp, m, n0, np\);\n +mnpack\(m0, m, np, n\);$")
        end = compiled.index("\n", match.end())
        tail = re.sub(r"mnpack\([^()]*\);", "", compiled[end:])
        source = f"{compiled[: match.end()]} return std::make_tuple(nc, np);{tail}"
        return _read(text, source, "mnpack", leaves, meaning)

    return Reading(
        "block_tile",
        *program_by_flags(PATH, text, [function_span], read, optional=True),
        axis="rows",
        contexts=[
            {"columns": columns, **flags} for columns in (*COLUMNS, 1, 2, 3) for flags in FLAGS
        ],
        interpret_whole=False,
        minimums={"rows": 1, "columns": 1},
        dense=range(1, 66),
    )
