"""ggml on NVIDIA GPUs: the kernel of a product, and the columns that it holds at once.

ggml's columns of the right operand are rows of activations: b N of a product's, the tokens of an
expert's. A matrix has `columns` outputs and `depth` inputs, ggml's ne01 and ne00. The rule
`product` is the kernel of a product (`ggml_cuda_mul_mat`), `experts` that of products by selected
experts (`ggml_cuda_mul_mat_id`): vectors of floats (mmvf) or of quantised blocks (mmvq), tiles of
floats (mmf) or of blocks (mmq), or cuBLAS, whose tiles are not read. `mmvf_columns`,
`mmvq_columns` and `mmf_columns` are the columns that one kernel holds; those of mmq are read in
`ggml_cuda_mmq`.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from nearfree.errors import MovedError
from nearfree.sources.backends.ggml_cuda_mmq import tile_rules
from nearfree.sources.backends.ggml_cuda_text import (
    BLOCKS,
    CAPABILITIES,
    COMMON,
    CUDA,
    HEADER,
    LEAST,
    LEAVES,
    MMF,
    MMF_KERNEL,
    MMQ,
    MMQ_KERNEL,
    MMVF,
    MMVF_HEADER,
    MMVQ,
    MMVQ_HEADER,
    OPTIONS,
    TYPES,
    capabilities,
    compiled,
    features,
    number,
    returning,
    without,
)
from nearfree.sources.backends.ggml_text import body_of, composed, only_match, prefixed
from nearfree.sources.cpp.expressions import Meaning
from nearfree.sources.cpp.program import cpp_reading
from nearfree.sources.cpp.source import CppFiles
from nearfree.sources.language.program import Text
from nearfree.sources.language.reading import Mechanism, Reading

VENDORED = "vendor/llama.cpp/"
"""The folder of llama.cpp in the Python package's sdist."""
WANTED = (
    r"(vendor/llama\.cpp/)?ggml/(CMakeLists\.txt|include/ggml\.h|src/(ggml\.c|ggml-common\.h"
    r"|ggml-cuda/(ggml-cuda\.cu|common\.cuh|mmvf\.cuh?|mmf\.cuh?|mmvq\.cuh?|mmq\.cuh?"
    r"|mmq-config-(ampere|blackwell)\.cuh)))"
)
_REQUIRED = (CUDA, COMMON, MMVF, MMVF_HEADER, MMF, MMF_KERNEL, MMVQ, MMVQ_HEADER, MMQ, MMQ_KERNEL,
             OPTIONS, BLOCKS, HEADER, TYPES)  # fmt: skip
_KERNELS = {
    "ggml_cuda_mul_mat_vec_f": "mmvf",
    "ggml_cuda_mul_mat_f": "mmf",
    "ggml_cuda_mul_mat_vec_q": "mmvq",
    "ggml_cuda_mul_mat_q": "mmq",
    "ggml_cuda_mul_mat_cublas": "cublas",
}
"""The kernel of each function that `ggml_cuda_mul_mat` calls."""
SORTED = "sorted"
"""Products by experts one after the other, each as a product of its own rows."""
_FLOATS = ("F32", "F16", "BF16")
WEIGHTS = (*_FLOATS, "Q4_0", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS", "MXFP4")
"""Types at which rules are compared."""
_SIZES = {"float": 4, "ggml_fp16_t": 2, "ggml_bf16_t": 2}
"""Bytes of C's types that hold floats."""
_SHAPES = ((4096, 4096), (1000, 4096), (4096, 1000))
_DENSE = range(1, 34)
_SMPBO = 101376
"""Bytes of shared memory that a block may have, of GPUs of 8.6, 8.9 and 12.x; all have more than
the rule's least."""
_MINIMUMS = {"rows": 1, "columns": 2, "depth": 1, "experts": 1, "cc": LEAST, "smpbo": 48 * 1024}
_MEANING = Meaning(branching=True, harmless=frozenset({"GGML_ASSERT", "GGML_UNUSED"}))
_ALIGNED = (
    r"(?: +for \(size_t i = 1; i < GGML_MAX_DIMS; \+\+i\) \{\n"
    r" +if \(src0_nb\[i\] % \(2\*ts\) != 0\) \{\n +return false;\n +\}\n +\}\n)"
)
"""The test of a matrix's strides, which those of a contiguous one of an even depth pass."""

_HADAMARD = (
    r"(?: +const int32_t hint = .*;\n)? +if \(.*ggml_cuda_op_fwht\(ctx, src1, dst\)\) \{\n"
    r" +return;\n +\}\n"
)


def readings(files: Mapping[str, str]) -> list[Reading]:
    """Return the readings of one release's rules."""
    llama_files, folder = _llama_files(files)
    rules = [
        _product(llama_files),
        _experts(llama_files),
        *_columns(llama_files),
        *tile_rules(llama_files),
    ]
    return prefixed(rules, folder)


def mechanisms(files: Mapping[str, str]) -> list[Mechanism]:
    """Return the lines by which gate and up products of one row are one kernel."""
    llama_files, folder = _llama_files(files)
    text = llama_files[CUDA]
    quotes = []
    for kind in "fq":
        head = rf"static bool ggml_cuda_should_fuse_mul_mat_vec_{kind}\("
        body, first = body_of(CUDA, text, head)
        test, line = only_match(
            CUDA, body, r"if \(tensor->op == GGML_OP_MUL_MAT && dst->ne\[1\] != 1\) \{\n"
            r" +return false;\n", first,
        )  # fmt: skip
        quotes.append(Text(folder + CUDA, text).quote(line, line + test.group().count("\n") - 1))
    return [Mechanism("fusion", "products of gate and up are fused for one row", tuple(quotes))]


def _llama_files(files: Mapping[str, str]) -> tuple[dict[str, str], str]:
    """Return a release's files by their paths in llama.cpp, and the folder that contains it."""
    folder = VENDORED if any(path.startswith(VENDORED) for path in files) else ""
    relative = {path.removeprefix(VENDORED): text for path, text in files.items()}
    for path in _REQUIRED:
        if path not in relative:
            raise MovedError(f"there is no {path}")
    return relative, folder


def _choosing(files: Mapping[str, str]) -> dict[str, str]:
    """Return the functions that say whether a kernel is taken, by their file."""
    mmvf = compiled(files, MMVF, [r"bool ggml_cuda_should_use_mmvf\("])
    # A matrix of weights is contiguous: only its depth decides whether its rows are aligned.
    mmvf = without(MMVF, mmvf, rf" +const size_t ts = .*;\n +if \(src0_nb\[0\] != ts\) \{{\n"
                   rf" +return false;\n +\}}\n(?:\n +//.*\n)?{_ALIGNED}")  # fmt: skip
    mmf = compiled(files, MMF, [
        r"bool ggml_cuda_should_use_mmf\(",
        r"static __forceinline__ int mmf_get_rows_per_block\(",
    ])  # fmt: skip
    mmf = without(MMF, mmf, r" +if \(src0_nb\[0\] != ts\) \{\n +return false;\n +\}\n")
    mmf = without(MMF, mmf, _ALIGNED)
    mmvq = compiled(files, MMVQ, [
        r"bool ggml_cuda_should_use_mmvq\(",
        r"int get_mmvq_mmid_max_batch\(",
        r"static constexpr __host__ __device__ int get_mmvq_mmid_max_batch_turing_plus\(",
        r"static constexpr __host__ __device__ int get_mmvq_mmid_max_batch_pascal_older\(",
    ])  # fmt: skip
    mmq = compiled(files, MMQ, [r"bool ggml_cuda_should_use_mmq\("])
    mmq = without(MMQ, mmq, r"const int +id += ggml_cuda_get_device\(\);")
    mmq = without(MMQ, mmq, r"const size_t smpbo = ggml_cuda_info\(\)\.devices\[id\]\.smpbo;")
    chosen = {MMVF: _branching(mmvf), MMF: mmf, MMVQ: _branching(mmvq), MMQ: mmq}
    return {**chosen, **features(files), TYPES: _types(files)}


def _branching(text: str) -> str:
    """Return a text in which a limit of columns is a branch, so that its line is on record."""
    limit = re.compile(r"return ((?:src0_small && )?ne11 (?:<=|<|==) \w+);")
    return limit.sub(r"if (\1) { return true; } return false;", text)


def _types(files: Mapping[str, str]) -> str:
    """Return a function that gives the bytes of an element of floats, 0 for quantised types."""
    table, first = body_of(TYPES, files[TYPES], r"static const struct ggml_type_traits type_traits")
    pieces = []
    for entry in re.finditer(r"\[GGML_TYPE_(\w+)\] += \{([^{}]*)\}", table):
        size = re.search(r"\.type_size += sizeof\((\w+)\)", entry[2])
        if re.search(r"\.is_quantized += false", entry[2]) and size and size[1] in _SIZES:
            line = first + table.count("\n", 0, entry.start())
            answer = f"return {_SIZES[size[1]]};"
            pieces.append((line, f"if (type == GGML_TYPE_{entry[1]}) {{ {answer} }}"))
    if not pieces:
        raise MovedError(f"{TYPES}:{first} has no types of floats")
    return composed("float_bytes", pieces, "0")


def _constants(files: Mapping[str, str]) -> dict[str, str]:
    """Return the values of the names that choose a kernel."""
    texts = [files[path] for path in (MMVF_HEADER, MMVQ_HEADER, MMQ_KERNEL, MMF_KERNEL, COMMON)]
    names = ("MMVF_MAX_BATCH_SIZE", "MMVQ_MAX_BATCH_SIZE", "MMQ_DP4A_MAX_BATCH_SIZE",
             "MMF_ROWS_PER_BLOCK", "WARP_SIZE")  # fmt: skip
    unread = dict.fromkeys(["ctx", "src0", "src1", "dst", "src0_ne", "src0_nb", "src1_ne",
                            "src1_nb"], "None")  # fmt: skip
    numbers = {name: str(number(texts, name)) for name in names}
    return {**capabilities(files), **unread, **numbers}


def _chosen(
    rule: str,
    files: Mapping[str, str],
    source: str,
    root: str,
    contexts: Sequence[Mapping[str, Any]],
) -> Reading:
    """Return the reading of a function that chooses a kernel."""
    constants = _constants(files)
    leaves = {
        **LEAVES,
        r"ggml_is_quantized\((type|src0_type)\)": "float_bytes() == 0",
        r"ggml_type_size\(type\)": "float_bytes()",
        r"src0_ne\[0\]": "depth",
        r"src0_ne\[1\]": "columns",
        r"src0_ne\[[23]\]": "1",
        "warp_size": constants["WARP_SIZE"],
    }
    own = {"ne01": "columns", "ne11": "rows", "ne02": "experts", r"ne1?2": "rows",
           r"src1_ne\[2\]": "rows"}  # fmt: skip
    return cpp_reading(
        rule,
        CppFiles({**_choosing(files), CUDA: source}, quoted=files),
        root,
        leaves=leaves,
        own=own,
        meaning=_MEANING,
        constants=constants,
        axis="rows",
        contexts=contexts,
        dense=_DENSE,
        minimums=_MINIMUMS,
    )


def _product(files: Mapping[str, str]) -> Reading:
    """Return the reading of a product's kernel."""
    source = compiled(files, CUDA, [r"static void ggml_cuda_mul_mat\("])
    for pattern in (
        r"GGML_TENSOR_BINARY_OP_LOCALS$",
        # The weights are no Hadamard matrix, have two outputs at least, and lie in no temporary
        # buffer.
        _HADAMARD,
        r" +if \(ne01 == 1 && [^{]*\{\n(?: {8}.*\n)+? {8}return;\n +\}\n",
        r"const bool bad_padding_clear = [^;]*;",
        r"const int cc += ggml_cuda_info\(\)[^;]*;",
        r"const int warp_size = ggml_cuda_info\(\)[^;]*;",
    ):
        source = without(CUDA, source, pattern)
    source = source.replace("bad_padding_clear || ", "")
    contexts = [
        {"weight": weight, "cc": cc, "columns": columns, "depth": depth, "smpbo": _SMPBO}
        for weight in WEIGHTS
        for cc in CAPABILITIES
        for columns, depth in (_SHAPES if weight in _FLOATS else _SHAPES[:1])
    ]
    source = returning(CUDA, source, _KERNELS)
    return _chosen("product", files, source, "ggml_cuda_mul_mat", contexts)


def _experts(files: Mapping[str, str]) -> Reading:
    """Return the reading of the kernel of products by selected experts."""
    source = compiled(files, CUDA, [r"static void ggml_cuda_mul_mat_id\("])
    end, _ = only_match(CUDA, source, r"GGML_ASSERT\(ggml_cuda_mul_mat_id_needs_sync\(dst, cc\)\);")
    source = f'{source[: end.start()]}return "{SORTED}";\n}}\n'
    for pattern in (
        r"GGML_TENSOR_BINARY_OP_LOCALS$",
        r"const int cc = ggml_cuda_info\(\)[^;]*;",
        r"static_assert\([^;]*;",
    ):
        source = without(CUDA, source, pattern)
    contexts = [
        {"weight": weight, "cc": cc, "columns": columns, "depth": 2048, "experts": 64,
         "smpbo": _SMPBO}
        for weight in WEIGHTS
        for cc in CAPABILITIES
        for columns in ((1024, 1536, 1000) if weight in _FLOATS else (1024,))
    ]  # fmt: skip
    source = returning(CUDA, source, _KERNELS)
    return _chosen("experts", files, source, "ggml_cuda_mul_mat_id", contexts)


class _Switch(NamedTuple):
    """A switch over columns: its function's first line, what it switches on, and its cases."""

    rule: str
    path: str
    head: str
    subject: str
    case: str


_VECTORS = _Switch(
    "mmvf_columns",
    MMVF,
    r"static void mul_mat_vec_f_cuda_switch_ncols_dst\(",
    "ncols_dst",
    r"case +(\d+):\n +launch_mul_mat_vec_f_cuda<T, type_acc, \1>",
)
_QUANTISED_VECTORS = _Switch(
    "mmvq_columns",
    MMVQ,
    r"static void mul_mat_vec_q_switch_ncols_dst\(",
    "ncols_dst",
    r"case +(\d+): \{\n(?: +//.*\n)? +(?:static )?constexpr int c_ncols_dst = \1;",
)
_TILES = _Switch(
    "mmf_columns",
    MMF_KERNEL,
    r"static void mul_mat_f_switch_cols_per_block\(",
    "ncols_case",
    r"case +(\d+): \{\n +mul_mat_f_cuda<T, +rows_per_block, +\1>",
)


def _columns(files: Mapping[str, str]) -> list[Reading]:
    """Return the readings of the columns that a kernel holds at once; 0 if it has none so wide."""
    single = r"^    if \(has_ids && ncols_dst > 1\) \{\n.*\n +mul_mat_vec_q_moe_launch<"
    _, token_line = only_match(MMVQ, files[MMVQ], single)
    widest, widest_line = only_match(
        MMF_KERNEL,
        files[MMF_KERNEL],
        r"const int ncols_case = \(ids && ncols_dst > \d+\) \? \d+ : ncols_dst;",
    )
    return [
        _switch(files, _VECTORS),
        # Each warp takes one token of several, and its expert's weights.
        _switch(files, _QUANTISED_VECTORS, (token_line, "if (ids && rows > 1) { return 1; }")),
        _switch(files, _TILES, (widest_line, widest.group())),
    ]


def _switch(files: Mapping[str, str], switch: _Switch, *before: tuple[int, str]) -> Reading:
    """Return the reading of a switch of which each case is a kernel, behind some other lines."""
    path = switch.path
    body, first = body_of(path, files[path], switch.head)
    only_match(path, body, rf"switch \({switch.subject}\) \{{$")
    cases = list(re.finditer(switch.case, body))
    if not cases or len(cases) != len(re.findall(r"^ +case +\d+:", body, re.MULTILINE)):
        raise MovedError(f"{path}:{first} has cases of an unknown form")
    pieces = [*before]
    for case in cases:
        line = first + body.count("\n", 0, case.start())
        pieces.append((line, f"if ({switch.subject} == {case[1]}) {{ return {case[1]}; }}"))
    return cpp_reading(
        switch.rule,
        CppFiles({path: composed(switch.rule, pieces, "0")}, quoted=files),
        switch.rule,
        leaves={"ncols_dst": "rows"},
        axis="rows",
        contexts=[{"ids": ids} for ids in (False, True)],
        dense=_DENSE,
        minimums={"rows": 1},
    )
