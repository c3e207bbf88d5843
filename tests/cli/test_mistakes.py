"""Mistakes: each ends with exit code 2 and one message that names the thing."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nearfree
import numpy as np
import pytest
from derive.tables.logs import study
from msgspec import json, structs
from nearfree.core.weights import WeightsFile
from nearfree.log.names import Layout

from cli.conftest import Call

GONE = "cpu/dense_ffn/9-01234567"
MISTAKES: list[tuple[str, str]] = [
    ("probe mars", "'mars'"),
    ("probe h20", "h20 is not this machine"),
    ("probe ../cpu", "'../cpu'"),
    ("plan mars dense_ffn", "'mars'"),
    ("plan cpu moe", "'moe'"),
    ("measure mars dense_ffn", "'mars'"),
    ("measure cpu moe", "'moe'"),
    ("measure h20 dense_ffn", "h20 is not this machine"),
    ("measure ../x dense_ffn --plan plan.json", "'../x'"),
    ("measure cpu ../x --plan plan.json", "'../x'"),
    ("retake mars", "'mars'"),
    ("retake cpu moe", "'moe'"),
    ("retake ../cpu", "'../cpu'"),
    ("tables project mars", "mars"),
    ("tables boundaries mars", "mars"),
    ("tables predictions mars", "mars"),
    ("tables validation mars", "mars"),
    ("tables claims mars", "mars"),
    ("tables project ../x", "'../x'"),
    ("tables project CPU", "'CPU'"),
    ("figures mars", "mars"),
    ("figures ../x", "'../x'"),
    ("log show ../x", "'../x'"),
    ("log show ..", "'..'"),
    (f"log show {GONE}", GONE),
    (f"log show {GONE}.1#1", f"{GONE}.1#1"),
    ("log show cpu/dense_ffn", "'cpu/dense_ffn'"),
    ("log show *", "'*'"),
    (f"log recover {GONE}", GONE),
    ("log recover nonsense", "'nonsense'"),
    (f"log retract {GONE} --reason no", GONE),
    (f"log retract {GONE}.1#1 --reason no", GONE),
    ("log retract ../x --reason no", "'../x'"),
    ("verify nowhere", "nowhere"),
    ("tables project cpu --results nowhere", "cpu"),
    ("tables boundaries cpu --results nowhere", "nowhere"),
    ("figures cpu --results nowhere", "nowhere"),
    ("report --results nowhere", "nowhere"),
    ("ledger --results nowhere", "nowhere"),
    ("ledger --config nowhere", "nowhere"),
    ("report --config nowhere", "nowhere"),
    ("plan cpu dense_ffn --config nowhere", "nowhere"),
    ("import published --config nowhere", "nowhere"),
]
ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(nearfree.__file__).parents[1])}


def one_message(answer: tuple[int, str, str], thing: str, *, printed: bool = False) -> None:
    """Check that a command ended with one message that names a thing."""
    code, out, err = answer
    assert code == 2
    assert thing in err
    assert "Traceback" not in out + err
    assert err.count("\n") == 1
    assert err.startswith("nearfree: error: ")
    assert printed or out == ""


def folder_content(folder: Path) -> dict[str, bytes]:
    """Return every file and folder below one, with its bytes."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b""
        for path in folder.rglob("*")
    }


@pytest.mark.parametrize(("line", "thing"), MISTAKES, ids=[line for line, _ in MISTAKES])
def test_a_mistake_is_one_message(project: Path, call: Call, line: str, thing: str) -> None:
    """A mistake is one line that names it, and changes no file."""
    (project / "plan.json").write_bytes(json.encode(study()))
    before = folder_content(project)
    one_message(call(*line.split()), thing)
    assert folder_content(project) == before


@pytest.mark.parametrize(
    ("line", "thing"),
    [
        ("", "COMMAND"),
        ("nonsense", "nonsense"),
        ("tables nonsense cpu", "nonsense"),
        ("import nonsense", "nonsense"),
        ("log", "ACTION"),
        ("log retract cpu/dense_ffn/1-01234567", "--reason"),
        ("measure cpu dense_ffn --take one", "one"),
        ("measure cpu dense_ffn --take 0", "--take"),
        ("measure cpu dense_ffn --take -1", "--take"),
        ("measure cpu dense_ffn --take 10000000", "--take"),
        ("probe cpu --take -1", "--take"),
        ("verify --nonsense", "--nonsense"),
    ],
)
def test_a_wrong_call_is_one_message(project: Path, call: Call, line: str, thing: str) -> None:
    """A call that fits no command is refused by what does not fit, with where to read its usage."""
    answer = call(*line.split())
    one_message(answer, thing)
    assert re.search(r"`nearfree[a-z ]* --help` ", answer[2])


@pytest.mark.parametrize(
    ("words", "thing"),
    [
        (["import", "curves", "mine.csv", "--name", ""], "--name is empty"),
        (["import", "curves", "mine.csv", "--name="], "--name is empty"),
        (["log", "show", ""], "argument 3 is empty"),
        (["log", "retract", "", "--reason", "x"], "argument 3 is empty"),
        (["audit", ""], "argument 2 is empty"),
        (["adopt", ""], "argument 2 is empty"),
        (["crate", ""], "argument 2 is empty"),
        (["crate", "--verify", ""], "--verify is empty"),
        (["report", "--as-of", ""], "--as-of is empty"),
        (["report", "--as-of=--"], "--as-of is empty"),
        (
            ["predict", "--model", "qwen3_8b", "--platform", "h200", "--batch=--"],
            "--batch is empty",
        ),
        (["log", "show", "--results=--"], "--results is empty"),
        ([""], "argument 1 is empty"),
    ],
)
def test_an_empty_argument_is_one_message(
    project: Path, call: Call, words: list[str], thing: str
) -> None:
    """An empty argument is refused by its option or place; it does not pass for one left out."""
    before = folder_content(project)
    one_message(call(*words), thing)
    assert folder_content(project) == before


@pytest.mark.parametrize("line", ["\x1b[31mpredict", "predict \x1b[31m", "predict --batch \x9b1"])
def test_arguments_of_a_wrong_call_are_printed_escaped(
    project: Path, call: Call, line: str
) -> None:
    """Control characters in an argument are printed escaped."""
    answer = call(*line.split(" "))
    one_message(answer, "\\x")
    assert answer[2].strip().isprintable()


def test_a_long_message_keeps_its_begin_and_its_remedy(project: Path, call: Call) -> None:
    """Of a line that quotes a long value the middle is left out."""
    (project / "plan.json").write_text(f'{{"kind": "measure", "{"k" * 10**6}": 1}}')
    answer = call("measure", "cpu", "dense_ffn", "--plan", "plan.json")
    one_message(answer, "plan.json is not a plan")
    assert answer[2].endswith("kkk`. Give the output of `nearfree plan`\n")
    assert len(answer[2]) < 5000


def test_an_answer_that_memory_cannot_hold_is_one_message(
    project: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where an array does not fit into memory, the message says what would take less."""
    monkeypatch.setattr("nearfree.log.verify.verify", lambda _: np.zeros((1 << 20, 1 << 30)))
    one_message(call("verify"), "a smaller largest N")


def test_a_plan_from_a_pipe_that_is_no_text(project: Path) -> None:
    """Bytes that are no text are named where the terminal's language has only ASCII, too."""
    process = subprocess.run(
        [sys.executable, "-m", "nearfree", "measure", "cpu", "dense_ffn", "--plan", "-"],
        input=b'{"kind":"\xff"}', capture_output=True, check=False,
        env=ENVIRONMENT | {"LC_ALL": "C"},
    )  # fmt: skip
    one_message((process.returncode, "", process.stderr.decode()), "- is not a plan")


@pytest.mark.parametrize(
    ("reason", "says"), [("", "--reason is empty"), ("  ", "--reason: it is blank")]
)
def test_a_take_is_retracted_for_a_reason(
    project: Path, call: Call, reason: str, says: str
) -> None:
    """A blank one is refused, before anything is sealed for good."""
    (take, *_) = Layout(Path("results")).takes()
    before = sorted(Path("results").rglob("*"))
    code, out, err = call("log", "retract", str(take), "--reason", reason)
    assert (code, out) == (2, "")
    assert says in err
    assert sorted(Path("results").rglob("*")) == before


@pytest.mark.parametrize("scope", ["/etc", "*", "c*", "../cpu", "CPU"])
def test_a_scope_to_adopt_is_a_name(project: Path, call: Call, scope: str) -> None:
    """Only a plain name can be adopted: no path, no pattern."""
    subprocess.run(["git", "init", "--quiet"], check=True)
    one_message(call("adopt", scope), repr(scope))
    staged = subprocess.run(["git", "ls-files"], check=True, capture_output=True).stdout
    assert staged == b""


def test_adopting_outside_of_a_repository(project: Path, call: Call) -> None:
    """Outside of a git repository there is nothing to adopt into."""
    one_message(call("adopt", "cpu"), "git")


def test_a_mistake_of_a_process_is_one_line(project: Path) -> None:
    """As a process, a mistake is exit code 2 and one line on standard error."""
    for line, thing in ((["plan", "cpu", "moe"], "'moe'"), (["verify", "nowhere"], "nowhere")):
        process = subprocess.run(
            [sys.executable, "-m", "nearfree", *line],
            capture_output=True, text=True, check=False, env=ENVIRONMENT,
        )  # fmt: skip
        one_message((process.returncode, process.stdout, process.stderr), thing)


def test_a_missing_torch_is_one_message(
    project: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where torch is not installed, what needs it says so."""
    monkeypatch.setattr("nearfree.cli.common.find_spec", lambda _: None)
    one_message(call("measure", "cpu", "dense_ffn"), "torch is not installed")
    one_message(call("probe", "cpu"), "torch is not installed")


@pytest.mark.parametrize(
    ("raw", "thing"),
    [
        (b"{}", "plan.json is not a plan"),
        (b"\xff\xfe", "plan.json is not a plan"),
        (b'{"kind":"measure","models":{"a":{"x":' + b"[" * 5000, "plan.json is not a plan"),
    ],
    ids=["empty", "bytes", "deep"],
)
def test_a_file_that_is_no_plan(project: Path, call: Call, raw: bytes, thing: str) -> None:
    """A damaged plan is refused by its file in one message."""
    (project / "plan.json").write_bytes(raw)
    one_message(call("measure", "cpu", "dense_ffn", "--plan", "plan.json"), thing)


def test_a_whole_engine_is_not_profiled(tmp_path: Path, call: Call) -> None:
    """The plan of an engine's forwards is refused, as that of a whole model is."""
    weights = {"small": WeightsFile(file_type="q8_0", sha256="0" * 64)}
    path = tmp_path / "plan.json"
    path.write_bytes(json.encode(structs.replace(study(), weights=weights)))
    one_message(call("profile", "cpu", "dense_ffn", "--plan", str(path)), "too many kernels")


def test_the_copy_has_no_damage(project: Path, call: Call) -> None:
    """The project that these tests damage has no damage before."""
    assert call("verify")[0] == 0
    assert json.decode(call("plan", "cpu", "dense_ffn")[1])["kind"] == "measure"
    shutil.rmtree(project / "results" / "events" / "cpu")
    assert call("verify")[0] == 2


@pytest.mark.parametrize(
    ("line", "suggestion"),
    [
        ("predict --model qwen3_8b --platform h100 --tensor-parallel-size 4", "--tp"),
        ("predict --model qwen3_8b --platform h100 --expert-parallel-size 4", "--ep"),
        ("predict --model qwen3_8b --platform h100 --pp-size=2", "--pp"),
        ("predict --model qwen3_8b --platform h100 --max-model-len=8192", "--context"),
        ("predict --model qwen3_8b --platform h100 --kv-cache-dtype fp8", "--kv-dtype"),
        ("schedule vllm --model qwen3_8b --platform h100 --acceptence 0.7", "--acceptance"),
    ],
)
def test_a_misspelt_option_is_answered_with_the_nearest(
    project: Path, call: Call, line: str, suggestion: str
) -> None:
    """An unknown option is answered with the nearest known one, if one is near."""
    code, out, err = call(*line.split())
    assert (code, out) == (2, "")
    assert f". Perhaps you mean {suggestion}. `nearfree {line.split(maxsplit=1)[0]} --help` " in err


@pytest.mark.parametrize(
    ("line", "owners"),
    [
        ("lookup --positions 4", "predict, granularity, measure"),
        ("predict --acceptance=0.7", "schedule"),
        ("verify --offline", "granularity, tune, fetch, validate, calibrate"),
    ],
)
def test_an_option_of_other_commands_is_said_to_be_theirs(
    project: Path, call: Call, line: str, owners: str
) -> None:
    """An option that the command lacks is answered with all commands that have it."""
    code, out, err = call(*line.split())
    assert (code, out) == (2, "")
    command, option = re.split("[ =]", line)[:2]
    assert f". {option} is an option of {owners}. `nearfree {command} --help` " in err
    assert "Perhaps you mean" not in err


def test_an_option_far_from_all_has_no_suggestion(project: Path, call: Call) -> None:
    """No option is guessed where none is near."""
    assert "unrecognized arguments: --qqqqqq. `nearfree" in call("predict", "--qqqqqq")[2]
