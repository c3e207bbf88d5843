"""Products that unpack all weights and multiply in 16 bits from some number of rows on.

Below it a kernel of their own unpacks on the way: AWQ's, and Exllama's of GPTQ's files.
"""

from collections.abc import Iterator, Mapping

from nearfree.errors import MOVED, SourceError
from nearfree.sources.cpp.nodes import assigned, part
from nearfree.sources.cpp.program import cpp_program
from nearfree.sources.cpp.source import CppFiles, children
from nearfree.sources.cpp.written import cut, only_function
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
    """Yield how to read whether so many rows are multiplied by unpacked weights.

    Raises
    ------
    SourceError
        A switch is not of the known form.
    """
    python = Modules({path: text for path, text in files.items() if path.endswith(".py")})
    methods = (python.method(owner, "apply") for owner in _OWNERS)
    for path, function in filter(None, methods):
        value = value_of(function, _AWQ, frozenset({"x"}))
        program, root = python.program_of(path, value, _AWQ_LEAVES)
        yield Reading("awq_dequantises", program, root, axis="rows", contexts=[{}])
    text = {path: text for path, text in files.items() if path.endswith("q_gemm.cu")}
    path, node = only_function(text, _EXLLAMA)
    kept = [each for each in children(part(node, "body")) if _RECONSTRUCTS in assigned(each)]
    if [each.type for each in kept] != ["if_statement"]:
        raise SourceError(
            f"{path}: {_EXLLAMA} sets {_RECONSTRUCTS} in {len(kept)} statements", remedy=MOVED
        )
    alone = CppFiles({path: cut(text[path], node, kept, _RECONSTRUCTS)}, quoted=text)
    program, root = cpp_program(
        alone, _EXLLAMA, leaves=_EXLLAMA_LEAVES, constants=CppFiles(text).numbers
    )
    yield Reading(
        "exllama_dequantises",
        program,
        root,
        axis="rows",
        contexts=[{"bits": bits} for bits in _BITS],
        whole=False,
        least={"rows": 1},
    )
