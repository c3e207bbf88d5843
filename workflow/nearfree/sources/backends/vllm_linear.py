"""vLLM's dense products of quantised weights: the rows of a kernel's tile, by rows.

The rules are CUTLASS's dispatch per format and compute capability, Marlin's passes over the
weights, and Machete's table of tiles. Only the sdist has their source; a wheel has them compiled.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from nearfree.sources.backends.cutlass import with_rows
from nearfree.sources.backends.dequantised import dequantised
from nearfree.sources.backends.machete import machete
from nearfree.sources.backends.marlin_passes import marlin
from nearfree.sources.cpp.program import cpp_program
from nearfree.sources.cpp.source import CppFiles
from nearfree.sources.language.program import names_in
from nearfree.sources.language.reading import Mechanism, Reading

_CSRC = r"csrc/(libtorch_stable/)?quantization"
WANTED = (
    rf"{_CSRC}/((w8a8/cutlass|cutlass_w8a8)/(c3x/scaled_mm(_\w+_dispatch)?|scaled_mm_c2x(_\w+)?)\.cuh"
    r"|(gptq_)?marlin/(gptq_)?marlin\.cu|machete/generate\.py|gptq/q_gemm\.cu)"
    r"|vllm/model_executor/layers/quantization/(auto_)?awq\.py"
)
CUTLASS = {
    "float8_sm89": "cutlass_gemm_sm89_fp8_dispatch",
    "float8_sm90": "cutlass_gemm_sm90_fp8_dispatch",
    "float8_sm100": "cutlass_gemm_sm100_fp8_dispatch",
    "float8_sm120": "cutlass_gemm_sm120_fp8_dispatch",
    "float8_block_sm90": "cutlass_gemm_blockwise_sm90_fp8_dispatch",
    "float8_block_sm100": "cutlass_gemm_blockwise_sm100_fp8_dispatch",
    "float8_block_sm120": "cutlass_gemm_blockwise_sm120_fp8_dispatch",
    "int8_sm80": "cutlass_gemm_sm80_dispatch",
    "int8_sm89": "cutlass_gemm_sm89_int8_dispatch",
    "int8_sm90": "cutlass_gemm_sm90_int8_dispatch",
}
"""The dispatch of CUTLASS's kernels, by format and compute capability."""
LEAVES = {
    r"a\.size\(0\)": "rows",
    r"a\.size\(1\)": "depth",
    r"(b|out)\.size\(1\)": "columns",
    r"device_attribute\('cudaDevAttrMultiProcessorCount'\)": "sms",
    r"next_pow_2\((\w+)\)": r"(1 << bit_length(\1 - 1))",
    r"(div_ceil|ceil_div)\((\w+), (\w+)\)": r"quotient(\2 + \3 - 1, \3)",
}
SHAPES = ((1024, 4096), (1280, 5120), (4096, 4096), (8192, 8192), (12288, 4096), (28672, 8192))
"""Columns and depth of the weights at which a rule is compared."""
SMS = (108, 132, 148)
"""Numbers of SMs at which a rule is compared that reads them, the first at which any other is."""


def readings(files: Mapping[str, str]) -> list[Reading]:
    """Return the readings of a release's rules."""
    parsed = with_rows({path: text for path, text in files.items() if path.endswith(".cuh")})
    python = {path: text for path, text in files.items() if path.endswith(".py")}
    return [
        *_cutlass(parsed),
        marlin(files, contexts()),
        machete(python, contexts()),
        *dequantised(files),
    ]


def contexts(**more: Any) -> list[Mapping[str, Any]]:
    """Return the shapes at which a rule is compared."""
    return [{"columns": n, "depth": k, **more} for n, k in SHAPES]


def _cutlass(files: CppFiles) -> Iterator[Reading]:
    for rule, name in CUTLASS.items():
        if files.defines(name):
            program, root = cpp_program(files, name, leaves=LEAVES)
            sm_counts = SMS if "sms" in names_in(program.functions[root]) else SMS[:1]
            yield Reading(
                rule,
                program,
                root,
                axis="rows",
                contexts=[context for sms in sm_counts for context in contexts(sms=sms)],
                interpret_whole=False,
                minimums={"rows": 1},
            )


def mechanisms(files: Mapping[str, str]) -> list[Mechanism]:
    """Return the links from the rules to the kernels: none is read."""
    del files
    return []
