"""ggml's tiles of quantised products on NVIDIA GPUs: which widths there are, and which is taken.

A tile holds `width` columns (ggml's J), and each pass over the weights serves one tile. The rule
`mmq_family` is the table of a capability (mmq.cuh, `ggml_cuda_mmq_get_config`),
`mmq_config_<family>` a type's widths, threads, rows of weights per tile (ggml's I) and layout in
shared memory; a table may refer to another. `mmq_fallback` says whether a matrix takes the tiles
for matrices that they do not divide. `mmq_next` is the next width that is tried, 0 after the last,
and `mmq_shared` its bytes of shared memory: one that a block cannot have is left out. `mmq_tiles`
is the number of tiles of a width; the first width with the fewest is taken
(`mul_mat_q_switch_J`).
"""

import re
from collections.abc import Mapping

from nearfree.errors import MovedError
from nearfree.sources.backends.ggml_cuda_text import (
    BLOCKS,
    CAPABILITIES,
    FOLDER,
    HEADER,
    LEAST,
    LEAVES,
    MMQ,
    MMQ_KERNEL,
    arithmetic,
    capabilities,
    compiled,
    features,
    number,
    without,
)
from nearfree.sources.backends.ggml_text import body_of, composed, only_match
from nearfree.sources.cpp.expressions import Meaning
from nearfree.sources.cpp.program import cpp_reading
from nearfree.sources.cpp.source import CppFiles
from nearfree.sources.language.reading import Reading

FAMILIES = ("ampere", "blackwell")
"""Tables of capabilities from Turing's on."""
_CASE = re.compile(
    r"^ +CASE\(GGML_TYPE_(\w+), *(\d+), *\d+, *(\d+), *(\d+), *GGML_CUDA_MMQ_SRAM_LAYOUT_(\w+),"
    r" *\w+, *\w+, *(true|false)\);$",
    re.MULTILINE,
)
_BRANCHING = Meaning(branching=True, harmless=frozenset({"GGML_ASSERT", "GGML_UNUSED_VARS"}))
_HALF2 = 4
"""Bytes of CUDA's half2."""


def tile_rules(files: Mapping[str, str]) -> list[Reading]:
    """Return the readings of the rules for tiles of quantised products."""
    return [
        _family(files),
        *(_config(files, family) for family in FAMILIES),
        _fallback(files),
        _next(files),
        _shared(files),
        _tiles(files),
    ]


def _family(files: Mapping[str, str]) -> Reading:
    """Return the reading of the table of a capability, which may depend on rows' own format."""
    head = r"static __host__ ggml_cuda_mmq_config ggml_cuda_mmq_get_config\(const ggml_type"
    table = compiled(files, MMQ_KERNEL, [head])
    table = re.sub(
        r"return ggml_cuda_mmq_get_config_(\w+)\(type, J, fallback\);", r'return "\1";', table
    )
    sources = {MMQ_KERNEL: table, **features(files)}
    leaves = dict(LEAVES)
    if "prec_src1" in table:
        choice = compiled(files, MMQ, [r"static ggml_prec ggml_cuda_mmq_get_prec_src1\("])
        # No variable of the environment is set, and a graph asks for no precision.
        choice = without(MMQ, choice, r"static const ggml_prec prec_env = [^;]*;")
        sources[MMQ] = choice.replace("prec_env", "GGML_PREC_UNDEFINED").replace(
            "(ggml_prec) ggml_get_op_params_i32(dst, 3)", "GGML_PREC_UNDEFINED"
        )
        leaves["prec_src1"] = "ggml_cuda_mmq_get_prec_src1(None, None, cc)"
    precisions = dict(re.findall(r"^ +(GGML_PREC_\w+) += (\d+),", files[HEADER], re.MULTILINE))
    return cpp_reading(
        "mmq_family",
        CppFiles(sources, quoted=files),
        "ggml_cuda_mmq_get_config",
        leaves=leaves,
        meaning=_BRANCHING,
        constants={**capabilities(files), **precisions},
        axis=None,
        contexts=[{"weight": weight, "cc": cc} for weight in ("Q4_K", "MXFP4", "NVFP4")
                  for cc in CAPABILITIES],
        minimums={"cc": LEAST},
    )  # fmt: skip


def _config(files: Mapping[str, str], family: str) -> Reading:
    """Return the reading of a table: widths, threads, rows and layout; or another table's name."""
    path = f"{FOLDER}mmq-config-{family}.cuh"
    if path not in files:
        raise MovedError(f"there is no {path}")
    text = files[path]
    cases = list(_CASE.finditer(text))
    if not cases or len(cases) != text.count("CASE("):
        raise MovedError(f"{path} has cases of an unknown form")
    groups: dict[str, dict[bool, list[re.Match[str]]]] = {}
    for case in cases:
        groups.setdefault(case[1], {}).setdefault(case[6] == "true", []).append(case)
    pieces = []
    for name, by_fallback in groups.items():
        answers = [
            _answer(path, text, name, matches, fallback=fallback)
            for fallback, matches in by_fallback.items()
        ]
        first = answers[0][0]
        code = f"if (type == GGML_TYPE_{name}) {{ "
        for line, answer in answers:
            code += "\n" * (line - first - code.count("\n")) + answer
        pieces.append((first, f"{code} }}"))
    other, line = only_match(
        path, text, r"^ +return ggml_cuda_mmq_(?:get_config_(\w+)\(type, J, fallback\)"
        r"|config\(GGML_TYPE_COUNT, [^;]*\));$",
    )  # fmt: skip
    pieces.append((line, f'return "{other[1]}";' if other[1] else "return nullptr;"))
    return cpp_reading(
        f"mmq_config_{family}",
        CppFiles({path: composed("mmq_config", pieces, "")}, quoted=files),
        "mmq_config",
        leaves=LEAVES,
        axis=None,
        contexts=[{"weight": weight, "fallback": fallback}
                  for weight in (*groups, "F16") for fallback in (False, True)],
    )  # fmt: skip


def _answer(
    path: str, text: str, name: str, matches: list[re.Match[str]], *, fallback: bool
) -> tuple[int, str]:
    """Return the first line of a type's tiles, and the code that gives them on their lines."""
    lines = [1 + text.count("\n", 0, match.start()) for match in matches]
    forms = {match.group(2, 3, 5) for match in matches}
    widths = [int(match[4]) for match in matches]
    if len(forms) != 1 or lines != [*range(lines[0], lines[-1] + 1)]:
        raise MovedError(f"{path}:{lines[0]}: tiles of {name} differ in more than width")
    threads, rows, layout = forms.pop()
    # Threads that are a power of two: what is padded to them is what GGML_PAD says.
    if int(threads) & int(threads) - 1 or widths != sorted(set(widths)):
        raise MovedError(f"{path}:{lines[0]}: tiles of {name} are of an unknown form")
    narrower = "".join(f"{width}, " for width in widths[:-1])
    blank = "\n" * (lines[-1] - lines[0])
    listed = f"std::make_tuple({narrower}{blank}{widths[-1]})"
    answer = f'std::make_tuple({listed}, {threads}, {rows}, "{layout}")'
    return lines[0], f"if ({'' if fallback else '!'}fallback) {{ return {answer}; }}"


def _fallback(files: Mapping[str, str]) -> Reading:
    """Return the reading of whether a matrix takes tiles that check bounds."""
    body, first = body_of(MMQ_KERNEL, files[MMQ_KERNEL], r"void mul_mat_q_case\(")
    form, line = only_match(
        MMQ_KERNEL, body, r"if \(args\.nrows_x % (\d+) == 0\) \{\n +constexpr bool fallback = "
        r"false;\n[^{}]*\} else \{\n +constexpr bool fallback = true;", first,
    )  # fmt: skip
    source = composed("mul_mat_q_case", [(line, f"return columns % {form[1]} != 0;")], "")
    return cpp_reading(
        "mmq_fallback",
        CppFiles({MMQ_KERNEL: source}, quoted=files),
        "mul_mat_q_case",
        leaves={},
        axis="columns",
        contexts=[{}],
        minimums={"columns": 1},
    )


def _next(files: Mapping[str, str]) -> Reading:
    """Return the reading of the search's next width."""
    body, first = body_of(MMQ_KERNEL, files[MMQ_KERNEL], r"void mul_mat_q_switch_J\(")
    loop, line = only_match(
        MMQ_KERNEL, body,
        r"for \(int J = (\d+); (J <= \d+) && ntiles_J_best > (\d+); J \+= (\d+)\) \{", first,
    )  # fmt: skip
    for pattern in (
        r"int ntiles_J_best = INT_MAX;",
        r"if \(config\.type == GGML_TYPE_COUNT\) \{\n +continue;",
        r"if \(mmq_get_nbytes_shared\(config, cc\) > smpbo\) \{\n +continue;",
        r"const int ntiles_x = \(args\.ncols_opt \+ config\.J - 1\) / config\.J;",
        r"if \(ntiles_x < ntiles_J_best\) \{\n +J_best = J;\n +ntiles_J_best = ntiles_x;\n",
    ):
        only_match(MMQ_KERNEL, body, pattern)
    code = (
        f"int J = {loop[1]}; if (width > 0) {{ J = width + {loop[4]}; }}"
        f" if ({loop[2]} && tiles > {loop[3]}) {{ return J; }}"
    )
    return cpp_reading(
        "mmq_next",
        CppFiles({MMQ_KERNEL: composed("switch_J", [(line, code)], "0")}, quoted=files),
        "switch_J",
        leaves={},
        axis="width",
        contexts=[{"tiles": tiles} for tiles in (1, 2, 3, 100)],
        minimums={"width": 0, "tiles": 1},
    )


def _shared(files: Mapping[str, str]) -> Reading:
    """Return the reading of a tile's bytes of shared memory."""
    text = files[MMQ_KERNEL]
    texts = [text, files[BLOCKS]]
    body, first = body_of(MMQ_KERNEL, text, r"static size_t mmq_get_nbytes_shared\(")
    weights, weights_first = body_of(
        MMQ_KERNEL, text, r"static __host__ int ggml_cuda_mmq_get_nbytes_shared_x\("
    )
    only_match(
        MMQ_KERNEL, text,
        r"__host__ int use_mma_data_layout\(const int cc\) const \{\n +if \(.*turing_mma_available"
        r"\(cc\)\) \{\n +return true;",
    )  # fmt: skip
    only_match(HEADER, files[HEADER], r"^#define GGML_PAD\(x, n\) \(\(\(x\) \+ \(n\) - 1\) & ~"
               r"\(\(n\) - 1\)\)$")  # fmt: skip
    block, _ = only_match(
        MMQ_KERNEL, text, r'^static_assert\(sizeof\(block_q8_1_mmq\) == (QK8_1_MMQ \+ [^",]*), +"'
    )
    values, _ = only_match(MMQ_KERNEL, text, r"^static constexpr int QK8_1_MMQ += ([^;]*);$")
    block_text = block[1].replace("sizeof(half2)", str(_HALF2)).replace("QK8_1_MMQ", values[1])
    size = arithmetic(texts, block_text)
    pieces = []
    rows, line = only_match(
        MMQ_KERNEL, weights, r"if \(config\.use_mma_data_layout\(cc\)\) \{\n +return (config\.I \* "
        r"ggml_cuda_mmq_get_sram_stride\()config\.sram_layout(\) \* 4);", weights_first,
    )  # fmt: skip
    ids, ids_line = only_match(MMQ_KERNEL, body, r"const size_t nbs_ids = [^;]*;", first)
    pieces.append((line, f"const size_t nbs_x = {rows[1]}layout{rows[2]};"))
    pieces.append((ids_line, ids.group()))
    y, y_line = only_match(MMQ_KERNEL, body, r"const size_t nbs_y = [^;]*;", first)
    pieces.append((y_line, y.group()))
    total, total_line = only_match(
        MMQ_KERNEL, body, r"return nbs_ids \+ nbs_x \+ GGML_PAD\(nbs_y, (config\.nthreads\*"
        r"sizeof\(int\))\);", first,
    )  # fmt: skip
    padded = f"(nbs_y + {total[1]} - 1) / ({total[1]}) * ({total[1]})"
    pieces.append((total_line, f"return nbs_ids + nbs_x + {padded};"))
    stride = compiled(
        files,
        MMQ_KERNEL,
        [r"static constexpr __host__ __device__ int ggml_cuda_mmq_get_sram_stride\("],
    )
    source = _merged(stride, composed("nbytes_shared", pieces, ""))
    names = sorted(set(re.findall(r"\b(MMQ_TILE_NE_K|QI\w+)\b", stride)))
    layouts = re.findall(r"case GGML_CUDA_MMQ_SRAM_LAYOUT_(\w+):", stride)
    return cpp_reading(
        "mmq_shared",
        CppFiles({MMQ_KERNEL: source}, quoted=files),
        "nbytes_shared",
        leaves={r"GGML_CUDA_MMQ_SRAM_LAYOUT_(\w+)": r"'\1'", "config_J": "width",
                "config_I": "tile_rows", "config_nthreads": "threads",
                r"sizeof\('int'\)": "4", r"sizeof\('(\(?block_q8_1_mmq\)?)'\)": str(size)},
        meaning=_BRANCHING,
        constants={name: str(number(texts, name)) for name in names},
        axis="width",
        contexts=[{"threads": 256, "tile_rows": 128, "layout": layout} for layout in layouts],
        dense=range(8, 129, 8),
        minimums={"width": 1, "threads": 1, "tile_rows": 1},
    )  # fmt: skip


def _merged(first: str, second: str) -> str:
    """Return the code of two texts, each on its own lines, of which no line is in both."""
    lines = [first.split("\n"), second.split("\n")]
    length = max(map(len, lines))
    filled = [part + [""] * (length - len(part)) for part in lines]
    return "\n".join(one or other for one, other in zip(*filled, strict=True))


def _tiles(files: Mapping[str, str]) -> Reading:
    """Return the reading of the number of tiles, which is that of passes over the weights."""
    for pattern in (
        r"\n +ne1, ne1\};",
        r"\n +ne12, ncols_opt\};",
        r"int64_t ncols_opt = ne12;\n +if \(GGML_CUDA_CC_IS_RDNA3\(cc\) \|\|",
    ):
        only_match(MMQ, files[MMQ], pattern)
    body, first = body_of(MMQ_KERNEL, files[MMQ_KERNEL], r"static void launch_mul_mat_q\(")
    count, line = only_match(
        MMQ_KERNEL,
        body,
        r"const int ntx += (\(args\.ncols_max \+ config\.J - 1\) / config\.J);",
        first,
    )
    source = composed("launch_mul_mat_q", [(line, f"return {count[1]};")], "")
    return cpp_reading(
        "mmq_tiles",
        CppFiles({MMQ_KERNEL: source}, quoted=files),
        "launch_mul_mat_q",
        leaves={"args_ncols_max": "rows", "config_J": "width"},
        axis="rows",
        contexts=[{"width": width} for width in (8, 24, 128)],
        minimums={"rows": 1, "width": 1},
    )
