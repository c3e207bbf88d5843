"""ggml's repacked weights: which types are repacked, and the rows of a pass over them.

The rule `repack` is the layout of a type's weights on a CPU (ggml-cpu/repack.cpp,
`ggml_repack_get_optimal_repack_type`). `repack_rows` is the split of rows between the kernel for
several rows and that for one row (`forward_mul_mat_one_chunk`). `repack_gemm_<kernel>` is the
number of rows in each pass of a kernel for several rows (ggml-cpu/arch/x86/repack.cpp).
"""

import re
from collections.abc import Mapping

from nearfree.errors import MovedError
from nearfree.sources.backends.ggml_text import (
    FLAGS,
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

PATH, X86 = "ggml/src/ggml-cpu/repack.cpp", "ggml/src/ggml-cpu/arch/x86/repack.cpp"
CPU = "ggml/src/ggml-cpu/ggml-cpu.c"
CHOICE = "ggml_repack_get_optimal_repack_type"
TRAITS = (
    r"template <typename BLOC_TYPE, int64_t INTER_SIZE, int64_t NB_COLS, ggml_type P"
    r".*class tensor_traits\b"
)
"""The first line of the class that multiplies by repacked weights."""
_ELSEWHERE = ("neon", "matmul_int8", "dotprod", "sve", "vxe", "riscv_v")
"""Features of other architectures' processors, by the names of ggml's tests for them."""
LEAVES = {
    r"GGML_TYPE_(\w+)": r"'\1'",
    "cur_type": "weight",
    r"cur_ne\[1\]": "columns",
    rf"ggml_cpu_has_({'|'.join(_ELSEWHERE)})\(\)": "False",
    r"ggml_cpu_get_sve_cnt\(\)": "0",
    r"ggml_cpu_has_avx2\(\)": "avx2",
    r"ggml_cpu_has_avx512\(\)": "avx512f",
}
_FEATURE_MACROS = {"ggml_cpu_has_avx2": "__AVX2__", "ggml_cpu_has_avx512": "__AVX512F__"}
"""ggml's tests for features, and the macro that each must depend on."""
TYPES = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K",
         "Q5_K", "Q6_K", "IQ4_NL", "MXFP4")  # fmt: skip


def repack_rules(files: Mapping[str, str]) -> list[Reading]:
    """Return the readings of the rules for repacked weights."""
    kernels = re.findall(r"^void ggml_gemm_(\w+)\(", files[X86], re.MULTILINE)
    rules = [_choice(files), _rows(files)]
    return [*rules, *(_gemm(files, kernel) for kernel in sorted(set(kernels)))]


def _choice(files: Mapping[str, str]) -> Reading:
    """Return the reading of the kernel's name, such as `q4_K_8x8_q8_K`; empty if not repacked."""
    text = files[PATH]
    for name, macro in _FEATURE_MACROS.items():
        only_match(
            CPU,
            files[CPU],
            rf"^int {name}\(void\) \{{\n#if defined\({macro}\)\n +return 1;\n#else\n +return 0;",
        )
    choice_span = span(PATH, text, rf"static const ggml::cpu::tensor_traits \* {CHOICE}\(")

    def read(compiled: str) -> tuple[Program, str]:
        answering = re.sub(r"\breturn &(\w+);", r'return "\1";', compiled)
        answering = re.sub(r"^ +static const .*;$", "", answering, flags=re.MULTILINE)
        answering = answering.replace("return nullptr;", 'return "";')
        return cpp_program(
            CppFiles({PATH: answering}, quoted=files),
            CHOICE,
            leaves=LEAVES,
            meaning=Meaning(branching=True),
        )

    return Reading(
        "repack",
        *program_by_flags(PATH, text, [choice_span], read),
        axis="columns",
        contexts=[
            {"weight": weight, "avx2": flags["avx2"], "avx512f": flags["avx512f"]}
            for weight in TYPES
            for flags in FLAGS
        ],
        interpret_whole=False,
        dense=range(1, 33),
        minimums={"columns": 1},
    )


def _rows(files: Mapping[str, str]) -> Reading:
    """Return the reading of the rows for the kernel of several rows, and for that of one row."""
    text = files[PATH]
    body, first = body_of(PATH, text, r" +void forward_mul_mat_one_chunk\(", after=TRAITS)
    only_match(PATH, body, r"const int64_t nrows = src1_end - src1_start;")
    several_rows, line = only_match(
        PATH, body, r"if \((nrows > \d+)\) \{\n +gemm<[^;]*?(nrows - \(nrows % \d+\)), ncols\);\n"
        r" +\}", first,
    )  # fmt: skip
    one_row, one_row_line = only_match(
        PATH,
        body,
        r"for \(int iter = (nrows - \(nrows % \d+\)); iter < nrows; iter\+\+\) \{\n +gemv<",
        first,
    )
    pieces = [
        (line, f"int several = 0; if ({several_rows[1]}) {{ several = {several_rows[2]}; }}"),
        (one_row_line, f"return std::make_tuple(several, nrows - ({one_row[1]}));"),
    ]
    return cpp_reading(
        "repack_rows",
        CppFiles({PATH: composed("forward_mul_mat_one_chunk", pieces, "")}, quoted=files),
        "forward_mul_mat_one_chunk",
        leaves={"nrows": "rows"},
        axis="rows",
        contexts=[{}],
        dense=range(1, 66),
        minimums={"rows": 1},
    )


def _gemm(files: Mapping[str, str], kernel: str) -> Reading:
    """Return the reading of a kernel's next pass: its groups, the limit of groups, rows per group.

    The input `done` is the number of groups in earlier passes. The loop over columns beyond a
    multiple of the widest vector must have the same passes; `_passes` checks that.
    """
    text = files[X86]
    name = f"ggml_gemm_{kernel}"
    _called_by(files, kernel)
    body, _ = body_of(X86, text, rf"void {name}\(")
    shared_kernels = set(re.findall(r"\b(gemm_\w+_avx)<", body))
    spans = [span(X86, text, rf"void {name}\(")]
    if len(shared_kernels) == 1:
        spans.insert(0, span(X86, text, rf"static void {shared_kernels.pop()}\("))
    elif shared_kernels:
        raise MovedError(f"{X86}: {name} calls several kernels")

    def read(compiled: str) -> tuple[Program, str]:
        return cpp_program(
            CppFiles({X86: _passes(compiled, name)}, quoted=files), name, leaves={"nr": "rows"}
        )

    return Reading(
        f"repack_gemm_{kernel}",
        *program_by_flags(X86, text, spans, read, optional=True),
        axis="rows",
        contexts=[{"done": done, **flags} for done in (0, 4, 8) for flags in FLAGS],
        interpret_whole=False,
        dense=range(4, 66),
        minimums={"rows": 1, "done": 0},
    )


def _called_by(files: Mapping[str, str], kernel: str) -> None:
    """Raise SourceError unless the kernel runs the weights that are declared with its layout."""
    text = files[PATH]
    declared = re.findall(rf"tensor_traits<(block_[^>]*)> {kernel};", text)
    calls = re.findall(
        rf"^template <>\s+void gemm<([^>]*)>\([^)]*\)\s*\{{\s*ggml_gemm_{kernel}\(",
        text,
        re.MULTILINE,
    )
    if len(declared) != 1 or declared != calls:
        raise MovedError(f"{PATH}: {kernel} is not run as it is declared")


def _passes(source: str, name: str) -> str:
    """Return a function that gives the next pass of the loops over groups of rows.

    It returns a null pointer if the kernel is only the generic one.
    """
    loops = list(
        re.finditer(
            r"^ +for \(; y < (\w+) / (\d+); y ?(?:\+= (\d+)|\+\+)\) \{", source, re.MULTILINE
        )
    )
    loop_forms = [loop.groups() for loop in loops]
    if not loop_forms:
        generic, line = only_match(X86, source, rf"\b{name}_generic\(n, s, bs, vx, vy, nr, nc\);")
        del generic
        return composed(name, [(line, "return nullptr;")], "")
    half = 2
    if len(loop_forms) not in {half, 2 * half} or loop_forms[:half] != loop_forms[-half:]:
        raise MovedError(f"{X86}: {name} has loops of an unknown form")
    group_limit, line = only_match(X86, source, r"int anr = (nr - nr ?% ?\d+);+")
    pieces = [(line, f"int anr = {group_limit[1]};")]
    for loop in loops[:half]:
        limit, group, step = loop.groups()
        answer = f"return std::make_tuple({step or 1}, {limit} / {group}, {group});"
        line = 1 + source.count("\n", 0, loop.start())
        pieces.append((line, f"if (done < {limit} / {group}) {{ {answer} }}"))
    return composed(name, pieces, "0")
