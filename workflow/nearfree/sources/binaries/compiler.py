"""A script for an interpreter that has Triton: it compiles one kernel for several blocks.

Its arguments are the file of the kernel, a file of questions, and a folder for what is made; it
prints an answer a line. Nothing is run on a device, and none is needed: targets are named. It
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
"""What multiplies matrices, in PTX; the first that occurs is the kernel's."""
WARP = 32


def _constant(value: Any) -> Any:
    return getattr(tl, value) if isinstance(value, str) else value


def _compiled(kernel: Any, asked: dict[str, Any], folder: Path) -> dict[str, Any]:
    names = kernel.arg_names
    constants = {name: _constant(value) for name, value in asked["constants"].items()}
    signature = {name: asked["types"].get(name, "constexpr") for name in names}
    aligned = {(names.index(name),): [["tt.divisibility", 16]] for name in asked["aligned"]}
    source = ASTSource(
        fn=kernel,
        signature=signature,
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs=aligned,
    )
    made = triton.compile(
        source,
        target=GPUTarget("cuda", asked["sm"], WARP),
        options={"num_warps": asked["warps"], "num_stages": asked["stages"]},
    )
    path = folder / f"{asked['number']}.cubin"
    path.write_bytes(made.asm["cubin"])
    found = [each for each in INSTRUCTIONS if each in made.asm["ptx"]]
    return {
        "cubin": path.name,
        "shared_bytes": made.metadata.shared,
        "tensor_columns": getattr(made.metadata, "tmem_size", None) or 0,
        "instruction": found[0] if found else None,
    }


def main(file: Path, questions: Path, folder: Path) -> None:
    """Print a line of JSON for each question: what was made, or why nothing was."""
    sys.path.insert(0, str(file.parent))
    module = import_module(file.stem)
    for number, asked in enumerate(json.loads(questions.read_text())):
        try:
            answer = _compiled(getattr(module, asked["kernel"]), asked | {"number": number}, folder)
        except Exception as error:  # noqa: BLE001 (whatever a compiler raises is its answer)
            answer = {"error": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
