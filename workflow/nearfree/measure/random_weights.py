"""Random weights of a model's shape as a GGUF file, quantized by the engine itself."""

import ctypes
import tempfile
from pathlib import Path

from msgspec import json

from nearfree.backends.builds import build_of
from nearfree.core.weights import RandomWeights
from nearfree.engines.files import library_folder, random_path
from nearfree.engines.library import load, messages
from nearfree.errors import EvidenceError
from nearfree.gguf.types import FILE_TYPES

MAKER = "llama_cpp"
"""The engine that quantizes the files; weights.yaml names a release of it."""
_UNQUANTIZED = ("f32", "f16", "bf16")
"""Storage types that are written directly, without the engine."""
_FTYPE_NUMBERS = {name.lower(): number for number, name in FILE_TYPES.items()}
"""`llama_ftype` has the numbers of GGUF's file types: include/llama.h of 3.22.1, line 117."""


def ensure_random(weights: RandomWeights) -> Path:
    """Return the file of random weights; write it first if it is missing.

    Raises
    ------
    ConfigError
        No file can be written for this kind of model, or the package `gguf` is missing.
    EvidenceError
        The engine cannot quantize the weights to their file type.
    """
    path = random_path(weights.digest)
    if path.is_file():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        written_type = weights.file_type if weights.file_type in _UNQUANTIZED else "bf16"
        written = _write_plain(Path(folder), weights, written_type)
        if written_type != weights.file_type:
            written = _quantize(weights, written, Path(folder, "stored.gguf"))
        written.replace(path)
    return path


def _write_plain(folder: Path, weights: RandomWeights, type_: str) -> Path:
    """Write weights in an unquantized type; return the file."""
    from nearfree.models.gguf_weights import write_random_gguf

    config = folder / "config.json"
    config.write_bytes(json.encode(weights.config))
    write_random_gguf(config, folder / "plain.gguf", type_=type_, seed=weights.seed)
    return folder / "plain.gguf"


def _quantize(weights: RandomWeights, plain: Path, target: Path) -> Path:
    """Quantize a file by the engine's own function; return the quantized file."""
    build = build_of(MAKER, weights.release)
    calls = load(library_folder(MAKER, weights.release, build), build).calls
    parameters = calls.llama_model_quantize_default_params()
    parameters.ftype = _FTYPE_NUMBERS[weights.file_type]
    parameters.nthread = 0
    messages.clear()
    status = calls.llama_model_quantize(
        str(plain).encode(), str(target).encode(), ctypes.addressof(parameters)
    )
    if status:
        raise EvidenceError(
            f"llama.cpp does not store the weights as {weights.file_type}: "
            f"{'; '.join(messages[-2:]) or 'no reason'}",
            remedy="Choose another file_type",
        )
    return target
