"""Script for an interpreter that has Triton: compile one kernel for several blocks.

Its arguments are the kernel's file, a file of requests in JSON, and an output folder. It prints one
line of JSON per request. It runs nothing on a device and needs none: the targets are named. It
imports Triton and the standard library alone.
"""

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

INSTRUCTIONS = ("tcgen05.mma", "wgmma.mma_async", "mma.sync")
"""Matrix-multiply instructions of PTX; the first that occurs is the kernel's."""
WARP_THREADS = 32


def _constant(value: Any) -> Any:
    return getattr(tl, value) if isinstance(value, str) else value


def _compile(kernel: Any, request: dict[str, Any], folder: Path) -> dict[str, Any]:
    names = kernel.arg_names
    constants = {name: _constant(value) for name, value in request["constants"].items()}
    signature = {name: request["types"].get(name, "constexpr") for name in names}
    aligned = {(names.index(name),): [["tt.divisibility", 16]] for name in request["aligned"]}
    source = ASTSource(
        fn=kernel,
        signature=signature,
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs=aligned,
    )
    compiled = triton.compile(
        source,
        target=GPUTarget("cuda", request["sm"], WARP_THREADS),
        options={"num_warps": request["warps"], "num_stages": request["stages"]},
    )
    path = folder / f"{request['number']}.cubin"
    path.write_bytes(compiled.asm["cubin"])
    instructions = [name for name in INSTRUCTIONS if name in compiled.asm["ptx"]]
    return {
        "cubin": path.name,
        "shared_bytes": compiled.metadata.shared,
        "tensor_columns": getattr(compiled.metadata, "tmem_size", None) or 0,
        "instruction": instructions[0] if instructions else None,
    }


def main(kernel_file: Path, requests_file: Path, folder: Path) -> None:
    """Print one line of JSON per request: the compiled kernel, or the error."""
    sys.path.insert(0, str(kernel_file.parent))
    module = import_module(kernel_file.stem)
    for number, request in enumerate(json.loads(requests_file.read_text())):
        try:
            answer = _compile(
                getattr(module, request["kernel"]), request | {"number": number}, folder
            )
        except Exception as error:  # noqa: BLE001 (any failure of the compiler is reported as its answer)
            answer = {"error": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
