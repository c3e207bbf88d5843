"""Install an environment from its locks, in its final folder: venvs cannot be moved."""

import fcntl
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from typing import Any

from nearfree.backends.environments.lock import (
    ENVIRONMENTS,
    FOLDER,
    WORKFLOW_ENVIRONMENT,
    Environment,
)
from nearfree.errors import LockError

_TAIL_LINES = 4
_REMOVED_VARIABLES = ("PYTHONPATH", "PYTHONHOME")
"""Environment variables through which pip would see packages of other environments."""
_BUILD_VARIABLES = {"FLASH_ATTENTION_FORCE_BUILD": "TRUE"}
"""Without this variable, flash-attn's build fetches a wheel that no lock covers."""
Say = Callable[[str], None]


def make(environment: Environment, say: Say) -> None:
    """Install an environment; return at once if it is complete.

    Of concurrent processes one installs it and the others wait. An incomplete environment of a
    killed process is installed anew.

    Raises
    ------
    LockError
        The lock's Python is not on the path, or pip fails to install what the lock pins.
    """
    if environment.complete:
        return
    ENVIRONMENTS.mkdir(exist_ok=True)
    with _exclusive_lock(f"{environment.folder}.flock", environment, say) as lock_fd:
        if not environment.complete:
            say(f"{environment.folder}: installing {' and '.join(map(str, environment.locks))}")
            _install(environment, lock_fd, say)
            environment.mark.write_bytes(environment.mark_content)


@contextmanager
def _exclusive_lock(path: str, environment: Environment, say: Say) -> Iterator[int]:
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


def _install(environment: Environment, lock_fd: int, say: Say) -> None:
    def run(program: str, *words: str, second_fd: int = lock_fd) -> None:
        _run(environment, (program, "-m", *words), {lock_fd, second_fd})

    run(_python(environment), "venv", "--clear", str(environment.folder))
    python = str(environment.python)
    pip = (python, "pip", "--quiet", "--no-input", "--disable-pip-version-check", "install")
    for options in _pip_options(environment):
        run(*pip, *options)
    # Builds of two environments write the same files in the project's folder.
    with _exclusive_lock(str(ENVIRONMENTS / "nearfree.flock"), environment, say) as project_fd:
        run(*pip, "--no-deps", "--no-build-isolation", "--editable", ".", second_fd=project_fd)
    run(python, "nearfree", "environment", "check", environment.name)


def _pip_options(environment: Environment) -> Iterator[Sequence[str]]:
    """Yield pip's options for each step: a backend's wheels first, since source builds import them.

    A lock holds all dependencies, so pip must not resolve any. For `pkg[extra]`, which no lock
    names, it would otherwise take a newer release than the lock's as soon as one exists.
    """
    locked = ("--no-deps", "--require-hashes")
    if environment.name == WORKFLOW_ENVIRONMENT:
        base, extra = environment.locks
        yield *locked, "-r", str(base)
        yield "-r", str(extra)
        return
    (lock,) = environment.locks
    lock_text = lock.read_text("utf-8")
    built = "|".join(map(re.escape, _resolution()["no-binary"]))
    wheel_text = re.sub(rf"^(?:{built})==.*\n?(?:[ #].*\n?)*", "", lock_text, flags=re.MULTILINE)
    wheels = environment.folder / "wheels.lock"
    wheels.write_text(wheel_text, "utf-8")
    yield *locked, "--only-binary", ":all:", "-r", str(wheels)
    if wheel_text != lock_text:
        yield *locked, "--no-build-isolation", "-r", str(lock)


def _resolution() -> Mapping[str, Any]:
    """Return the options with which the backends' locks were resolved."""
    document: dict[str, dict[str, Any]] = tomllib.loads((FOLDER / "uv.toml").read_text("utf-8"))
    return document["pip"]


def _python(environment: Environment) -> str:
    """Return an interpreter of the lock's Python version, this one if it has that version.

    A lock without an .in file is for every Python version that nearfree supports.
    """
    if environment.name == WORKFLOW_ENVIRONMENT or not (FOLDER / f"{environment.name}.in").exists():
        return sys.executable
    version = _resolution()["python-version"]
    own_version = ".".join(map(str, sys.version_info[:2]))
    return sys.executable if own_version == version else f"python{version}"


def _run(environment: Environment, command: Sequence[str], lock_fds: Set[int]) -> None:
    """Run a command that inherits the locks, and holds them even if this process dies."""
    variables = {
        name: value for name, value in os.environ.items() if name not in _REMOVED_VARIABLES
    }
    retry = f"run `nearfree environment make {environment.name}` again"
    try:
        process = subprocess.run(
            command,
            env=variables | _BUILD_VARIABLES,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=tuple(lock_fds),
            check=False,
        )
    except FileNotFoundError as error:
        raise LockError(
            f"{environment.locks[-1]} is for {command[0]}, which is not on the path",
            remedy=f"Install it or load its module, then {retry}",
        ) from error
    if process.returncode:
        lines = process.stdout.decode(errors="replace").splitlines()
        tail = [" ".join(line.split()) for line in lines if line.strip()][-_TAIL_LINES:]
        raise LockError(
            f"{environment.folder} cannot be made: {command[2]} says: {' | '.join(tail)}",
            remedy=f"Fix that, then {retry}",
        )
