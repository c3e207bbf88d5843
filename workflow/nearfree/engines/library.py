"""llama.cpp's libraries: compared with their lock, then loaded, once per process.

A library is loaded only if it is byte for byte the pinned one: a prebuilt library by
envs/engines.lock, a compiled one by its installation's record.
"""

import ctypes
import hashlib
import os
import re
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

from msgspec import Struct

from nearfree.backends.builds import Build
from nearfree.engines.abi import Calls
from nearfree.errors import EvidenceError, LockError

ANEW = "Delete the environment {} and make it again"
"""The remedy where an installation differs from its record."""
_COPIES_FOLDER = "lib"
"""The folder in which a build leaves further copies of the package's libraries."""
_ORDER = ("libggml-base", "libggml-cpu", "libggml", "libllama")
"""Each library needs those before it."""
_CHANGING_VARIABLES = re.compile(r"GGML_\w+|LLAMA_(?:ATTN|GRAPH|KV|BATCH|SET_ROWS|TRACE)\w*")
"""Environment variables that the libraries read. GGML_BACKEND_PATH names a further library."""
_ERROR_LEVEL = 4
"""The level of messages that are kept: GGML_LOG_LEVEL_ERROR, ggml/include/ggml.h of 3.22.1, line
657."""


class Library(Struct, frozen=True, kw_only=True):
    """The loaded libraries: their functions, and their description of themselves."""

    calls: Calls
    system_info: str
    """CPU features and options, from `llama_print_system_info`."""
    files: dict[str, str]
    """The SHA-256 of each of its files that is mapped in this process, by name."""


def installed_folder(build: Build) -> Path:
    """Return the folder of a build's compiled libraries, after comparing each with its record.

    Raises
    ------
    LockError
        The package is not installed in this interpreter, or a library was changed or added.
    """
    recorded_paths = recorded_files(
        build.package,
        build.environment,
        lambda name: Path(name).parts[0] != _COPIES_FOLDER and _is_library(Path(name)),
    )
    remedy = ANEW.format(build.environment)
    if not recorded_paths:
        raise LockError(f"{build.package} installed no library of llama.cpp", remedy=remedy)
    folder = recorded_paths[-1].parent
    extra = sorted(set(filter(_is_library, folder.iterdir())) - {*recorded_paths})
    if extra:
        raise LockError(f"{extra[0].name} is not what {build.package} installed", remedy=remedy)
    return folder


def installed(package: str, environment: str) -> metadata.Distribution:
    """Return a package of an environment; LockError if this interpreter does not have it."""
    try:
        return metadata.distribution(package)
    except metadata.PackageNotFoundError:
        raise LockError(
            f"{package} is not installed in this interpreter",
            remedy=f"Run `nearfree environment make {environment}`",
        ) from None


def recorded_files(package: str, environment: str, chosen: Callable[[str], bool]) -> list[Path]:
    """Return the chosen files of an installation's record; LockError if one of them was changed.

    From Python 3.12 on `Distribution.files` omits missing files. So does the backport
    `importlib_metadata`, which replaces the standard library's once any package imports it.
    """
    import csv

    paths, distribution = [], installed(package, environment)
    rows = csv.reader((distribution.read_text("RECORD") or "").splitlines())
    for name, digest, *_ in (row for row in rows if len(row) > 1 and row[0] and chosen(row[0])):
        path = Path(str(distribution.locate_file(name)))
        if not path.is_file() or recorded_sha256(path) != digest.removeprefix("sha256=").encode():
            raise LockError(
                f"{name} is not what {package} installed", remedy=ANEW.format(environment)
            )
        paths.append(path)
    return paths


def _is_library(path: Path) -> bool:
    """Return whether a file has the name of a llama.cpp library."""
    return re.fullmatch(r"lib(?:ggml|llama)[\w.-]*\.so[\d.]*", path.name) is not None


def check_prebuilt(build: Build, folder: Path) -> None:
    """Raise LockError unless a folder holds exactly a build's libraries, byte for byte."""
    names = {Path(path).name: digest for path, digest in build.libraries.items()}
    present = {path.name for path in folder.glob("*.so*")}
    differing = sorted(names.keys() ^ present)
    differing += [
        name for name in sorted(names.keys() & present) if sha256_of(folder / name) != names[name]
    ]
    if differing:
        raise LockError(
            f"{build.package} is not what envs/engines.lock pins: {', '.join(differing[:3])}",
            remedy="Delete the folder and run `nearfree fetch` again",
        )


_loaded: dict[Path, Library] = {}


def load(folder: Path, build: Build) -> Library:
    """Return a build's libraries, loaded from a checked folder.

    Raises
    ------
    EvidenceError
        The libraries are for another machine or system library, or of another release than their
        header; this process has loaded another build, whose symbols would mix with them; or an
        environment variable changes what they run.
    """
    if folder not in _loaded:
        if _loaded:
            raise EvidenceError(
                f"another build than {build.package} was loaded by this process",
                remedy="Measure each release by a command of its own",
            )
        refuse_variables(_CHANGING_VARIABLES, "llama.cpp")
        _loaded[folder] = _load(build, folder)
    return _loaded[folder]


def refuse_variables(changing: re.Pattern[str], engine: str) -> None:
    """Raise EvidenceError if an environment variable adds a library or changes a forward."""
    names = sorted(filter(changing.fullmatch, os.environ))
    if names:
        raise EvidenceError(
            f"{names[0]} is set, which changes what {engine} runs", remedy="Unset it"
        )


def _load(build: Build, folder: Path) -> Library:
    try:
        libraries = [
            ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL) for path in _in_order(build, folder)
        ]
    except OSError as error:
        raise EvidenceError(
            f"{build.package} does not run on this machine: {error}",
            remedy="It is for Linux on x86-64 with glibc 2.34 or newer; build it here with "
            "`nearfree environment make llama_cpp` and name that release",
        ) from error
    calls = Calls(libraries[::-1], build.abi.structs, build.abi.functions)
    calls.llama_log_set(ctypes.cast(_log, ctypes.c_void_p), None)
    if build.prebuilt:
        calls.ggml_backend_load_all_from_path(str(folder).encode())
    calls.llama_backend_init()
    if not calls.ggml_backend_reg_count():
        raise EvidenceError(
            f"{build.package} has no library for this CPU",
            remedy="Build it here with `nearfree environment make llama_cpp`",
        )
    info = ctypes.string_at(calls.llama_print_system_info()).decode(errors="replace").strip()
    return Library(calls=calls, system_info=info, files=mapped_sha256(folder))


def _in_order(build: Build, folder: Path) -> list[Path]:
    """Return the libraries to open; prebuilt ones choose the CPU's variant themselves."""
    paths = []
    for stem in _ORDER:
        if stem == "libggml-cpu" and build.prebuilt:
            continue
        matches = [p for p in sorted(folder.glob(f"{stem}.*")) if ".so" in p.name]
        paths += matches[:1]
    return paths


def mapped_sha256(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of the files of a folder that are mapped in this process, by name."""
    folder = folder.resolve()  # /proc/self/maps has resolved paths
    lines = Path("/proc/self/maps").read_text(errors="replace").splitlines()
    paths = {Path(words[5]) for line in lines if len(words := line.split(maxsplit=5)) == 6}
    names = {path.name for path in paths if path.parent == folder}
    return {name: sha256_of(folder / name) for name in sorted(names)}


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def recorded_sha256(path: Path) -> bytes:
    """Return a file's SHA-256 as an installation's record writes it: in base64, unpadded."""
    import base64

    return base64.urlsafe_b64encode(bytes.fromhex(sha256_of(path))).rstrip(b"=")


messages: list[str] = []
"""The library's last error messages, newest last."""


def _keep(level: int, text: bytes, _data: object) -> None:
    if level == _ERROR_LEVEL:
        messages.append(text.decode(errors="replace").strip())
        del messages[:-20]


_log = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(_keep)
"""The library's log callback; it must live as long as the library."""
