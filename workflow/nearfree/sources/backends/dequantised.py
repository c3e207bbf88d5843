"""Products that, from some number of rows on, first unpack all weights to 16 bits.

Below that number a special kernel unpacks weights as it multiplies: AWQ's, and Exllama's for GPTQ
files.
"""

from collections.abc import Iterator, Mapping

from nearfree.errors import MovedError
from nearfree.sources.cpp.edits import only_function, reduced_to
from nearfree.sources.cpp.nodes import changed_names, part
from nearfree.sources.cpp.program import cpp_reading
from nearfree.sources.cpp.source import CppFiles, children
from nearfree.sources.language.cuts import value_of
from nearfree.sources.language.python_source import Modules
from nearfree.sources.language.reading import Reading

_AWQ = "FP16_MATMUL_HEURISTIC_CONDITION"
_OWNERS = ("AWQLinearMethod", "AutoAWQLinearMethod")
"""The class of AWQ's own kernel, by release."""
_EXLLAMA, _RECONSTRUCTS = "gemm_half_q_half_cuda", "use_reconstruct"
_AWQ_LEAVES = {r"x\.shape\[:-1\]\.numel\(\)": "rows"}
_EXLLAMA_LEAVES = {"use_exllama": "True", "size_m": "rows", "bit": "bits"}
_BITS = (4, 8)


def dequantised(files: Mapping[str, str]) -> Iterator[Reading]:
    """Yield the readings of whether a number of rows is multiplied by unpacked weights."""
    python = Modules({path: text for path, text in files.items() if path.endswith(".py")})
    methods = (python.method(owner, "apply") for owner in _OWNERS)
    for path, function in filter(None, methods):
        value = value_of(function, _AWQ, frozenset({"x"}))
        program, root = python.program_of(path, value, _AWQ_LEAVES)
        yield Reading("awq_dequantises", program, root, axis="rows", contexts=[{}])
    sources = {path: text for path, text in files.items() if path.endswith("q_gemm.cu")}
    path, node = only_function(sources, _EXLLAMA)
    switches = [
        statement
        for statement in children(part(node, "body"))
        if _RECONSTRUCTS in changed_names(statement)
    ]
    if [statement.type for statement in switches] != ["if_statement"]:
        raise MovedError(f"{path}: {_EXLLAMA} sets {_RECONSTRUCTS} in {len(switches)} statements")
    exllama = CppFiles(
        {path: reduced_to(sources[path], node, switches, _RECONSTRUCTS)}, quoted=sources
    )
    yield cpp_reading(
        "exllama_dequantises",
        exllama,
        _EXLLAMA,
        leaves=_EXLLAMA_LEAVES,
        constants=CppFiles(sources).numbers,
        axis="rows",
        contexts=[{"bits": bits} for bits in _BITS],
        minimums={"rows": 1},
    )
