"""llamafile's products in ggml: which weights they serve, and the columns that a tile holds.

`n` columns of the right operand are `n` rows of activations. `sgemm` says which template serves a
call (ggml-cpu/llamafile/sgemm.cpp, `llamafile_sgemm`); a template of floats splits the columns
into tiles that differ by one at most (`tinyBLAS::matmul`, `gemm`), that of quantised blocks takes
tiles of one width and treats the rest as it treats the whole (`tinyBLAS_Q0_AVX::mnpack`).
"""

import re
from collections.abc import Mapping

from nearfree.sources.backends.ggml_text import (
    FLAGS,
    Span,
    body_of,
    composed,
    flagged,
    found_in,
    span,
)
from nearfree.sources.cpp.expressions import Meaning
from nearfree.sources.cpp.program import cpp_program
from nearfree.sources.cpp.source import CppFiles
from nearfree.sources.language.program import Program
from nearfree.sources.language.reading import Reading

PATH = "ggml/src/ggml-cpu/llamafile/sgemm.cpp"
BLOCK = re.compile(
    r"(?P<name>tinyBLAS\w*)<(?P<width>[^,>]*)[^{};]*?>\s*tb\{[^{}]*\};"
    r"(?P<between>\s*)(?:return\s+)?tb\.matmul\(m, n\);(?:\s*return true;)?"
)
"""What makes a template's object and has it multiply."""
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
    """Return how to read the rules of the products.

    Raises
    ------
    SourceError
        A function is not of the known form.
    """
    text = files[PATH]
    return [_served(text), _float(text), _split(text), _blocks(text)]


def _read(
    text: str, alone: str, root: str, leaves: Mapping[str, str], meaning: Meaning = MEANING
) -> tuple[Program, str]:
    return cpp_program(
        CppFiles({PATH: alone}, quoted={PATH: text}), root, leaves=leaves, meaning=meaning
    )


def _served(text: str) -> Reading:
    place = span(PATH, text, r"bool llamafile_sgemm\(")

    def made(alone: str) -> tuple[Program, str]:
        return _read(text, BLOCK.sub(_template, alone), "llamafile_sgemm", LEAVES)

    program, root = flagged(PATH, text, [place], made)
    types = {"F32": "F32", "F16": "F16", "BF16": "BF16", "Q8_0": "Q8_0", "Q4_0": "Q8_0"}
    types |= {"Q5_0": "Q8_0", "IQ4_NL": "Q8_0", "Q4_1": "Q8_1", "Q5_1": "Q8_1", "Q4_K": "Q8_K"}
    return Reading(
        "sgemm",
        program,
        root,
        axis="rows",
        contexts=[
            {"weight": weight, "activation": activation, **each}
            for weight, activation in types.items()
            for each in FLAGS
        ],
        whole=False,
        least={"rows": 1},
        dense=range(1, 18),
    )


def _template(found: re.Match[str]) -> str:
    """Return a template's name, and the elements that it takes at once, as an answer."""
    width = found["width"] if found["width"].isdecimal() else "1"
    lines = "\n" * found.group().count("\n")
    return f'return std::make_tuple("{found["name"]}", {width});{lines}'


def _float(text: str) -> Reading:
    """Return how to read the tile of a product of floats: its rows, columns, and their blocks."""
    marker = r"class tinyBLAS \{"
    spans: list[Span] = [
        span(PATH, text, r" +bool matmul\(int64_t m, int64_t n\)", after=marker),
        span(PATH, text, r" +inline void mnpack\(", after=marker),
        span(PATH, text, r"static inline int64_t BLOCK_SIZE\("),
    ]
    # A template's parameters stand on the line before it.
    spans[1:] = [(first - 1, last) for first, last in spans[1:]]
    leaves = {
        r"gemm\((\w+), (\w+), (\w+), m, n, BN\)": r"(\1, \2, \3, BN)",
        **{name: new for name, new in LEAVES.items() if name not in {"n", "m"}},
    }

    def made(alone: str) -> tuple[Program, str]:
        # A function of two numbers, with its parameters for the question's own.
        named = alone.replace("bool matmul(int64_t m, int64_t n)", "bool matmul(int64_t columns,"
                              " int64_t rows)", 1)  # fmt: skip
        first, last = spans[0]
        lines = named.split("\n")
        for number in range(first, last):
            lines[number] = re.sub(r"\bm\b", "columns", re.sub(r"\bn\b", "rows", lines[number]))
        return _read(text, "\n".join(lines), "matmul", leaves)

    return Reading(
        "float_tile",
        *flagged(PATH, text, spans, made),
        axis="rows",
        contexts=[
            {"columns": columns, "depth": 2048, "step": step, "threads": threads, **each}
            for columns in COLUMNS
            for step in (8, 16, 32)
            for threads in (1, 2)
            for each in FLAGS[-2:]
        ],
        whole=False,
        least={"rows": 1, "columns": 1, "depth": 1, "step": 1, "threads": 1},
        dense=range(1, 66),
    )


def _split(text: str) -> Reading:
    """Return how to read into how many tiles columns are split, and how many are full."""
    body, first = body_of(PATH, text, r" +NOINLINE void gemm\(", after=r"class tinyBLAS \{")
    parts = []
    for pattern in (r"const int64_t xtiles = .*;", r"const int64_t jj_RN = .*;"):
        found, line = found_in(PATH, body, pattern, first)
        parts.append((line, found.group()))
    found, line = found_in(PATH, body, r"jj2 < (jj_RN \* RN) \?", first)
    parts.append((line, f"return std::make_tuple(xtiles, {found[1]});"))
    rest, line = found_in(PATH, body, r"gemm_bloc<RM, (RN-1)>\(ii \+ bi, jj\);", first)
    parts[-1] = (parts[-1][0], f"return std::make_tuple(xtiles, {found[1]}, {rest[1]});")
    return Reading(
        "float_split",
        *_read(text, composed("gemm", parts, ""), "gemm", {"n": "rows", "RN": "tile"}),
        axis="rows",
        contexts=[{"tile": tile} for tile in range(1, 7)],
        whole=False,
        least={"rows": 1, "tile": 1},
        dense=range(1, 66),
    )


def _blocks(text: str) -> Reading:
    """Return how to read the columns of a tile of blocks, and how many columns such tiles take."""
    place = span(PATH, text, r" +void mnpack\(", after=r"class tinyBLAS_Q0_AVX \{")
    leaves = {**LEAVES, "m0": "0", "n0": "0"}
    meaning = Meaning(branching=True, harmless=frozenset({"gemm", "gemm4xN", "gemmMx4"}))

    def made(alone: str) -> tuple[Program, str]:
        found, _ = found_in(PATH, alone, r"np = (n0 \+ \(n - n0\) / nc \* nc);")
        found_in(PATH, alone, r"^ +mnpack\(mp, m, n0, np\);\n +mnpack\(m0, m, np, n\);$")
        end = alone.index("\n", found.end())
        tail = re.sub(r"mnpack\([^()]*\);", "", alone[end:])
        kept = f"{alone[: found.end()]} return std::make_tuple(nc, np);{tail}"
        return _read(text, kept, "mnpack", leaves, meaning)

    return Reading(
        "block_tile",
        *flagged(PATH, text, [place], made, optional=True),
        axis="rows",
        contexts=[
            {"columns": columns, **each} for columns in (*COLUMNS, 1, 2, 3) for each in FLAGS
        ],
        whole=False,
        least={"rows": 1, "columns": 1},
        dense=range(1, 66),
    )
