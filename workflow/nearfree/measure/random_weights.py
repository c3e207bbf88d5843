"""Random weights of a model's shape as a GGUF file, stored in a format by the engine itself."""

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
"""The engine whose releases weights.yaml names, whatever engine runs the file."""
_PLAIN = ("f32", "f16", "bf16")
"""What is written as it is, without the engine."""
_NUMBERS = {name.lower(): number for number, name in FILE_TYPES.items()}
"""`llama_ftype` has the numbers of GGUF's file types: include/llama.h of 3.22.1, line 117."""


def ensure_random(engine: str, weights: RandomWeights) -> Path:
    """Make sure that random weights are there, and return their file.

    Raises
    ------
    ConfigError
        The model is none of which a file is written, or the package `gguf` is missing.
    EvidenceError
        The engine does not store them so.
    """
    path = random_path(weights.digest)
    if path.is_file():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        plain = weights.file_type if weights.file_type in _PLAIN else "bf16"
        made = _written(Path(folder), weights, plain)
        if plain != weights.file_type:
            made = _stored(engine, weights, made, Path(folder, "stored.gguf"))
        made.replace(path)
    return path


def _written(folder: Path, weights: RandomWeights, plain: str) -> Path:
    """Write weights without scales."""
    from nearfree.models.gguf_weights import write_random_gguf

    config = folder / "config.json"
    config.write_bytes(json.encode(weights.config))
    write_random_gguf(config, folder / "plain.gguf", type_=plain, seed=weights.seed)
    return folder / "plain.gguf"


def _stored(engine: str, weights: RandomWeights, plain: Path, to: Path) -> Path:
    """Let the engine's own function store weights in a format."""
    build = build_of(engine, weights.release)
    calls = load(library_folder(engine, weights.release, build), build).calls
    parameters = calls.llama_model_quantize_default_params()
    parameters.ftype = _NUMBERS[weights.file_type]
    parameters.nthread = 0
    messages.clear()
    status = calls.llama_model_quantize(
        str(plain).encode(), str(to).encode(), ctypes.addressof(parameters)
    )
    if status:
        raise EvidenceError(
            f"llama.cpp does not store the weights as {weights.file_type}: "
            f"{'; '.join(messages[-2:]) or 'no reason'}",
            remedy="Choose another file_type",
        )
    return to
