"""Daemons by their pid files: a number is believed only while its process is the one meant."""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
"""What a daemon starts with: nothing of the tests' own."""


class SlurmError(Exception):
    """The cluster cannot start, or a command on it failed."""


_START_S = 30
"""How long a daemon that does not start is tried again, as what keeps a node's daemons up does."""


def start(*command: str, log: Path | None = None) -> None:
    """Start a daemon that detaches itself.

    A daemon that was just killed may leave its port or files to a process that is still ending, so
    a failed start is repeated; SlurmError with the end of its log if all fail.
    """
    end = time.monotonic() + _START_S
    while True:
        done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
        if not done.returncode:
            return
        if time.monotonic() > end:
            raise SlurmError(f"{' '.join(command)} did not start: {_told(done, log)}")
        time.sleep(0.2)


def _told(done: subprocess.CompletedProcess[str], log: Path | None) -> str:
    """Return the output of a daemon that ended: its streams, then the end of its log."""
    lines = log.read_text(errors="replace").splitlines() if log and log.is_file() else []
    causes = (
        f"exit code {done.returncode}",
        done.stderr.strip(),
        done.stdout.strip(),
        *lines[-20:],
    )
    return "\n".join(filter(None, causes))


def command_line(pid: int) -> str:
    """Return a process's command line, nothing if it is gone or dead."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def living(pid_file: Path) -> int | None:
    """Return the process id in a pid file, None if that process does not run."""
    try:
        pid = int(pid_file.read_text())
    except (OSError, ValueError):
        return None
    return pid if str(pid_file.parent) in command_line(pid) else None


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    """Send a signal to a process, if it is still there."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def wait(what: Callable[[], object], seconds: float, message: str) -> None:
    """Wait until something is so; SlurmError with the message if it takes too long."""
    end = time.monotonic() + seconds
    while not what():
        if time.monotonic() > end:
            raise SlurmError(f"{message} after {seconds:g} s")
        time.sleep(0.05)


def stop(pid_file: Path) -> None:
    """Stop a daemon: politely, and after some seconds by force."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        pid = living(pid_file)
        if pid is None:
            return
        kill(pid, number)
        try:
            wait(lambda: living(pid_file) is None, 5, f"{pid_file.stem} does not stop")
        except SlurmError:
            continue


def named(start: str) -> list[int]:
    """Return the processes whose command line starts so."""
    numbers = (int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal())
    return [pid for pid in numbers if command_line(pid).startswith(start)]


def children(pid: int) -> list[int]:
    """Return the processes below a process, whichever of its threads started them."""
    pids = [pid]
    for child in pids:
        for tasks in Path("/proc").glob(f"{child}/task/*/children"):
            with suppress(OSError):
                pids += map(int, tasks.read_text().split())
    return pids[1:]
