"""`nearfree environment`, and the refusal to measure in an interpreter that is not the lock's."""

from pathlib import Path

import pytest
from derive.tables.logs import study
from msgspec import json, structs
from nearfree.cli.measure import read_plan
from nearfree.log.names import Layout

from cli.conftest import Call
from cli.test_mistakes import folder_content, one_message

ROOT = Path(__file__).parents[2]
SEALED = ("measure", "cpu", "dense_ffn", "--plan", "plan.json")
NEW = (*SEALED, "--take", "2")


@pytest.fixture
def locked(project: Path) -> Path:
    """Change to a project whose lock names a torch that is not installed."""
    (project / "envs").mkdir()
    (project / "envs/cpu.lock").write_text("msgspec==0.0.1\ntorch==2.0.0\nnothing-such==1\n")
    (project / "plan.json").write_bytes(json.encode(study()))
    return project


@pytest.mark.parametrize("line", [NEW, ("measure", "cpu", "dense_ffn", "--take", "2")])
def test_a_foreign_interpreter_is_refused(locked: Path, call: Call, line: tuple[str, ...]) -> None:
    """Before anything is measured, the refusal names what differs, and nothing is written."""
    before = folder_content(locked)
    answer = call(*line)
    one_message(answer, "this interpreter is not what envs/cpu.lock names")
    assert "the lock names 2.0.0" in answer[2]
    assert "nothing-such is missing" in answer[2]
    assert folder_content(locked) == before


def test_each_environment_has_its_own_lock(locked: Path, call: Call) -> None:
    """The lock that the plan names counts, and the remedy names it, too."""
    (locked / "envs/vllm.lock").write_bytes((ROOT / "envs/vllm.lock").read_bytes())
    (locked / "plan.json").write_bytes(json.encode(structs.replace(study(), environment="vllm")))
    answer = call(*NEW)
    one_message(answer, "envs/vllm.lock")
    assert "; and " in answer[2]
    assert "nearfree environment make vllm" in answer[2]


def test_a_sealed_take_needs_no_environment(locked: Path, call: Call) -> None:
    """A sealed take is answered in any environment."""
    assert call(*SEALED)[0] == 0
    assert list((Layout(locked / "results").state / "cpu").rglob("*.json"))


def asks_for_openvino(project: Path, python: str) -> None:
    """Ask for the set of engines, and give the project OpenVINO's lock and an interpreter of it."""
    (project / "envs/openvino.lock").write_bytes((ROOT / "envs/openvino.lock").read_bytes())
    config = project / "config/config.yaml"
    text = config.read_text().replace("python: {}", python)
    config.write_text(text.replace("sets: [default, paper]", "sets: [engines]"))


def test_a_study_is_measured_in_the_environment_of_its_backend(locked: Path, call: Call) -> None:
    """Its interpreter gets the plan, the take and the options that a measurement reads."""
    engine = locked / "engine.sh"
    engine.write_text('#!/bin/sh\necho "$@" > said\ncat > plan\nexit 7\n')
    engine.chmod(0o755)
    asks_for_openvino(locked, "python: {openvino: ./engine.sh}")
    options = ("--take", "3", "--wait", "5", "--weights", "w.gguf", "--untested")
    assert call("measure", "cpu", "openvino_smollm2", *options)[::2] == (7, "")
    assert (locked / "said").read_text().split() == [
        *("-m", "nearfree", "measure", "cpu", "openvino_smollm2", "--take", "3", "--plan", "-"),
        *("--results", "results", "--untested", "--weights", "w.gguf", "--wait", "5"),
    ]
    plan = read_plan(str(locked / "plan"))
    assert {sweep.setting.backend for sweep in plan.sweeps} == {"openvino"}


def test_an_environment_that_was_not_made_is_named(locked: Path, call: Call) -> None:
    """Where the study's backend needs an environment that is not there, the command to make it."""
    asks_for_openvino(locked, "python: {}")
    before = folder_content(locked)
    answer = call("measure", "cpu", "openvino_smollm2")
    one_message(answer, "the environment openvino of this release is not installed")
    assert "nearfree environment make openvino" in answer[2]
    assert folder_content(locked) == before


def test_without_a_lock_the_next_check_refuses(locked: Path, call: Call) -> None:
    """Where only the plan was copied, the next check refuses."""
    (locked / "envs/cpu.lock").unlink()
    code, _, err = call(*NEW)
    assert code == 2
    assert "lock" not in err


def test_check_reports_differences_and_their_absence(locked: Path, call: Call) -> None:
    """`check` refuses as `measure` does, and says so where all packages are those of the lock."""
    one_message(call("environment", "check", "cpu"), "torch")
    (locked / "envs/cpu.lock").write_bytes((ROOT / "envs/cpu.lock").read_bytes())
    message = "this interpreter has the packages that envs/cpu.lock pins\n"
    assert call("environment", "check", "cpu") == (0, message, "")


@pytest.mark.parametrize("action", ["make", "check"])
@pytest.mark.parametrize("name", ["nothing", "../cpu", "/etc/passwd"])
def test_an_environment_without_a_lock_is_refused(
    locked: Path, call: Call, action: str, name: str
) -> None:
    """An environment without a lock can be neither made nor checked, and leaves nothing."""
    before = folder_content(locked)
    one_message(call("environment", action, name), f"there is no environment {name!r}")
    assert folder_content(locked) == before
