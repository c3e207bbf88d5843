"""The dumper: only the pinned file runs, confined, and any failure is one refusal."""

import random
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from msgspec import json
from nearfree.errors import ConfigError, SourceError
from nearfree.log.line import sha256
from nearfree.sources.binaries import confined, dumper
from nearfree.sources.binaries.dumper import Dumper, list_functions, pinned_dumper
from nearfree.sources.binaries.kernels import functions, held_kernels
from nearfree.sources.fetching.cache import Cache

from sources.binaries.tiny import sound
from sources.fetching.indexserver import Entry, Server, make_wheel, server

__all__ = ["server"]
PROGRAM = "triton/backends/nvidia/bin/cuobjdump"
ENVS = Path(__file__).parents[3] / "envs"


def script(text: str) -> Dumper:
    """Return a program that takes the dumper's place."""
    raw = f"#!/bin/sh\n{text}\n".encode()
    return Dumper(name="a script", sha256=sha256(raw), raw=raw)


def refusals(text: str) -> list[str]:
    """Return the error of each statement in a confined Python, or nothing."""
    program = (
        "import ctypes, os, socket\n"
        "for line in open(0).read().splitlines():\n"
        "    try: exec(line); print()\n"
        "    except (OSError, MemoryError) as error: print(type(error).__name__)\n"
    )
    command = [sys.executable, "-I", "-S", confined.__file__, str(2**30), sys.executable]
    done = subprocess.run(
        [*command, "-I", "-S", "-c", program],
        input=text,
        text=True,
        capture_output=True,
        check=True,
        env={},
    )
    return done.stdout.splitlines()


def test_a_confined_program_reads_and_does_nothing_else(tmp_path: Path) -> None:
    """Reading is allowed; writing, removing, sockets, processes and much memory are refused."""
    there = tmp_path / "there"
    there.write_text("text")
    forbidden = [
        f"open({str(there)!r}, 'a')",
        f"open({str(tmp_path / 'new')!r}, 'w')",
        f"os.unlink({str(there)!r})",
        f"os.rename({str(there)!r}, {str(tmp_path / 'other')!r})",
        f"os.mkdir({str(tmp_path / 'folder')!r})",
        f"os.chmod({str(there)!r}, 0o777)",
        f"os.truncate({str(there)!r}, 0)",
        "socket.socket()",
        "socket.socketpair()",
        "os.fork()",
        "os.kill(os.getppid(), 0)",
        "bytearray(2**31)",
    ]
    errors = refusals("\n".join([f"open({str(there)!r}).read()", *forbidden]))
    assert errors[0] == ""
    assert [
        statement for statement, error in zip(forbidden, errors[1:], strict=True) if not error
    ] == []
    assert there.read_text() == "text"
    assert list(tmp_path.iterdir()) == [there]


def test_a_program_without_an_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program gets no variable, the listing's arguments, and a temporary folder."""
    monkeypatch.setenv("NEARFREE_SECRET", "word")
    text = list_functions(sound(), script('export -p; echo "$1"; pwd'), "it")
    assert "word" not in text
    *_, option, folder = text.splitlines()
    assert option == "-res-usage"
    assert not Path(folder).exists()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("exit 3", "exit code 3"),
        ("echo 'no such thing' >&2", "no such thing"),
        ("while :; do echo 0123456789012345678901234567890123456789; done", "exit code"),
        ("while :; do :; done", "TimeoutExpired"),
        ("printf '\\377'", "not plain text"),
    ],
)
def test_whatever_stops_the_program_is_a_refusal(
    text: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash, an error, an endless listing, a hang and odd bytes each give one line."""
    monkeypatch.setattr(dumper, "TIMEOUT_S", 60 if "echo" in text else 1)
    with pytest.raises(SourceError, match=f"demo is refused: .*{reason}") as refusal:
        list_functions(sound(), script(text), "demo")
    assert "\n" not in str(refusal.value)


def test_no_program_sees_a_hostile_file() -> None:
    """A file that the header check refuses is not given to the dumper."""
    with pytest.raises(SourceError, match="tables lie outside"):
        list_functions(sound()[:-9], script("echo seen >&2"), "it")


def test_another_file_than_the_pinned_one_is_not_run(server: Server, tmp_path: Path) -> None:
    """A valid wheel with another program is refused by the lock."""
    server.put("triton-3.6.0-py3-none-any.whl", make_wheel(Entry(PROGRAM, b"#!/bin/sh\n")))
    with pytest.raises(SourceError, match=r"cuobjdump is not the file that .*dumper\.lock pins"):
        pinned_dumper(cache=Cache(tmp_path / "cache"), lock=ENVS / "dumper.lock")
    own = tmp_path / "own.lock"
    own.write_bytes(json.encode({"triton": {"3.6.0": {PROGRAM: sha256(b"#!/bin/sh\n")}}}))
    assert pinned_dumper(cache=Cache(tmp_path / "cache"), lock=own).raw == b"#!/bin/sh\n"


@pytest.mark.parametrize("text", ["", "{}", '{"a": {"1": {"x": "1", "y": "2"}}}'])
def test_a_lock_of_another_number_of_files_is_refused(text: str, tmp_path: Path) -> None:
    """The lock pins exactly one file."""
    lock = tmp_path / "dumper.lock"
    if text:
        lock.write_text(text)
    with pytest.raises(ConfigError, match="pins no dumper"):
        pinned_dumper(cache=Cache(tmp_path / "cache"), lock=lock)


@pytest.mark.slow
def test_the_real_dumper_on_a_library_of_our_own(source_cache: Cache) -> None:
    """NVIDIA's program lists a library made here; changed bytes give a listing or a refusal."""
    real = pinned_dumper(cache=source_cache, lock=ENVS / "dumper.lock")
    held = held_kernels(functions(list_functions(sound(), real, "it")))
    assert [(kernel.code, kernel.kernel, kernel.rows) for kernel in held] == [
        (80, "fa3_sm80", 128),
        (80, "split_kv", 64),
        (80, "standard", 128),
        (90, "fa3_sm90", 128),
    ]
    assert {kernel.registers for kernel in held} == {(8, 8)}
    assert {kernel.shared_bytes for kernel in held} == {(1024, 1024), (3072, 3072)}
    chance, raw = random.Random(24), sound()  # noqa: S311 (nothing is kept secret)
    for _ in range(30):
        changed = bytearray(raw)
        for place in chance.sample(range(64, len(raw) - 192), 20):
            changed[place] = chance.randrange(256)
        with suppress(SourceError):
            held_kernels(functions(list_functions(bytes(changed), real, "it")))
