"""Streams that are closed or full, and interrupts: a command ends quietly or in one message."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from nearfree.cli.common import COMMANDS
from nearfree.log.names import Layout

from cli.conftest import Call
from cli.test_mistakes import ENVIRONMENT, one_message


@pytest.mark.parametrize(
    ("line", "closed", "code"),
    [
        ("plan cpu dense_ffn", ">&-", 0),
        ("plan cpu moe", "2>&-", 2),
        ("plan cpu moe", "<&- >&- 2>&-", 2),
        ("measure cpu dense_ffn --plan -", "<&-", 2),
        ("campaign -", "<&-", 2),
    ],
)
def test_a_closed_stream_is_an_empty_one(project: Path, line: str, closed: str, code: int) -> None:
    """A command without standard input, output or errors ends as usual."""
    command = f"{sys.executable} -m nearfree {line} {closed}"
    process = subprocess.run(
        ["sh", "-c", command], capture_output=True, text=True, check=False, env=ENVIRONMENT
    )
    assert (process.returncode, process.stdout) == (code, "")
    assert "Traceback" not in process.stderr
    assert process.stderr.count("\n") == (closed == "<&-")


def test_a_closed_pipe_ends_the_command_quietly(project: Path) -> None:
    """When the reader of a pipe leaves, the command ends quietly, with the exit code of SIGPIPE."""
    take = Layout(Path("results")).takes("cpu")[0]
    for arguments in (["log", "show", str(take)], ["--help"], ["plan", "--help"]):
        read_end, write_end = os.pipe()
        os.close(read_end)
        process = subprocess.run(
            [sys.executable, "-m", "nearfree", *arguments],
            stdout=write_end, stderr=subprocess.PIPE, text=True, check=False, env=ENVIRONMENT,
        )  # fmt: skip
        os.close(write_end)
        assert (process.returncode, process.stderr) == (128 + signal.SIGPIPE, "")


@pytest.mark.parametrize("buffered", ["", "1"])
@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["plan", "cpu", "dense_ffn"]])
def test_a_full_device_is_one_message(project: Path, arguments: list[str], buffered: str) -> None:
    """A full device ends every command in one message and code 2, help and versions, too."""
    environment = ENVIRONMENT | {"PYTHONUNBUFFERED": buffered}
    command = [sys.executable, "-m", "nearfree", *arguments]
    with Path("/dev/full").open("w") as full:
        process = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, env=environment
        )
        deaf = subprocess.run(command, stdout=full, stderr=full, check=False, env=environment)
    assert process.stderr.startswith("nearfree: error: No space left on device. ")
    assert (process.returncode, process.stderr.count("\n")) == (2, 1)
    assert deaf.returncode == 2


AT_IMPORT = """
import os, signal, sys
class Stop:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Stop())
sys.argv[1:] = {words!r}
from nearfree.__main__ import main
main()
"""


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        ("nearfree.cli", ["--help"]),
        ("nearfree.cli.rules", ["verify"]),
        ("nearfree.log.verify", ["verify"]),
        ("nearfree.config.files", ["predict", "--model", "qwen3_8b", "--platform", "h200"]),
    ],
)
def test_an_interrupt_during_imports_is_one_line(
    project: Path, module: str, arguments: list[str]
) -> None:
    """Ctrl-C while modules are still imported is one line and code 130."""
    process = subprocess.run(
        [sys.executable, "-c", AT_IMPORT.format(module=module, words=arguments)],
        capture_output=True, text=True, check=False, env=ENVIRONMENT,
    )  # fmt: skip
    assert (process.returncode, process.stdout) == (130, "")
    assert process.stderr == "nearfree: stopped; what was durable is kept\n"


def test_ctrl_c_is_one_line(project: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C ends the command with code 130 and one line."""

    def stop(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setitem(COMMANDS, "plan", COMMANDS["plan"]._replace(run=stop))
    code, out, err = call("plan", "cpu", "dense_ffn")
    assert (code, out, err.count("\n")) == (130, "", 1)


def test_a_system_error_is_one_message(
    project: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of the system, such as a full disk, is one line with the path."""

    def full(_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "results/x")

    monkeypatch.setitem(COMMANDS, "plan", COMMANDS["plan"]._replace(run=full))
    one_message(call("plan", "cpu", "dense_ffn"), "results/x: No space left on device")


def test_an_error_without_a_number_has_its_text(
    project: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of a library may have a text alone, or no text."""
    for error, message in (
        (OSError("no such stream"), "no such stream. "),
        (OSError(), "OSError. "),
    ):

        def fail(_: object, error: OSError = error) -> None:
            raise error

        monkeypatch.setitem(COMMANDS, "plan", COMMANDS["plan"]._replace(run=fail))
        one_message(call("plan", "cpu", "dense_ffn"), f"nearfree: error: {message}")


def test_output_that_cannot_be_encoded_is_escaped(project: Path) -> None:
    """What standard output cannot encode is escaped, and no traceback."""
    reason = "ein Lüfter stand still"
    (take, *_) = Layout(Path("results")).takes("cpu")
    command = [sys.executable, "-m", "nearfree", "log"]
    name = subprocess.run(
        [*command, "retract", f"{take}.1#2", "--reason", reason],
        capture_output=True, text=True, check=True, env=ENVIRONMENT,
    ).stdout.partition(":")[0]  # fmt: skip
    process = subprocess.run(
        [*command, "show", f"{name}.1#2"],
        capture_output=True, text=True, check=False,
        env=ENVIRONMENT | {"PYTHONIOENCODING": "ascii"},
    )  # fmt: skip
    assert (process.returncode, process.stderr) == (0, "")
    assert "ein L\\xfcfter stand still" in process.stdout
