"""OpenVINO driven by its Python binding: a GGUF file's model, paged as its own pipeline runs it.

`LLMPipeline` turns the model's attention into PagedAttention, plain or speculating, and calls
`InferRequest.infer`. So does this, with blocks of the KV cache of its own: a forward over N new
positions writes behind L cached ones, and the next one writes over them, so that each finds L.
Where L is no multiple of a block, 8-bit keys of the last block are rounded anew by each forward,
as in the pipeline; no time depends on it.
"""

import fcntl
import os
import re
import shutil
import tempfile
from contextlib import suppress
from importlib import import_module, metadata
from pathlib import Path
from typing import IO, Any

from msgspec import Struct

from nearfree.backends.builds import Build
from nearfree.engines.library import held, recorded, recorded_sha256
from nearfree.errors import EvidenceError, LockError
from nearfree.gguf.header import GgufHeader
from nearfree.sources.fetching.cache import default_cache

PACKAGES = ("openvino", "openvino-genai", "openvino-tokenizers")
ARCHITECTURES = ("llama", "qwen2", "qwen3")
"""What its GGUF reader builds a model of; it says of another one `Unsupported model architecture`:
create_from_gguf, src/cpp/src/gguf_utils/gguf_modeling.cpp of openvino.genai."""
TYPES = frozenset({"f32", "f16", "q8_0", "q4_0", "q4_1", "q4_k", "q6_k"})
"""Formats that it reads, tried with a file of each; of bf16 it says `Unsupported quantization
type`, of q5_k `gguf_tensor_to_f16 failed`."""
TOLD = (
    *("INFERENCE_PRECISION_HINT", "KEY_CACHE_PRECISION", "VALUE_CACHE_PRECISION"),
    *("DYNAMIC_QUANTIZATION_GROUP_SIZE", "INFERENCE_NUM_THREADS", "NUM_STREAMS"),
    *("ENABLE_CPU_PINNING", "ENABLE_HYPER_THREADING", "RUNTIME_REQUIREMENTS"),
)
"""Properties of a compiled model that say what its forward runs."""
_CHANGING = re.compile(r"(?:OV|OPENVINO|ONEDNN|DNNL)_\w+")
"""Variables that the libraries read."""
_NO_DEVICE = "NONE"
"""A device that there is not: a model is written before its device is asked for."""
_MODEL = "openvino_model.xml"
_FOLDER, _HELD = "openvino-", "held"
"""How the folder of a model begins, and the file in it that is locked while its process lives."""
_LIBRARY = re.compile(r"\.so(?:\.\d+)*$")


class Runtime(Struct, frozen=True, kw_only=True):
    """What was loaded: the binding's modules, and the packages' folders."""

    openvino: Any
    genai: Any
    numpy: Any
    folders: tuple[Path, ...]

    @property
    def files(self) -> dict[str, str]:
        """The SHA-256 of each file of the packages that this process has mapped, by name."""
        return {name: sha for each in self.folders for name, sha in held(each).items()}


_loaded: dict[str, Runtime] = {}


def load(release: str, build: Build) -> Runtime:
    """Load the packages of a release, each file compared with what its installation recorded.

    Raises
    ------
    LockError
        They are not installed in this interpreter, are of another release, or were changed.
    EvidenceError
        A variable of the environment changes what they run.
    """
    if release not in _loaded:
        found = sorted(filter(_CHANGING.fullmatch, os.environ))
        if found:
            raise EvidenceError(
                f"{found[0]} is set, which changes what OpenVINO runs", remedy="Unset it"
            )
        folders = checked(release, build)
        try:
            _loaded[release] = Runtime(
                openvino=import_module("openvino"),
                genai=import_module("openvino_genai"),
                numpy=import_module("numpy"),
                folders=folders,
            )
        except ImportError as error:
            raise EvidenceError(
                f"{build.package} does not run on this machine: {error}",
                remedy="It is for Linux on x86-64 with glibc 2.28 or newer",
            ) from error
    return _loaded[release]


def checked(release: str, build: Build) -> tuple[Path, ...]:
    """Return the folders of a release's packages, whose code is what was installed, and no more.

    Raises
    ------
    LockError
        As `load`.
    """
    again = f"Delete the environment {build.environment} and make it again"
    folders: set[Path] = set()
    for package in PACKAGES:
        try:
            distribution = metadata.distribution(package)
        except metadata.PackageNotFoundError:
            raise LockError(
                f"{package} is not installed in this interpreter",
                remedy=f"Run `nearfree environment make {build.environment}`",
            ) from None
        if package == build.package and distribution.version != release:
            raise LockError(f"{package} {distribution.version} is not {release}", remedy=again)
        folders |= _compared(distribution, package, again)
    return tuple(sorted(folders))


def _compared(distribution: metadata.Distribution, package: str, again: str) -> set[Path]:
    """Return the folders with a package's libraries."""
    known: set[Path] = set()
    for name, digest in recorded(distribution):
        if not (_LIBRARY.search(name) or name.endswith(".py")):
            continue
        path = Path(str(distribution.locate_file(name)))
        if not path.is_file() or recorded_sha256(path) != digest:
            raise LockError(f"{name} is not what {package} installed", remedy=again)
        known.add(path)
    folders = {path.parent for path in known if _LIBRARY.search(path.name)}
    more = {p for folder in folders for p in folder.iterdir() if _LIBRARY.search(p.name)} - known
    if more or not folders:
        named = min(more).name if more else "no library"
        raise LockError(f"{named} is not what {package} installed", remedy=again)
    return folders


def refuse_unread(header: GgufHeader) -> None:
    """Raise EvidenceError for a file that OpenVINO's GGUF reader does not read."""
    if header.architecture not in ARCHITECTURES:
        raise EvidenceError(
            f"OpenVINO reads no GGUF file of the architecture {header.architecture!r:.40} "
            f"({header.file})",
            remedy=f"It reads {', '.join(ARCHITECTURES)}; measure another one in llama_cpp",
        )
    unread = sorted({each.type.name for each in header.tensors} - TYPES)
    if unread:
        raise EvidenceError(
            f"OpenVINO reads no GGUF weights in {', '.join(unread)} ({header.file})",
            remedy=f"It reads {', '.join(sorted(TYPES))}; measure this file in llama_cpp",
        )


class Converted:
    """A GGUF file's model as OpenVINO's own reader writes it, with its tokenizer if it has one.

    They lie in a folder of their own, which is removed with this object, or by the next one where
    its process was killed.
    """

    def __init__(self, runtime: Runtime, path: Path) -> None:
        """Let the reader write a file's model.

        Raises
        ------
        EvidenceError
            It does not take the file; what it says stands in the message.
        """
        under = default_cache().absolute()
        under.mkdir(parents=True, exist_ok=True)
        self._folder, self._held = _made(under)
        self.folder = Path(self._folder.name)
        self.xml = self.folder / _MODEL
        beside = self.folder / "model.gguf"  # what is written lies beside what is read
        beside.symlink_to(path.absolute())
        said = "no reason"
        try:
            runtime.genai.LLMPipeline(str(beside), _NO_DEVICE, enable_save_ov_model=True)
        except Exception as error:  # noqa: BLE001 (the binding raises what it likes)
            said = last_line(error)
        if not self.xml.is_file():
            raise EvidenceError(
                f"OpenVINO does not load {path.name}: {said}",
                remedy="Give a GGUF file of a text model that this release knows",
            )


def _made(under: Path) -> "tuple[tempfile.TemporaryDirectory[str], IO[str]]":
    """Return a new folder and what holds it; those that no process holds any more are removed.

    One process at a time does so, so that none finds a folder that is not held yet. Where the file
    system has no locks nothing is removed.
    """
    with (under / "openvino.lock").open("w") as alone:
        with suppress(OSError):
            fcntl.flock(alone, fcntl.LOCK_EX)
        for left in under.glob(f"{_FOLDER}*/{_HELD}"):
            with suppress(OSError), left.open("r+") as held:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left.parent, ignore_errors=True)
        folder = tempfile.TemporaryDirectory(dir=under, prefix=_FOLDER)
        holding = Path(folder.name, _HELD).open("w")  # noqa: SIM115 (open as long as the model is)
        with suppress(OSError):
            fcntl.flock(holding, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return folder, holding


def last_line(error: BaseException) -> str:
    """Return the last line of what the binding says, which is its reason."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines or ["no reason"])[-1][:200]


def properties(threads: int) -> dict[str, Any]:
    """Return with which properties a model is compiled; all others are the release's defaults."""
    return {"INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1}


class Compiled:
    """A model that is compiled for this CPU, with paged attention."""

    def __init__(self, runtime: Runtime, converted: Converted, threads: int) -> None:
        offline = import_module("openvino._offline_transformations")
        core = runtime.openvino.Core()
        try:
            model = core.read_model(str(converted.xml))
            offline.paged_attention_transformation(model)
            self.model = core.compile_model(model, "CPU", properties(threads))
        except Exception as error:
            raise EvidenceError(
                f"OpenVINO does not compile the model: {last_line(error)}",
                remedy="Give a GGUF file of a text model that this release knows",
            ) from error
        self.runtime = runtime
        told = {name: _plain(self.model.get_property(name)) for name in TOLD}
        for name in ("FULL_DEVICE_NAME", "OPTIMIZATION_CAPABILITIES"):
            told[name] = _plain(core.get_property("CPU", name))
        version = runtime.openvino.get_version()
        self.system_info = " | ".join(
            [f"OpenVINO {version}", *(f"{name}: {value}" for name, value in told.items())]
        )


def _plain(value: Any) -> str:
    """Return a property as text."""
    if isinstance(value, (list, tuple, set)):
        return " ".join(sorted(map(str, value)))
    named = re.fullmatch(r"<Type: '(\w+)'>", str(value))
    return named[1] if named else str(value).strip()
