"""The dumper: NVIDIA's cuobjdump, as Triton's wheel carries it, and what it lists of a binary.

It is native code that reads a foreign file: it runs as a process of its own that may do little
(`confined.py`), in a folder of its own, without an environment, and only if it is the very file
that envs/dumper.lock pins. It sees no file whose headers lie.
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
"""Seconds by the clock."""
MEMORY = 2**30
"""Bytes of address space beside twice the binary's own."""
_MESSAGE = 200


class Dumper(Struct, frozen=True):
    """The program that lists kernels: which file of which release, its digest and its bytes."""

    name: str
    sha256: str
    raw: bytes


def pinned_dumper(*, cache: Cache, offline: bool = False, lock: Path = LOCK) -> Dumper:
    """Return the dumper that the lock pins.

    Raises
    ------
    ConfigError
        There is no such lock, or it pins another number of files than one.
    SourceError
        The file is not to be had, or is not the pinned one.
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


def list_functions(raw: bytes, dumper: Dumper, what: str) -> str:
    """Return what the dumper lists of a binary's device functions.

    Parameters
    ----------
    raw
        The binary: an ELF file for x86-64, or device code.
    what
        What the binary is called in a refusal.

    Raises
    ------
    SourceError
        The binary is refused, before or by the dumper, or this machine cannot run it.
    """
    check_elf(raw, what)
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        raise SourceError(
            "binaries are listed on Linux on x86-64 alone",
            remedy="Run this there, or rest on what is on record with --offline",
        )
    with TemporaryDirectory() as folder:
        program, binary, listing = (Path(folder, name) for name in ("dumper", "binary", "listing"))
        program.write_bytes(dumper.raw)
        program.chmod(0o500)
        binary.write_bytes(raw)
        binary.chmod(0o400)
        memory = MEMORY + 2 * len(raw)
        command = [str(memory), str(program), "-res-usage", str(binary)]
        with listing.open("wb") as output:
            try:
                done = subprocess.run(
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
                raise _refused(what, type(error).__name__) from error
        said = done.stderr.decode(errors="replace").replace(folder, "").strip()
        if done.returncode or said:
            raise _refused(what, printable(said[-_MESSAGE:]) or f"exit code {done.returncode}")
        try:
            return listing.read_text("ascii")
        except UnicodeDecodeError as error:
            raise _refused(what, "its listing is no plain text") from error


def _refused(what: str, why: str) -> SourceError:
    return SourceError(
        f"{what} is refused: the dumper stops: {why}",
        remedy="Nothing of it is recorded; fetch it anew, or report it",
    )
