"""Functions and numbers of ggml's CUDA sources, as a build with ggml's own options compiles them.

A capability is ggml's `cc`: 890 for 8.9. Only NVIDIA's are read, so the tests for other vendors'
processors are false, and a device runs code that is compiled for it.
"""

import ast
import re
from collections.abc import Mapping, Sequence

from nearfree.errors import MovedError
from nearfree.sources.backends.ggml_text import only_match, span
from nearfree.sources.cpp.conditions import Conditions

FOLDER = "ggml/src/ggml-cuda/"
CUDA, COMMON = f"{FOLDER}ggml-cuda.cu", f"{FOLDER}common.cuh"
MMVF, MMF, MMF_KERNEL = f"{FOLDER}mmvf.cu", f"{FOLDER}mmf.cu", f"{FOLDER}mmf.cuh"
MMVQ, MMQ, MMQ_KERNEL = f"{FOLDER}mmvq.cu", f"{FOLDER}mmq.cu", f"{FOLDER}mmq.cuh"
MMVF_HEADER, MMVQ_HEADER = f"{FOLDER}mmvf.cuh", f"{FOLDER}mmvq.cuh"
OPTIONS, BLOCKS = "ggml/CMakeLists.txt", "ggml/src/ggml-common.h"
HEADER, TYPES = "ggml/include/ggml.h", "ggml/src/ggml.c"
LEAST = 750
"""The least capability that is read: Turing's, whose tensor cores multiply integers."""
CAPABILITIES = (750, 800, 870, 890, 900, 1000, 1200, 1210)
"""Capabilities at which rules are compared."""
LEAVES = {
    r"GGML_TYPE_(\w+)": r"'\1'",
    r"GGML_CUDA_CC_IS_NVIDIA\(cc\)": "True",
    r"GGML_CUDA_CC_IS_(AMD|MTHREADS|QY\w|GCN\w*|CDNA\w*|RDNA\w*)\(cc\)": "False",
    r"amd_\w+_available\(cc\)": "False",
    r"ggml_cuda_highest_compiled_arch\(cc\)": "cc",
    "type": "weight",
    "src0_type": "weight",
    "src1_type": "'F32'",
    "dst_type": "'F32'",
}
"""Facts of a product on an NVIDIA GPU, and the rules' names for its weights."""
_AVAILABLE = r"static bool {}\(const int cc\)"
_FEATURES = ("turing_mma", "ampere_mma", "volta_mma", "blackwell_mma",
             "fp16_mma_hardware", "bf16_mma_hardware", "fp32_mma_hardware")  # fmt: skip
_MACRO = r"^#define[ \t]+{}[ \t]+(.+?)[ \t]*(?://.*)?$"


def compiled(files: Mapping[str, str], path: str, heads: Sequence[str]) -> str:
    """Return the functions of a file that begin with some lines, each on its own lines.

    Tests for the capabilities of other vendors' processors, which are above all of NVIDIA's, are
    false in it.

    Raises
    ------
    SourceError
        A function is missing, or a condition in it depends on an unknown macro.
    """
    text = files[path]
    spans = [span(path, text, head) for head in heads]
    own = Conditions(path, text, _definitions(files)).compiled({}, spans)
    return re.sub(r"\bcc (==|>=) GGML_CUDA_CC_(GCN|VEGA|CDNA|RDNA|QY|PH)\w*", "false", own)


def features(files: Mapping[str, str]) -> dict[str, str]:
    """Return the functions that say what a capability has, by their file."""
    only_match(
        COMMON,
        files[COMMON],
        r"^#define GGML_CUDA_CC_IS_NVIDIA\(cc\) +\(cc < GGML_CUDA_CC_OFFSET_MTHREADS\)$",
    )
    only_match(CUDA, files[CUDA], r"devices\[id\]\.cc = 100\*prop\.major \+ 10\*prop\.minor;")
    heads = [_AVAILABLE.format(f"{name}_available") for name in _FEATURES]
    return {COMMON: compiled(files, COMMON, heads)}


def _definitions(files: Mapping[str, str]) -> dict[str, bool]:
    """Return which macros a CUDA build defines: vendors' are not, options are as by default."""
    options = {
        name: only_match(OPTIONS, files[OPTIONS], rf'^option\({name} +"[^"]*" +(ON|OFF)\)$')[0][1]
        for name in ("GGML_CUDA_FORCE_MMQ", "GGML_CUDA_FORCE_CUBLAS")
    }
    others = dict.fromkeys(["GGML_USE_HIP", "GGML_USE_MUSA", "GGML_HIP_NO_MMQ_MFMA"], False)
    return others | {name: value == "ON" for name, value in options.items()}


def capabilities(files: Mapping[str, str]) -> dict[str, str]:
    """Return the capabilities of processors by their macro, as expressions."""
    found = re.findall(r"^#define (GGML_CUDA_CC_\w+) +(\d+)\b", files[COMMON], re.MULTILINE)
    if not found:
        raise MovedError(f"{COMMON} names no capabilities")
    return dict(found)


def number(texts: Sequence[str], name: str) -> int:
    """Return the number that a macro of some texts stands for.

    Raises
    ------
    SourceError
        It is defined nowhere, several times, or as something else than arithmetic.
    """
    values = [match[1] for text in texts
              for match in re.finditer(_MACRO.format(name), text, re.MULTILINE)]  # fmt: skip
    if len(values) != 1:
        raise MovedError(f"{name} has {len(values)} definitions")
    return arithmetic(texts, values[0])


def arithmetic(texts: Sequence[str], expression: str) -> int:
    """Return the value of an expression of whole numbers and macros."""

    def value(node: ast.expr) -> int:
        match node:
            case ast.Constant(value=int(whole)):
                return whole
            case ast.Name(id=name):
                return number(texts, name)
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return value(left) + value(right)
            case ast.BinOp(left=left, op=ast.Mult(), right=right):
                return value(left) * value(right)
            case ast.BinOp(left=left, op=ast.Div(), right=right):
                return value(left) // value(right)
        raise MovedError(f"{expression!r} is no arithmetic of whole numbers")

    try:
        return value(ast.parse(expression, mode="eval").body)
    except (SyntaxError, ZeroDivisionError, RecursionError) as error:
        raise MovedError(f"{expression!r} is no arithmetic of whole numbers") from error


def without(path: str, text: str, pattern: str) -> str:
    """Return a text without the only match of a pattern; its lines keep their numbers.

    Raises
    ------
    SourceError
        The pattern matches nowhere, or several times.
    """
    match, _ = only_match(path, text, pattern)
    return text[: match.start()] + "\n" * match.group().count("\n") + text[match.end() :]


def returning(path: str, text: str, answers: Mapping[str, str]) -> str:
    """Return a text in which calls of some functions are the function's answer, by name.

    Raises
    ------
    SourceError
        It returns after something else than such a call.
    """
    calls = re.compile(rf"\b({'|'.join(answers)})\(ctx, [^;]*\);\n +return;")
    text = calls.sub(lambda call: f'return "{answers[call[1]]}";\n', text)
    last = re.compile(rf"\b({'|'.join(answers)})\(ctx, [^;]*\);(?=\n\}})")
    text = last.sub(lambda call: f'return "{answers[call[1]]}";', text)
    if re.search(r"\breturn;", text):
        raise MovedError(f"{path} takes a product by a kernel that is not known")
    return text
