"""ggml's tiled products: their least rows, their weights, and the rows of a microtile.

The rule `tiled` says whether a product is tiled (ggml-cpu/tiled/tiled.cpp,
`ggml_compute_forward_mul_mat_tiled`), and `expert_tiled` whether an expert's is, by the rows that
are routed to it (`ggml_compute_forward_mul_mat_id_tiled`). `tiled_chunk` is the rows per chunk, by
which the threads divide the work (`..._tiled_driver`), `tiled_window` the rows of a chunk that are
processed together (`expert_tiled_window` those of an expert), and `tiled_micro` the rows of a
microtile (`..._one_chunk`). Earlier releases have no such files, and no such rules.
"""

import re
from collections.abc import Mapping, Sequence

from nearfree.errors import MovedError
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

PATH, KERNEL = "ggml/src/ggml-cpu/tiled/tiled.cpp", "ggml/src/ggml-cpu/tiled/tiled-kernel.h"
ENTRY = "ggml_compute_forward_mul_mat_tiled"
EXPERT_ENTRY = "ggml_compute_forward_mul_mat_id_tiled"
LEAVES = {
    r"GGML_TYPE_(\w+)": r"'\1'",
    "params_use_ref": "False",
    r"ggml_tiled_matmul_enabled\(\)": "True",
    r"ggml_tiled_matmul_forced\(\)": "False",
    "src0_type": "weight",
    "src1_type": "'F32'",
    "cne1": "rows",
}
_UNREAD_ARGUMENTS = ("params", "src0", "src1", "dst", "cur_a", "expert_rows", "scratch")
TYPES = ("F32", "BF16", "Q4_0", "Q8_0", "IQ4_NL", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "MXFP4",
         "IQ4_XS", "IQ3_S", "IQ2_XXS", "IQ1_M")  # fmt: skip


def tiled_rules(files: Mapping[str, str]) -> list[Reading]:
    """Return the readings of the rules for tiled products; empty for a release without them."""
    if PATH not in files:
        return []
    return [
        _served(files, "tiled", ENTRY),
        _served(files, "expert_tiled", EXPERT_ENTRY),
        _chunk(files),
        *_micro(files),
        _expert_window(files),
    ]


def _served(files: Mapping[str, str], name: str, entry: str) -> Reading:
    """Return the reading of whether a product with so many rows is tiled, by its entry."""
    text = files[PATH]
    # A preprocessor condition selects one of two such functions.
    variants = [number + 1 for number, line in enumerate(text.split("\n"))
                 if line.startswith("static bool ggml_tiled_supported(")]  # fmt: skip
    spans = [
        span(PATH, text, rf"bool {entry}\("),
        *((start, _end(text, start)) for start in variants),
        span(PATH, text, r"static bool ggml_tiled_min_batch\("),
    ]
    _check_types(text, spans)

    def read(compiled: str) -> tuple[Program, str]:
        rewritten = compiled.replace("dst->src[1]->ne[1]", "rows")
        rewritten = rewritten.replace("src0->extra != NULL", "repacked")
        rewritten = rewritten.replace("ggml_tiled_supported(dst->src[0], dst->src[1])",
                              "ggml_tiled_supported(src0, src1)")  # fmt: skip
        rewritten = re.sub(
            r"return ggml_tiled_matmul_type_dispatch\(params, dst[^;]*\);",
            "return true;",
            rewritten,
        )
        return cpp_program(
            CppFiles({PATH: rewritten}, quoted=files),
            entry,
            leaves=LEAVES,
            meaning=Meaning(branching=True, harmless=frozenset({"UNUSED"})),
            constants=dict.fromkeys(_UNREAD_ARGUMENTS, "None"),
        )

    return Reading(
        name,
        *program_by_flags(PATH, text, spans, read),
        axis="rows",
        contexts=[
            {"weight": weight, "repacked": repacked, **flags}
            for weight in TYPES
            for repacked in (False, True)
            for flags in FLAGS
        ],
        interpret_whole=False,
        minimums={"rows": 1},
        dense=range(1, 34),
    )


def _check_types(text: str, spans: Sequence[Span]) -> None:
    """Raise SourceError unless the supported types are those that have kernels."""
    body, _ = body_of(PATH, text, r"static bool ggml_tiled_matmul_type_dispatch\(")
    kernel_types = set(re.findall(r"case GGML_TYPE_(\w+):\n +return tiled_matmul_dispatch<", body))
    lines = text.split("\n")
    supported_types = {
        name
        for start, end in spans[1:]
        for name in re.findall(r"case GGML_TYPE_(\w+):", "\n".join(lines[start - 1 : end]))
    }
    if not supported_types or supported_types != kernel_types:
        raise MovedError(f"{PATH} has kernels of other types than it supports")


def _end(text: str, first: int) -> int:
    lines = text.split("\n")
    return next(number + 1 for number in range(first, len(lines)) if lines[number] == "}")


def _chunk(files: Mapping[str, str]) -> Reading:
    """Return the reading of the rows of a chunk: the next size to try, 0 once a size suffices."""
    text = files[PATH]
    body, first = body_of(PATH, text, rf"static void {ENTRY}_driver\(")
    initial_size, initial_line = only_match(PATH, body, r"int chunk_size = (\d+);", first)
    pieces = [
        (initial_line, f"if (chunk == 0) {{ return std::make_tuple({initial_size[1]}, 0); }}")
    ]
    count_pattern = r"int64_t nchunk{0} = (\(nr{0} \+ chunk_size - 1\) / chunk_size);"
    for side in "01":
        match, line = only_match(PATH, body, count_pattern.format(side), first)
        only_match(PATH, body, rf"^ +nchunk{side} = {re.escape(match[1])};")
        pieces.append((line, match.group()))
    match, line = only_match(
        PATH, body, r"while \((.*)\) \{\n +chunk_size = (chunk_size / \d+);\n", first
    )
    pieces.append((line, f"if ({match[1]}) {{ return std::make_tuple({match[2]}, 0); }}"))
    match, line = only_match(PATH, body, r"const int64_t dr1 = (\(nr1 \+ nchunk1 - 1\) / nchunk1);",
                           first)  # fmt: skip
    pieces.append((line, f"return std::make_tuple(0, {match[1]});"))
    return cpp_reading(
        "tiled_chunk",
        CppFiles({PATH: composed("driver", pieces, "")}, quoted=files),
        "driver",
        leaves={"chunk_size": "chunk", "nr0": "columns", "nr1": "rows", "nth": "threads"},
        axis="rows",
        contexts=[
            {"chunk": chunk, "columns": columns, "threads": threads}
            for chunk in (0, 256, 128, 64, 32, 16)
            for columns in (576, 2048)
            for threads in (1, 2, 8)
        ],
        minimums={"rows": 1, "columns": 1, "threads": 1, "chunk": 0},
        dense=range(1, 66),
    )


def _micro(files: Mapping[str, str]) -> list[Reading]:
    """Return the readings of the rows of a microtile, and of a window of microtiles."""
    text = files[PATH]
    body, first = body_of(PATH, text, rf"static void {ENTRY}_one_chunk\(")
    header_rows, _ = only_match(KERNEL, files[KERNEL], r"^#define TILED_MICRO +(\d+)")
    only_match(PATH, body, r"if \(n_src1 <= TILED_MICRO\) \{")
    only_match(PATH, body, r"for \(int64_t ir1 = iir1; ir1 < iir1_end; ir1 \+= MICRO\) \{")
    only_match(PATH, body, r"int64_t iir1_end = MIN\(iir1 \+ TILE, ir1_end\);")
    readings = []
    for name in ("MICRO", "TILE"):
        rows, line = only_match(PATH, body, rf"const int64_t {name} = (\d+);", first)
        if name == "MICRO" and rows[1] != header_rows[1]:
            raise MovedError(
                f"{PATH}: a microtile has {rows[1]} rows, {KERNEL} says {header_rows[1]}"
            )
        source = composed("one_chunk", [(line, f"return {rows[1]};")], "")
        chunk = CppFiles({PATH: source}, quoted=files)
        rule = "tiled_micro" if name == "MICRO" else "tiled_window"
        readings.append(cpp_reading(rule, chunk, "one_chunk", leaves={}, axis=None, contexts=[{}]))
    return readings


def _expert_window(files: Mapping[str, str]) -> Reading:
    """Return the reading of the rows of an expert for which its weights are unpacked once."""
    text = files[PATH]
    body, _ = body_of(PATH, text, rf"static void {EXPERT_ENTRY}_one_expert\(")
    only_match(PATH, body, r"for \(int64_t k = 0; k < cne1; k \+= TILED_TILE_K\) \{")
    window, _ = body_of(PATH, text, r"static void tiled_mmid_gemm_window\(")
    only_match(PATH, window, r"for \(int64_t ir1 = 0; ir1 < nrows; ir1 \+= TILED_MICRO\) \{")
    rows, line = only_match(KERNEL, files[KERNEL], r"^#define TILED_TILE_K +(\d+)")
    source = composed("one_expert", [(line, f"return {rows[1]};")], "")
    header = CppFiles({KERNEL: source}, quoted=files)
    return cpp_reading(
        "expert_tiled_window", header, "one_expert", leaves={}, axis=None, contexts=[{}]
    )
