"""OpenVINO through its Python binding: a GGUF file's model, paged as its own pipeline runs it.

`LLMPipeline` converts the model's attention to PagedAttention, with or without speculation, and
calls `InferRequest.infer`. This module does the same with its own KV cache blocks: a forward writes
N new positions after L cached ones, and the next forward overwrites them, so that each starts with
L. If L is not a multiple of a block, each forward requantises the 8-bit keys of the last block, as
in the pipeline; latency does not depend on it.
"""

import fcntl
import re
import shutil
import tempfile
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import IO, Any

from msgspec import Struct

from nearfree.backends.builds import Build
from nearfree.engines.library import (
    ANEW,
    installed,
    mapped_sha256,
    recorded_files,
    refuse_variables,
)
from nearfree.engines.openvino_properties import REPORTED_PROPERTIES, properties
from nearfree.errors import EvidenceError, LockError
from nearfree.gguf.header import GgufHeader
from nearfree.sources.fetching.cache import default_cache

PACKAGES = ("openvino", "openvino-genai", "openvino-tokenizers")
ARCHITECTURES = ("llama", "qwen2", "qwen3")
"""Architectures that its GGUF reader supports; others raise `Unsupported model architecture`:
create_from_gguf, src/cpp/src/gguf_utils/gguf_modeling.cpp of openvino.genai."""
TYPES = frozenset({"f32", "f16", "q8_0", "q4_0", "q4_1", "q4_k", "q6_k"})
"""Formats that it reads, tested with a file of each. bf16 raises `Unsupported quantization type`,
q5_k `gguf_tensor_to_f16 failed`."""
_CHANGING_VARIABLES = re.compile(r"(?:OV|OPENVINO|ONEDNN|DNNL)_\w+")
"""Environment variables that the libraries read."""
_NO_DEVICE = "NONE"
"""A device that does not exist: the reader writes the model before it looks up the device."""
_MODEL = "openvino_model.xml"
_FOLDER, _LOCK_FILE = "openvino-", "held"
"""Prefix of a model's folder, and its file that is locked while the process lives."""
_LIBRARY = re.compile(r"\.so(?:\.\d+)*$")


class Runtime(Struct, frozen=True, kw_only=True):
    """The loaded binding: its modules, and the packages' folders."""

    openvino: Any
    genai: Any
    numpy: Any
    folders: tuple[Path, ...]

    @property
    def files(self) -> dict[str, str]:
        """The SHA-256 of each file of the packages that is mapped in this process, by name."""
        return {name: sha for folder in self.folders for name, sha in mapped_sha256(folder).items()}


_loaded: dict[str, Runtime] = {}


def load(release: str, build: Build) -> Runtime:
    """Load the packages of a release after comparing each file with its installation's record.

    Raises
    ------
    LockError
        A package is not installed in this interpreter, has another release, or was changed.
    EvidenceError
        An environment variable changes what they run.
    """
    if release not in _loaded:
        refuse_variables(_CHANGING_VARIABLES, "OpenVINO")
        folders = package_folders(release, build)
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


def package_folders(release: str, build: Build) -> tuple[Path, ...]:
    """Return the folders of a release's packages, if they hold exactly the installed code.

    Raises
    ------
    LockError
        As `load`.
    """
    remedy = ANEW.format(build.environment)
    all_folders: set[Path] = set()
    for package in PACKAGES:
        version = installed(package, build.environment).version
        if package == build.package and version != release:
            raise LockError(f"{package} {version} is not {release}", remedy=remedy)
        recorded_paths = recorded_files(package, build.environment, _is_code)
        folders = {path.parent for path in recorded_paths if _LIBRARY.search(path.name)}
        libraries = {p for folder in folders for p in folder.iterdir() if _LIBRARY.search(p.name)}
        extra = libraries - {*recorded_paths}
        if extra or not folders:
            name = min(extra).name if extra else "no library"
            raise LockError(f"{name} is not what {package} installed", remedy=remedy)
        all_folders |= folders
    return tuple(sorted(all_folders))


def _is_code(name: str) -> bool:
    return _LIBRARY.search(name) is not None or name.endswith(".py")


def refuse_unread(header: GgufHeader) -> None:
    """Raise EvidenceError for a file that OpenVINO's GGUF reader does not read."""
    if header.architecture not in ARCHITECTURES:
        raise EvidenceError(
            f"OpenVINO reads no GGUF file of the architecture {header.architecture!r:.40} "
            f"({header.file})",
            remedy=f"It reads {', '.join(ARCHITECTURES)}; measure another one in llama_cpp",
        )
    formats = sorted({tensor.type.name for tensor in header.tensors} - TYPES)
    if formats:
        raise EvidenceError(
            f"OpenVINO reads no GGUF weights in {', '.join(formats)} ({header.file})",
            remedy=f"It reads {', '.join(sorted(TYPES))}; measure this file in llama_cpp",
        )


class Converted:
    """A GGUF file's model as OpenVINO's own reader writes it, with its tokenizer if it has one.

    They are in a temporary folder, which is removed with this object or, if its process was killed,
    by the next one.
    """

    def __init__(self, runtime: Runtime, path: Path) -> None:
        """Let OpenVINO's reader write a file's model.

        Raises
        ------
        EvidenceError
            The reader does not load the file; the message quotes its error.
        """
        self.file = path
        cache = default_cache().absolute()
        cache.mkdir(parents=True, exist_ok=True)
        self._folder, self._lock = _held_folder(cache)
        self.folder = Path(self._folder.name)
        self.xml = self.folder / _MODEL
        link = self.folder / "model.gguf"  # the reader writes next to the file that it reads
        link.symlink_to(path.absolute())
        reason = "no reason"
        try:
            runtime.genai.LLMPipeline(str(link), _NO_DEVICE, enable_save_ov_model=True)
        except Exception as error:  # noqa: BLE001 (the binding raises exceptions of any class)
            reason = last_line(error)
        if not self.xml.is_file():
            raise EvidenceError(
                f"OpenVINO does not load {path.name}: {reason}",
                remedy="Give a GGUF file of a text model that this release knows",
            )


def _held_folder(cache: Path) -> "tuple[tempfile.TemporaryDirectory[str], IO[str]]":
    """Return a new folder and its locked file; remove folders whose lock no process holds.

    Only one process does so at a time, so that none finds a new folder before it is locked. On a
    file system without locks nothing is removed.
    """
    with (cache / "openvino.lock").open("w") as lock:
        with suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        for lock_path in cache.glob(f"{_FOLDER}*/{_LOCK_FILE}"):
            with suppress(OSError), lock_path.open("r+") as held:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(lock_path.parent, ignore_errors=True)
        folder = tempfile.TemporaryDirectory(dir=cache, prefix=_FOLDER)
        held_lock = Path(folder.name, _LOCK_FILE).open("w")  # noqa: SIM115 (open as long as the model is)
        with suppress(OSError):
            fcntl.flock(held_lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return folder, held_lock


def last_line(error: BaseException) -> str:
    """Return the last line of the binding's error, which is the reason."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines or ["no reason"])[-1][:200]


class Compiled:
    """A model compiled for this CPU, with paged attention."""

    def __init__(
        self, runtime: Runtime, converted: Converted, threads: int, kv_dtype: str | None = None
    ) -> None:
        offline = import_module("openvino._offline_transformations")
        core = runtime.openvino.Core()
        try:
            model = core.read_model(str(converted.xml))
            offline.paged_attention_transformation(model)
            self.model = core.compile_model(model, "CPU", properties(threads, kv_dtype))
        except Exception as error:
            raise EvidenceError(
                f"OpenVINO does not compile the model: {last_line(error)}",
                remedy="Give a GGUF file of a text model that this release knows",
            ) from error
        self.runtime = runtime
        reported = {
            name: _property_text(self.model.get_property(name)) for name in REPORTED_PROPERTIES
        }
        for name in ("FULL_DEVICE_NAME", "OPTIMIZATION_CAPABILITIES"):
            reported[name] = _property_text(core.get_property("CPU", name))
        version = runtime.openvino.get_version()
        self.system_info = " | ".join(
            [f"OpenVINO {version}", *(f"{name}: {value}" for name, value in reported.items())]
        )


def _property_text(value: Any) -> str:
    """Return a property as text."""
    if isinstance(value, (list, tuple, set)):
        return " ".join(sorted(map(str, value)))
    match = re.fullmatch(r"<Type: '(\w+)'>", str(value))
    return match[1] if match else str(value).strip()
