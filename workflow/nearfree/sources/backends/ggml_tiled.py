"""ggml's tiled products: from how many rows on, for which weights, and the rows of a microtile.

`tiled` says whether a product takes this way (ggml-cpu/tiled/tiled.cpp,
`ggml_compute_forward_mul_mat_tiled`), `tiled_chunk` into how many rows the threads divide the
work (`..._tiled_driver`), `tiled_window` how many of a chunk's are taken together, and
`tiled_micro` how many rows a microtile holds (`..._one_chunk`). Earlier releases have no such
files, and no such rules.
"""

import re
from collections.abc import Mapping, Sequence

from nearfree.errors import MOVED, SourceError
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

PATH, KERNEL = "ggml/src/ggml-cpu/tiled/tiled.cpp", "ggml/src/ggml-cpu/tiled/tiled-kernel.h"
ENTRY = "ggml_compute_forward_mul_mat_tiled"
LEAVES = {
    r"GGML_TYPE_(\w+)": r"'\1'",
    "params_use_ref": "False",
    r"ggml_tiled_matmul_enabled\(\)": "True",
    r"ggml_tiled_matmul_forced\(\)": "False",
    "src0_type": "weight",
    "src1_type": "'F32'",
}
TYPES = ("F32", "BF16", "Q4_0", "Q8_0", "IQ4_NL", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")


def tiled_rules(files: Mapping[str, str]) -> list[Reading]:
    """Return how to read the rules of tiled products; none of a release that has no such.

    Raises
    ------
    SourceError
        A function is not of the known form.
    """
    if PATH not in files:
        return []
    return [_taken(files), _chunk(files), *_micro(files)]


def _taken(files: Mapping[str, str]) -> Reading:
    text = files[PATH]
    # Of the two functions the condition around them chooses one.
    supported = [number + 1 for number, line in enumerate(text.split("\n"))
                 if line.startswith("static bool ggml_tiled_supported(")]  # fmt: skip
    spans = [
        span(PATH, text, rf"bool {ENTRY}\("),
        *((first, _end(text, first)) for first in supported),
        span(PATH, text, r"static bool ggml_tiled_min_batch\("),
    ]
    _check_types(text, spans)

    def made(alone: str) -> tuple[Program, str]:
        plain = alone.replace("dst->src[1]->ne[1]", "rows")
        plain = plain.replace("src0->extra != NULL", "repacked")
        plain = plain.replace("ggml_tiled_supported(dst->src[0], dst->src[1])",
                              "ggml_tiled_supported(src0, src1)")  # fmt: skip
        plain = plain.replace(
            "return ggml_tiled_matmul_type_dispatch(params, dst);", "return true;"
        )
        return cpp_program(
            CppFiles({PATH: plain}, quoted=files),
            ENTRY,
            leaves=LEAVES,
            meaning=Meaning(branching=True, harmless=frozenset({"UNUSED"})),
            constants={"params": "None", "src0": "None", "src1": "None", "dst": "None"},
        )

    return Reading(
        "tiled",
        *flagged(PATH, text, spans, made),
        axis="rows",
        contexts=[
            {"weight": weight, "repacked": repacked, **each}
            for weight in TYPES
            for repacked in (False, True)
            for each in FLAGS
        ],
        whole=False,
        least={"rows": 1},
        dense=range(1, 34),
    )


def _check_types(text: str, spans: Sequence[Span]) -> None:
    """Refuse a release in which a type that is supported has no kernel."""
    body, _ = body_of(PATH, text, r"static bool ggml_tiled_matmul_type_dispatch\(")
    run = set(re.findall(r"case GGML_TYPE_(\w+):\n +return tiled_matmul_dispatch<", body))
    lines = text.split("\n")
    named = {
        name
        for start, end in spans[1:]
        for name in re.findall(r"case GGML_TYPE_(\w+):", "\n".join(lines[start - 1 : end]))
    }
    if not named or named != run:
        raise SourceError(f"{PATH} has kernels of other types than it supports", remedy=MOVED)


def _end(text: str, first: int) -> int:
    lines = text.split("\n")
    return next(number + 1 for number in range(first, len(lines)) if lines[number] == "}")


def _chunk(files: Mapping[str, str]) -> Reading:
    """Return how to read the rows of a chunk: the next size to try, 0 once one is enough."""
    text = files[PATH]
    body, first = body_of(PATH, text, rf"static void {ENTRY}_driver\(")
    start, begins = found_in(PATH, body, r"int chunk_size = (\d+);", first)
    parts = [(begins, f"if (chunk == 0) {{ return std::make_tuple({start[1]}, 0); }}")]
    counted = r"int64_t nchunk{0} = (\(nr{0} \+ chunk_size - 1\) / chunk_size);"
    for side in "01":
        found, line = found_in(PATH, body, counted.format(side), first)
        found_in(PATH, body, rf"^ +nchunk{side} = {re.escape(found[1])};")
        parts.append((line, found.group()))
    found, line = found_in(
        PATH, body, r"while \((.*)\) \{\n +chunk_size = (chunk_size / \d+);\n", first
    )
    parts.append((line, f"if ({found[1]}) {{ return std::make_tuple({found[2]}, 0); }}"))
    found, line = found_in(PATH, body, r"const int64_t dr1 = (\(nr1 \+ nchunk1 - 1\) / nchunk1);",
                           first)  # fmt: skip
    parts.append((line, f"return std::make_tuple(0, {found[1]});"))
    return Reading(
        "tiled_chunk",
        *cpp_program(
            CppFiles({PATH: composed("driver", parts, "")}, quoted=files),
            "driver",
            leaves={"chunk_size": "chunk", "nr0": "columns", "nr1": "rows", "nth": "threads"},
        ),
        axis="rows",
        contexts=[
            {"chunk": chunk, "columns": columns, "threads": threads}
            for chunk in (0, 256, 128, 64, 32, 16)
            for columns in (576, 2048)
            for threads in (1, 2, 8)
        ],
        whole=False,
        least={"rows": 1, "columns": 1, "threads": 1, "chunk": 0},
        dense=range(1, 66),
    )


def _micro(files: Mapping[str, str]) -> list[Reading]:
    """Return how to read the rows of a microtile, and those of a window of microtiles."""
    text = files[PATH]
    body, first = body_of(PATH, text, rf"static void {ENTRY}_one_chunk\(")
    edge, _ = found_in(KERNEL, files[KERNEL], r"^#define TILED_MICRO +(\d+)")
    found_in(PATH, body, r"if \(n_src1 <= TILED_MICRO\) \{")
    found_in(PATH, body, r"for \(int64_t ir1 = iir1; ir1 < iir1_end; ir1 \+= MICRO\) \{")
    found_in(PATH, body, r"int64_t iir1_end = MIN\(iir1 \+ TILE, ir1_end\);")
    found = []
    for name in ("MICRO", "TILE"):
        size, line = found_in(PATH, body, rf"const int64_t {name} = (\d+);", first)
        if name == "MICRO" and size[1] != edge[1]:
            raise SourceError(
                f"{PATH}: a microtile has {size[1]} rows, {KERNEL} says {edge[1]}", remedy=MOVED
            )
        alone = composed("one_chunk", [(line, f"return {size[1]};")], "")
        program, root = cpp_program(CppFiles({PATH: alone}, quoted=files), "one_chunk", leaves={})
        rule = "tiled_micro" if name == "MICRO" else "tiled_window"
        found.append(Reading(rule, program, root, axis=None, contexts=[{}], whole=False))
    return found
