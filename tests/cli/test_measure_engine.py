"""`nearfree measure --engine`: a user's file is refused before anything is probed."""

import os
import signal
import struct
import time
from pathlib import Path
from threading import Thread
from types import SimpleNamespace

import pytest
from derive.tune.tuned import SOURCES, tuned_subject
from gguf_files.files import TensorEntry, array, gguf, scalar, string
from nearfree.cli import measure_engine
from nearfree.core.drafting import Drafting
from nearfree.derive.tune.plans import trace_plan
from nearfree.errors import StoppedError

from cli.conftest import Call

Q8_0 = 8
PLAN = trace_plan(tuned_subject(), SOURCES[:1], Drafting())


def write_gguf(
    path: Path, *, context: int = 2048, heads: int = 4, layers: int = 2, parts: int = 1
) -> Path:
    """Write a file of a model whose matrices are all there."""
    metadata = [
        ("general.architecture", string("llama")),
        ("llama.block_count", scalar("uint32", layers)),
        ("llama.embedding_length", scalar("uint32", 64)),
        ("llama.attention.head_count", scalar("uint32", heads)),
        ("llama.attention.key_length", scalar("uint32", 16)),
        ("llama.context_length", scalar("uint32", context)),
        ("split.count", scalar("uint16", parts)),
        ("tokenizer.ggml.tokens", array("text", ["a", "b"])),
    ]
    size = 64 * 128 // 32 * 34
    tensors = [TensorEntry(f"blk.{n}.ffn_up.weight", (64, 128), Q8_0, size) for n in range(2)]
    path.write_bytes(gguf(metadata, tensors))
    return path


def write_oversized_header(path: Path) -> Path:
    """Write a file whose header declares more tensors than the file has bytes."""
    raw = write_gguf(path).read_bytes()
    path.write_bytes(raw[:8] + struct.pack("<Q", 1 << 60) + raw[16:])
    return path


def write_truncated(path: Path) -> Path:
    """Write a file that ends within its last tensor."""
    path.write_bytes(write_gguf(path).read_bytes()[:-100])
    return path


def write_no_gguf(path: Path) -> Path:
    """Write a file that is no GGUF file."""
    path.write_text("hello")
    return path


CASES = {
    "no file": (lambda path: path, (), "cannot be read"),
    "no GGUF": (write_no_gguf, (), "is no GGUF file"),
    "cut": (write_truncated, (), "and it ends at"),
    "lying": (write_oversized_header, (), "says that it has 1152921504606846976 tensors"),
    "part": (
        lambda path: write_gguf(path, parts=2),
        (),
        "model.gguf: split.count 2 says that the file is one of several",
    ),
    "context": (write_gguf, ("--context", "2048"), "L + N = 2081 positions are more than"),
    "memory": (
        lambda path: write_gguf(path, context=1 << 30, heads=4096, layers=4096),
        ("--context", "900000"),
        "GB are free",
    ),
    "threads": (write_gguf, ("--threads", "1,5000"), "5000 threads are more than the"),
    "release": (write_gguf, ("--release", "9.9.9"), "no build of llama_cpp 9.9.9 is pinned"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_file_that_cannot_run_is_refused_at_once(call: Call, tmp_path: Path, case: str) -> None:
    """One message that names what is wrong, exit code 2, and no platform was probed for it."""
    make, options, reason = CASES[case]
    path, root = make(tmp_path / "model.gguf"), tmp_path / "r"
    command = ("measure", "cpu", "--engine", "llama_cpp", "--model", str(path))
    code, out, err = call(*command, *options, "--results", str(root))
    assert (code, out) == (2, "")
    assert reason in err
    assert err.count("nearfree: error:") == 1
    assert not root.exists()


@pytest.mark.parametrize("engine", ["vllm", "openai"])
def test_an_engine_that_runs_no_file_is_refused(call: Call, tmp_path: Path, engine: str) -> None:
    """An engine without a pinned build takes no GGUF file here."""
    path = write_gguf(tmp_path / "model.gguf")
    code, _, err = call("measure", "cpu", "--engine", engine, "--model", str(path))
    assert code == 2
    assert f"'{engine}' is not an engine that nearfree runs" in err


@pytest.mark.parametrize(
    "option",
    [
        "--release 3.22.1",
        "--threads 1",
        "--batch 1",
        "--context 64",
        "--positions 1,2",
        "--rounds 32",
        "--no-repack",
    ],
)
def test_an_option_of_engines_is_refused_for_a_study(call: Call, option: str) -> None:
    """Without --engine an option of it is refused, also where it names the default."""
    code, _, err = call("measure", "cpu", "dense_ffn", *option.split())
    assert code == 2
    assert f"{option.split(maxsplit=1)[0]} has no effect without --engine" in err


@pytest.mark.parametrize("option", ["--batch", "--context", "--positions", "--threads"])
def test_a_number_with_a_comma_is_no_list(call: Call, option: str) -> None:
    """A listed number that begins with 0 is refused, with how to write the number."""
    command = ("measure", "cpu", "--engine", "llama_cpp", "--model", "none.gguf")
    code, _, err = call(*command, option, "1,024")
    assert code == 2
    assert f"argument {option}: '1,024' lists several numbers" in err
    assert "begins with 0: write 1024. " in err


@pytest.mark.parametrize(
    "option",
    [
        "--weights a.gguf",
        "--draft-weights a.gguf",
        "--prompts a.jsonl",
        "--wait 5",
        "--untested",
    ],
)
def test_an_option_of_studies_is_refused_for_an_engine(call: Call, option: str) -> None:
    """With --engine an option of studies and plans is refused, before the file is read."""
    command = ("measure", "cpu", "--engine", "llama_cpp", "--model", "none.gguf")
    code, _, err = call(*command, *option.split())
    assert code == 2
    assert f"{option.split(maxsplit=1)[0]} has no effect with --engine" in err


@pytest.mark.parametrize(("rounds", "reason"), [("2", "2 is less than 3"), ("0", "--rounds")])
def test_fewer_rounds_than_an_interval_needs_are_refused(
    call: Call, rounds: str, reason: str
) -> None:
    """Fewer than three rounds are refused when the arguments are parsed."""
    code, _, err = call(
        "measure", "cpu", "--engine", "llama_cpp", "--model", "none.gguf", "--rounds", rounds
    )
    assert code == 2
    assert reason in err.splitlines()[-1]


@pytest.mark.parametrize(
    ("script", "code"), [("trap 'sleep 0.1; exit 7' TERM", 7), ("trap 'exit 0' TERM", 0)]
)
def test_sigterm_reaches_the_process_in_another_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, code: int
) -> None:
    """SIGTERM is passed on and waited for: the process ends by itself, and nothing is left."""
    assert exit_code_after_sigterm(tmp_path, monkeypatch, script) == code


def test_a_process_that_a_signal_killed_counts_as_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program killed before it could note SIGTERM is reported by the one that started it."""
    with pytest.raises(StoppedError, match="SIGTERM"):
        exit_code_after_sigterm(tmp_path, monkeypatch, ":")


def exit_code_after_sigterm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> int:
    """Return the exit code of a program in another environment once this one gets SIGTERM."""
    program = tmp_path / "python"
    program.write_text(
        f"#!/bin/sh\n{script}\ncat >/dev/null\necho $$ >{tmp_path}/pid\n"
        "while :; do sleep 0.05; done\n"
    )
    program.chmod(0o755)
    environment = SimpleNamespace(python=program)
    monkeypatch.setattr(measure_engine, "ready_environment", lambda _: environment)

    def stop() -> None:
        while not (tmp_path / "pid").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    signaller = Thread(target=stop)
    signaller.start()
    try:
        return measure_engine.measure_in_environment(PLAN, "cpu", "study", 1)
    finally:
        signaller.join()
        with pytest.raises(ProcessLookupError):
            os.kill(int((tmp_path / "pid").read_text()), 0)
