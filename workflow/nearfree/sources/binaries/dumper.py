"""The dumper: NVIDIA's cuobjdump from Triton's wheel, which lists a binary's device functions.

It is native code that reads an untrusted file. It runs confined (`confined.py`) as a process of its
own, in a folder of its own, without environment variables, and only if it is the exact file that
envs/dumper.lock pins. It reads no file whose ELF headers are inconsistent.
"""

import platform
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
from msgspec import Struct

from nearfree.backends.environments.lock import FOLDER
from nearfree.errors import ConfigError, SourceError, printable
from nearfree.log.line import sha256
from nearfree.sources.binaries import confined
from nearfree.sources.binaries.elf import check_elf
from nearfree.sources.fetching.cache import Cache
from nearfree.sources.fetching.fetch import fetch

LOCK = FOLDER / "dumper.lock"
TIMEOUT_S = 300
"""Limit of wall time, in seconds."""
MEMORY_BYTES = 2**30
"""Address space in bytes, in addition to twice the binary's size."""
_MESSAGE_CHARACTERS = 200


class Dumper(Struct, frozen=True):
    """The program that lists kernels: its release and path, its digest and its bytes."""

    name: str
    sha256: str
    raw: bytes


def pinned_dumper(*, cache: Cache, offline: bool = False, lock: Path = LOCK) -> Dumper:
    """Return the dumper that the lock pins.

    Raises
    ------
    ConfigError
        There is no such lock, or it does not pin exactly one file.
    SourceError
        The file is not available, or is not the pinned one.
    """
    try:
        pins = msgspec.json.decode(lock.read_bytes(), type=dict[str, dict[str, dict[str, str]]])
        ((package, versions),) = pins.items()
        ((version, files),) = versions.items()
        ((path, digest),) = files.items()
    except (OSError, msgspec.MsgspecError, ValueError) as error:
        raise ConfigError(
            f"{lock} pins no dumper ({type(error).__name__})",
            remedy="Run this in the project's folder, or restore the file",
        ) from error
    raw = fetch(package, version, path.replace(".", r"\."), cache=cache, offline=offline).raw(path)
    if sha256(raw) != digest:
        raise SourceError(
            f"{package} {version}: {path} is not the file that {lock} pins",
            remedy="It was not run; check PIP_INDEX_URL",
        )
    return Dumper(name=f"{package} {version}: {path}", sha256=digest, raw=raw)


def list_functions(raw: bytes, dumper: Dumper, label: str) -> str:
    """Return the dumper's listing of a binary's device functions.

    The binary is an ELF file for x86-64, or device code; messages name it by its `label`.

    Raises
    ------
    SourceError
        The binary is refused before or by the dumper, or this machine cannot run the dumper.
    """
    check_elf(raw, label)
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        raise SourceError(
            "binaries can be listed only on Linux on x86-64",
            remedy="Run this there, or use the recorded listing with --offline",
        )
    with TemporaryDirectory() as folder:
        program, binary, listing = (Path(folder, name) for name in ("dumper", "binary", "listing"))
        program.write_bytes(dumper.raw)
        program.chmod(0o500)
        binary.write_bytes(raw)
        binary.chmod(0o400)
        memory = MEMORY_BYTES + 2 * len(raw)
        command = [str(memory), str(program), "-res-usage", str(binary)]
        with listing.open("wb") as output:
            try:
                process = subprocess.run(
                    [sys.executable, "-I", "-S", confined.__file__, *command],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.PIPE,
                    cwd=folder,
                    env={},
                    timeout=TIMEOUT_S,
                    check=False,
                )
            except (OSError, subprocess.SubprocessError) as error:
                raise _refused(label, type(error).__name__) from error
        error_text = process.stderr.decode(errors="replace").replace(folder, "").strip()
        if process.returncode or error_text:
            raise _refused(
                label,
                printable(error_text[-_MESSAGE_CHARACTERS:]) or f"exit code {process.returncode}",
            )
        try:
            return listing.read_text("ascii")
        except UnicodeDecodeError as error:
            raise _refused(label, "its listing is not plain text") from error


def _refused(label: str, reason: str) -> SourceError:
    return SourceError(
        f"{label} is refused: the dumper fails: {reason}",
        remedy="Nothing of it is recorded; fetch it again, or report it",
    )
