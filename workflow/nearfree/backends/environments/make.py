"""Making an environment from its locks, where it will be used: venvs cannot be moved."""

import fcntl
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from typing import Any

from nearfree.backends.environments.lock import FOLDER, MADE, OWN, Environment
from nearfree.errors import LockError

_LAST = 4
_FOREIGN = ("PYTHONPATH", "PYTHONHOME")
"""Through these pip sees packages that are not the environment's."""
_BUILT = {"FLASH_ATTENTION_FORCE_BUILD": "TRUE"}
"""Without this, flash-attn's build fetches a wheel that no lock covers."""
Say = Callable[[str], None]


def make(environment: Environment, say: Say) -> None:
    """Make sure that an environment is there; return at once if it is complete.

    Of several that ask, one makes it and the others wait. What a killed one left is made anew.

    Raises
    ------
    LockError
        There is no such Python, or pip does not install what the lock pins.
    """
    if environment.complete:
        return
    MADE.mkdir(exist_ok=True)
    with _alone(f"{environment.folder}.flock", environment, say) as held:
        if not environment.complete:
            say(f"{environment.folder}: installing {' and '.join(map(str, environment.locks))}")
            _install(environment, held, say)
            environment.mark.write_bytes(environment.mark_content)


@contextmanager
def _alone(path: str, environment: Environment, say: Say) -> Iterator[int]:
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"{environment.folder}: waiting for another process that installs")
            fcntl.flock(fd, fcntl.LOCK_EX)
        except OSError as error:
            raise LockError(
                f"{path} cannot be locked: {error.strerror}",
                remedy="Keep the project on a file system with locks, such as NFS 4",
            ) from error
        yield fd
    finally:
        os.close(fd)


def _install(environment: Environment, held: int, say: Say) -> None:
    def run(program: str, *words: str, also: int = held) -> None:
        _run(environment, (program, "-m", *words), {held, also})

    run(_python(environment), "venv", "--clear", str(environment.folder))
    python = str(environment.python)
    pip = (python, "pip", "--quiet", "--no-input", "--disable-pip-version-check", "install")
    for options in _steps(environment):
        run(*pip, *options)
    # Builds of two environments write the same files in the project's folder.
    with _alone(str(MADE / "nearfree.flock"), environment, say) as one:
        run(*pip, "--no-deps", "--no-build-isolation", "--editable", ".", also=one)
    run(python, "nearfree", "environment", "check", environment.name)


def _steps(environment: Environment) -> Iterator[Sequence[str]]:
    """Yield pip's options: of a backend all wheels first, since what is built imports them.

    A lock holds all that its packages need. pip is not to look for more: of `pkg[extra]`, which
    no lock names, it would take a newer release than the lock's as soon as there is one.
    """
    locked = ("--no-deps", "--require-hashes")
    if environment.name == OWN:
        base, own = environment.locks
        yield *locked, "-r", str(base)
        yield "-r", str(own)
        return
    (lock,) = environment.locks
    whole = lock.read_text("utf-8")
    built = "|".join(map(re.escape, _resolution()["no-binary"]))
    ready = re.sub(rf"^(?:{built})==.*\n?(?:[ #].*\n?)*", "", whole, flags=re.MULTILINE)
    wheels = environment.folder / "wheels.lock"
    wheels.write_text(ready, "utf-8")
    yield *locked, "--only-binary", ":all:", "-r", str(wheels)
    if ready != whole:
        yield *locked, "--no-build-isolation", "-r", str(lock)


def _resolution() -> Mapping[str, Any]:
    """Return how the backends' locks were resolved."""
    document: dict[str, dict[str, Any]] = tomllib.loads((FOLDER / "uv.toml").read_text("utf-8"))
    return document["pip"]


def _python(environment: Environment) -> str:
    """Return an interpreter of the version that the lock is for, this one if it is.

    A lock without an .in file is for each version that nearfree is for.
    """
    if environment.name == OWN or not (FOLDER / f"{environment.name}.in").exists():
        return sys.executable
    wanted = _resolution()["python-version"]
    this = ".".join(map(str, sys.version_info[:2]))
    return sys.executable if this == wanted else f"python{wanted}"


def _run(environment: Environment, command: Sequence[str], held: Set[int]) -> None:
    """Run a command that holds the locks for as long as it lives, even if this process does not."""
    own = {name: value for name, value in os.environ.items() if name not in _FOREIGN}
    again = f"run `nearfree environment make {environment.name}` again"
    try:
        done = subprocess.run(
            command,
            env=own | _BUILT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=tuple(held),
            check=False,
        )
    except FileNotFoundError as error:
        raise LockError(
            f"{environment.locks[-1]} is for {command[0]}, which is not on the path",
            remedy=f"Install it or load its module, then {again}",
        ) from error
    if done.returncode:
        lines = done.stdout.decode(errors="replace").splitlines()
        last = [" ".join(line.split()) for line in lines if line.strip()][-_LAST:]
        raise LockError(
            f"{environment.folder} cannot be made: {command[2]} says: {' | '.join(last)}",
            remedy=f"See to that, then {again}",
        )
