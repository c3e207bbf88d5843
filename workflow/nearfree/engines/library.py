"""llama.cpp's libraries: compared with their lock, then loaded, once a process.

Nothing is loaded that differs from what was pinned by a single byte: a prebuilt library from
envs/engines.lock, a compiled one from the record that its installation left.
"""

import ctypes
import hashlib
import os
import re
from importlib import metadata
from pathlib import Path

from msgspec import Struct

from nearfree.backends.builds import Build
from nearfree.engines.abi import Calls
from nearfree.errors import EvidenceError, LockError

_BESIDE = "lib"
"""Where a build leaves copies of the package's libraries, too."""
_ORDER = ("libggml-base", "libggml-cpu", "libggml", "libllama")
"""Each library needs those before it."""
_CHANGING = re.compile(r"GGML_\w+|LLAMA_(?:ATTN|GRAPH|KV|BATCH|SET_ROWS|TRACE)\w*")
"""Variables that the libraries read. GGML_BACKEND_PATH names one more library, of any content."""
_QUIET = 4
"""Messages below this level are not printed: GGML_LOG_LEVEL_ERROR, ggml/include/ggml.h of 3.22.1,
line 657."""


class Library(Struct, frozen=True, kw_only=True):
    """What was loaded: its calls, and what it says of itself."""

    calls: Calls
    system_info: str
    """CPU features and options, as `llama_print_system_info` tells them."""
    files: dict[str, str]
    """The SHA-256 of each file that this process holds of it, by name."""


def installed_folder(build: Build) -> Path:
    """Return the folder of a build's compiled libraries, each compared with its record.

    Raises
    ------
    LockError
        The package is not installed in this interpreter, or a library was changed or added.
    """
    try:
        distribution = metadata.distribution(build.package)
    except metadata.PackageNotFoundError:
        raise LockError(
            f"{build.package} is not installed in this interpreter",
            remedy=f"Run `nearfree environment make {build.environment}`",
        ) from None
    again = f"Delete the environment {build.environment} and make it again"
    folder, held = None, set()
    for name, digest in recorded(distribution):
        if Path(name).parts[0] == _BESIDE or not _is_library(Path(name)):
            continue
        path = Path(str(distribution.locate_file(name)))
        if not path.is_file() or recorded_sha256(path) != digest:
            raise LockError(f"{name} is not what {build.package} installed", remedy=again)
        folder = path.parent
        held.add(path)
    if folder is None:
        raise LockError(f"{build.package} installed no library of llama.cpp", remedy=again)
    others = sorted(set(filter(_is_library, folder.iterdir())) - held)
    if others:
        raise LockError(f"{others[0].name} is not what {build.package} installed", remedy=again)
    return folder


def recorded(distribution: metadata.Distribution) -> list[tuple[str, bytes]]:
    """Return what an installation recorded: each file's name and SHA-256, in base64.

    `Distribution.files` leaves out what is missing from Python 3.12 on, and so does the backport
    `importlib_metadata`, which answers for the standard library once anything has imported it.
    """
    import csv

    rows = csv.reader((distribution.read_text("RECORD") or "").splitlines())
    return [
        (name, digest.removeprefix("sha256=").encode())
        for name, digest, *_ in (row for row in rows if len(row) > 1 and row[0])
    ]


def _is_library(path: Path) -> bool:
    """Return whether a file's name is that of a library of llama.cpp."""
    return re.fullmatch(r"lib(?:ggml|llama)[\w.-]*\.so[\d.]*", path.name) is not None


def check_prebuilt(build: Build, folder: Path) -> None:
    """Raise LockError unless a folder holds a build's libraries, byte for byte, and none else."""
    names = {Path(path).name: digest for path, digest in build.libraries.items()}
    there = {path.name for path in folder.glob("*.so*")}
    wrong = sorted(names.keys() ^ there)
    wrong += [
        name for name in sorted(names.keys() & there) if sha256_of(folder / name) != names[name]
    ]
    if wrong:
        raise LockError(
            f"{build.package} is not what envs/engines.lock pins: {', '.join(wrong[:3])}",
            remedy="Delete the folder and run `nearfree fetch` again",
        )


_loaded: dict[Path, Library] = {}


def load(folder: Path, build: Build) -> Library:
    """Return a build's libraries, loaded from a folder that was checked.

    Raises
    ------
    EvidenceError
        They are for another machine or system library, or of another release than their header; or
        this process has loaded another build: their symbols would mix; or a variable of the
        environment changes what they run.
    """
    if folder not in _loaded:
        if _loaded:
            raise EvidenceError(
                f"another build than {build.package} was loaded by this process",
                remedy="Measure each release by a command of its own",
            )
        _refuse_variables()
        _loaded[folder] = _load(build, folder)
    return _loaded[folder]


def _refuse_variables() -> None:
    """Raise EvidenceError where a variable names another library, or changes a forward."""
    found = sorted(filter(_CHANGING.fullmatch, os.environ))
    if found:
        raise EvidenceError(
            f"{found[0]} is set, which changes what llama.cpp runs", remedy="Unset it"
        )


def _load(build: Build, folder: Path) -> Library:
    try:
        opened = [
            ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL) for path in _in_order(build, folder)
        ]
    except OSError as error:
        raise EvidenceError(
            f"{build.package} does not run on this machine: {error}",
            remedy="It is for Linux on x86-64 with glibc 2.34 or newer; build it here with "
            "`nearfree environment make llama_cpp` and name that release",
        ) from error
    calls = Calls(opened[::-1], build.abi.structs, build.abi.functions)
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
    return Library(calls=calls, system_info=info, files=held(folder))


def _in_order(build: Build, folder: Path) -> list[Path]:
    """Return what to open: of a prebuilt library the CPU's variant is left to itself."""
    paths = []
    for stem in _ORDER:
        if stem == "libggml-cpu" and build.prebuilt:
            continue
        found = [p for p in sorted(folder.glob(f"{stem}*.so*")) if _stem(p) == stem]
        paths += found[:1]
    return paths


def _stem(path: Path) -> str:
    return re.split(r"\.", path.name, maxsplit=1)[0]


def held(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of the files of a folder that this process has mapped, by name."""
    folder = folder.resolve()  # as the system names what it has mapped
    mapped = Path("/proc/self/maps").read_text(errors="replace").splitlines()
    paths = {Path(words[5]) for line in mapped if len(words := line.split(maxsplit=5)) == 6}
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
"""What the library said at the level of errors, newest last."""


def _keep(level: int, text: bytes, _data: object) -> None:
    if level == _QUIET:
        messages.append(text.decode(errors="replace").strip())
        del messages[:-20]


_log = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(_keep)
"""What the library calls with each message; it must live as long as the library."""
