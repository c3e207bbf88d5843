"""ggml's repacked weights: which are, and how many rows of activations a pass over them holds.

`repack` says in which order weights of a type are kept on a CPU
(ggml-cpu/repack.cpp, `ggml_repack_get_optimal_repack_type`), `repack_rows` how many rows the
kernel of several rows takes and how many that of one row (`forward_mul_mat_one_chunk`), and
`repack_gemm_<kernel>` how many of them each of its passes holds (ggml-cpu/arch/x86/repack.cpp).
"""

import re
from collections.abc import Mapping

from nearfree.errors import MOVED, SourceError
from nearfree.sources.backends.ggml_text import FLAGS, body_of, composed, flagged, found_in, span
from nearfree.sources.cpp.expressions import Meaning
from nearfree.sources.cpp.program import cpp_program
from nearfree.sources.cpp.source import CppFiles
from nearfree.sources.language.program import Program
from nearfree.sources.language.reading import Reading

PATH, X86 = "ggml/src/ggml-cpu/repack.cpp", "ggml/src/ggml-cpu/arch/x86/repack.cpp"
CPU = "ggml/src/ggml-cpu/ggml-cpu.c"
CHOICE = "ggml_repack_get_optimal_repack_type"
_ELSEWHERE = ("neon", "matmul_int8", "dotprod", "sve", "vxe", "riscv_v")
"""What processors of other kinds have, as ggml asks for it."""
LEAVES = {
    r"GGML_TYPE_(\w+)": r"'\1'",
    "cur_type": "weight",
    r"cur_ne\[1\]": "columns",
    rf"ggml_cpu_has_({'|'.join(_ELSEWHERE)})\(\)": "False",
    r"ggml_cpu_get_sve_cnt\(\)": "0",
    r"ggml_cpu_has_avx2\(\)": "avx2",
    r"ggml_cpu_has_avx512\(\)": "avx512f",
}
_ASKED = {"ggml_cpu_has_avx2": "__AVX2__", "ggml_cpu_has_avx512": "__AVX512F__"}
"""Functions of ggml, and the one macro that each must ask for."""
TYPES = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K",
         "Q5_K", "Q6_K", "IQ4_NL", "MXFP4")  # fmt: skip


def repack_rules(files: Mapping[str, str]) -> list[Reading]:
    """Return how to read the rules of repacked weights.

    Raises
    ------
    SourceError
        A function is not of the known form.
    """
    kernels = re.findall(r"^void ggml_gemm_(\w+)\(", files[X86], re.MULTILINE)
    rules = [_choice(files), _rows(files)]
    return [*rules, *(_gemm(files, kernel) for kernel in sorted(set(kernels)))]


def _choice(files: Mapping[str, str]) -> Reading:
    """Return how to read the name of the kernel, `q4_K_8x8_q8_K`; None of what is not repacked."""
    text = files[PATH]
    for name, macro in _ASKED.items():
        found_in(
            CPU,
            files[CPU],
            rf"^int {name}\(void\) \{{\n#if defined\({macro}\)\n +return 1;\n#else\n +return 0;",
        )
    place = span(PATH, text, rf"static const ggml::cpu::tensor_traits \* {CHOICE}\(")

    def made(alone: str) -> tuple[Program, str]:
        named = re.sub(r"\breturn &(\w+);", r'return "\1";', alone)
        named = re.sub(r"^ +static const .*;$", "", named, flags=re.MULTILINE)
        named = named.replace("return nullptr;", 'return "";')
        return cpp_program(
            CppFiles({PATH: named}, quoted=files),
            CHOICE,
            leaves=LEAVES,
            meaning=Meaning(branching=True),
        )

    return Reading(
        "repack",
        *flagged(PATH, text, [place], made),
        axis="columns",
        contexts=[
            {"weight": weight, "avx2": each["avx2"], "avx512f": each["avx512f"]}
            for weight in TYPES
            for each in FLAGS
        ],
        whole=False,
        dense=range(1, 33),
        least={"columns": 1},
    )


def _rows(files: Mapping[str, str]) -> Reading:
    """Return how to read the rows that the kernel of several rows takes, and those left to one."""
    text = files[PATH]
    owner = (
        r"template <typename BLOC_TYPE, int64_t INTER_SIZE, int64_t NB_COLS, ggml_type P"
        r".*class tensor_traits\b"
    )
    body, first = body_of(PATH, text, r" +void forward_mul_mat_one_chunk\(", after=owner)
    found_in(PATH, body, r"const int64_t nrows = src1_end - src1_start;")
    several, line = found_in(
        PATH, body, r"if \((nrows > \d+)\) \{\n +gemm<[^;]*?(nrows - \(nrows % \d+\)), ncols\);\n"
        r" +\}", first,
    )  # fmt: skip
    one, other = found_in(
        PATH,
        body,
        r"for \(int iter = (nrows - \(nrows % \d+\)); iter < nrows; iter\+\+\) \{\n +gemv<",
        first,
    )
    parts = [
        (line, f"int several = 0; if ({several[1]}) {{ several = {several[2]}; }}"),
        (other, f"return std::make_tuple(several, nrows - ({one[1]}));"),
    ]
    return Reading(
        "repack_rows",
        *cpp_program(
            CppFiles({PATH: composed("forward_mul_mat_one_chunk", parts, "")}, quoted=files),
            "forward_mul_mat_one_chunk",
            leaves={"nrows": "rows"},
        ),
        axis="rows",
        contexts=[{}],
        whole=False,
        dense=range(1, 66),
        least={"rows": 1},
    )


def _gemm(files: Mapping[str, str], kernel: str) -> Reading:
    """Return how to read a kernel's passes: groups of rows in one, groups done after such, rows.

    `done` is how many groups earlier passes have taken. A loop over columns that are no multiple
    of the widest vector takes the same passes: it is checked that it says so.
    """
    text = files[X86]
    name = f"ggml_gemm_{kernel}"
    _called_by(files, kernel)
    body, _ = body_of(X86, text, rf"void {name}\(")
    shared = set(re.findall(r"\b(gemm_\w+_avx)<", body))
    spans = [span(X86, text, rf"void {name}\(")]
    if len(shared) == 1:
        spans.insert(0, span(X86, text, rf"static void {shared.pop()}\("))
    elif shared:
        raise SourceError(f"{X86}: {name} calls several kernels", remedy=MOVED)

    def made(alone: str) -> tuple[Program, str]:
        return cpp_program(
            CppFiles({X86: _passes(alone, name)}, quoted=files), name, leaves={"nr": "rows"}
        )

    return Reading(
        f"repack_gemm_{kernel}",
        *flagged(X86, text, spans, made, optional=True),
        axis="rows",
        contexts=[{"done": done, **each} for done in (0, 4, 8) for each in FLAGS],
        whole=False,
        dense=range(4, 66),
        least={"rows": 1, "done": 0},
    )


def _called_by(files: Mapping[str, str], kernel: str) -> None:
    """Refuse a kernel that is not the one of the weights that are kept in its order."""
    text = files[PATH]
    declared = re.findall(rf"tensor_traits<(block_[^>]*)> {kernel};", text)
    calls = re.findall(
        rf"^template <>\s+void gemm<([^>]*)>\([^)]*\)\s*\{{\s*ggml_gemm_{kernel}\(",
        text,
        re.MULTILINE,
    )
    if len(declared) != 1 or declared != calls:
        raise SourceError(f"{PATH}: {kernel} is not run as it is declared", remedy=MOVED)


def _passes(alone: str, name: str) -> str:
    """Return a function of the passes that loops over groups of rows make; empty without any."""
    loops = list(
        re.finditer(
            r"^ +for \(; y < (\w+) / (\d+); y ?(?:\+= (\d+)|\+\+)\) \{", alone, re.MULTILINE
        )
    )
    forms = [loop.groups() for loop in loops]
    if not forms:
        generic, line = found_in(X86, alone, rf"\b{name}_generic\(n, s, bs, vx, vy, nr, nc\);")
        del generic
        return composed(name, [(line, "return nullptr;")], "")
    half = 2
    if len(forms) not in {half, 2 * half} or forms[:half] != forms[-half:]:
        raise SourceError(f"{X86}: {name} has loops of an unknown form", remedy=MOVED)
    found, line = found_in(X86, alone, r"int anr = (nr - nr ?% ?\d+);+")
    parts = [(line, f"int anr = {found[1]};")]
    for loop in loops[:half]:
        limit, group, step = loop.groups()
        more = f"return std::make_tuple({step or 1}, {limit} / {group}, {group});"
        place = 1 + alone.count("\n", 0, loop.start())
        parts.append((place, f"if (done < {limit} / {group}) {{ {more} }}"))
    return composed(name, parts, "0")
