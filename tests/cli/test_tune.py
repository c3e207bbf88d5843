"""`nearfree tune`: refusals, and a short tuning of the shipped model."""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec import json as msgspec_json
from nearfree.cli import main, tune_engine
from nearfree.derive.tune import plans
from nearfree.engines import threads
from nearfree.errors import ConfigError, StoppedError
from nearfree.log.events import DecodeMeasured, DraftsTraced
from nearfree.log.evidence import read_scope
from nearfree.log.names import Layout
from nearfree.measure.visits import no_progress, stoppable

from cli.test_measure_engine import write_gguf

KEYS = {
    "schema", "engine", "model", "curve", "curve_of", "settings", "predicted", "by_kind", "choice",
    "gain", "verdict", "held_out", "paste", "events",
}  # fmt: skip
SETTING_KEYS = {
    "k", "drafter", "threads", "repack", "kv_dtype", "predicted_tokens_s", "tokens_s",
    "identical_share", "steps_equal", "exact", "first_difference", "margin",
}  # fmt: skip
PHRASE = "Repeat: blue gate 7 green door 9 blue gate 7 green door 9 blue gate 7"


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return the one message of a command that ends with exit code 2."""
    with pytest.raises(SystemExit) as end:
        main(["tune", *arguments])
    message = capsys.readouterr().err
    assert end.value.code == 2, message
    assert "Traceback" not in message
    return message


def write_prompts(path: Path, *texts: str) -> Path:
    """Write a file of prompts."""
    path.write_text("".join(f"{json.dumps({'prompt': text})}\n" for text in texts))
    return path


def test_mistakes_end_in_one_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Unknown engines, files, drafters and contexts are named, and nothing is written."""
    home = ("--results", str(tmp_path / "home" / "results"))
    assert "not an engine that nearfree can tune" in refusal(capsys, "an_engine", *home)
    missing = str(tmp_path / "none.gguf")
    assert "none.gguf" in refusal(capsys, "llama_cpp", "--model", missing, *home)
    text = tmp_path / "text.gguf"
    text.write_text("no weights")
    assert "text.gguf" in refusal(capsys, "llama_cpp", "--model", str(text), *home)
    empty = write_prompts(tmp_path / "empty.jsonl")
    message = refusal(capsys, "llama_cpp", "--model", missing, "--prompts", str(empty), *home)
    assert "holds no prompt" in message
    message = refusal(capsys, "llama_cpp", "--drafter", "draft_model", *home)
    assert "needs --draft-model" in message
    message = refusal(capsys, "llama_cpp", "--drafter", "none", "--draft-model", missing, *home)
    assert "takes no --draft-model" in message
    assert "compared or replayed" in refusal(capsys, "openvino", "--temperature", "0.8", *home)
    for temperature in ("-1", "nan", "101", "warm"):
        assert "--temperature" in refusal(
            capsys, "llama_cpp", f"--temperature={temperature}", *home
        )
    message = refusal(capsys, "openvino", "--batch", "2", *home)
    assert "one prompt alone" in message
    assert "llama_cpp" in message
    for batch in ("0", "-1", "two"):
        assert "--batch" in refusal(capsys, "llama_cpp", f"--batch={batch}", *home)
    prompts_path = write_prompts(tmp_path / "three.jsonl", "one", "two", "three")
    message = refusal(capsys, "llama_cpp", "--batch", "2", "--prompts", str(prompts_path), *home)
    assert "--batch 2 exceeds 1, the smaller of the numbers" in message
    assert not (tmp_path / "home").exists()


def test_a_part_of_a_model_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One file of several is refused, as the model and as the draft model."""
    home = ("--results", str(tmp_path / "home" / "results"))
    complete, part = (
        write_gguf(tmp_path / "whole.gguf"),
        write_gguf(tmp_path / "part.gguf", parts=2),
    )
    for arguments in (
        ("--model", str(part)),
        ("--model", str(complete), "--draft-model", str(part)),
    ):
        message = refusal(capsys, "llama_cpp", *arguments, *home)
        assert "part.gguf: split.count 2 says that the file is one of several" in message
    assert not (tmp_path / "home").exists()


def test_more_threads_than_cpus_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Threads beyond the CPUs would wait; the default is every number that may be used."""
    for module in (threads, tune_engine):
        monkeypatch.setattr(module, "usable_cpus", lambda: 3)
    home = ("--results", str(tmp_path / "home" / "results"))
    arguments = ("llama_cpp", "--model", str(write_gguf(tmp_path / "model.gguf")), *home)
    message = refusal(capsys, *arguments, "--threads", "1,5000")
    assert "5000 threads are more than the 3 CPUs" in message
    assert not (tmp_path / "home").exists()

    def weighed(*_: object) -> None:
        raise ConfigError(f"weighed: {_[2]}", remedy="None")

    monkeypatch.setattr(tune_engine, "_plans", weighed)
    assert "weighed: (1, 3)" in refusal(capsys, *arguments)


def test_no_step_begins_after_a_signal_in_the_last_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGTERM in the last round of T(N) is not lost: the trace is not begun."""

    def sealed(*_: object) -> None:
        with stoppable(no_progress) as progress:
            os.kill(os.getpid(), signal.SIGTERM)
            progress(1.0)

    job = SimpleNamespace(layout=Layout(Path("none")), forwards=None, draft=None)
    monkeypatch.setattr(tune_engine, "_job", lambda _: job)
    monkeypatch.setattr(tune_engine, "_measure_forwards", sealed)
    monkeypatch.setattr(tune_engine, "_trace", lambda *_: pytest.fail("it was begun"))
    with pytest.raises(StoppedError, match="SIGTERM"):
        tune_engine.tune(argparse.Namespace())


def test_results_are_in_the_users_own_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder is $NEARFREE_HOME, else the user's folder for data."""
    from nearfree.cli.common import home_results

    monkeypatch.setenv("NEARFREE_HOME", str(tmp_path))
    assert home_results() == tmp_path / "results"
    monkeypatch.delenv("NEARFREE_HOME")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert home_results() == tmp_path / "data" / "nearfree" / "results"


def test_an_engine_without_its_environment_is_refused_before_anything_is_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Outside a clone nothing is probed for an engine that runs in an environment of its own."""
    from gguf_files.files import TensorEntry, gguf, scalar, string

    monkeypatch.chdir(tmp_path)
    header = [
        ("general.architecture", string("llama")),
        ("llama.block_count", scalar("uint32", 1)),
        ("llama.context_length", scalar("uint32", 512)),
    ]
    model = tmp_path / "m.gguf"
    model.write_bytes(gguf(header, [TensorEntry("blk.0.ffn_up.weight", (256, 2), 8, 16 * 34)]))
    home = ("--results", str(tmp_path / "results"))
    message = refusal(capsys, "openvino", "--model", str(model), *home)
    assert "Run it in a clone" in message
    assert not (tmp_path / "results").exists()


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a tuning short: fewer N, rounds and tokens."""
    for module in (plans, tune_engine):
        monkeypatch.setattr(module, "GRID", (1, 2, 3, 4, 5, 9))
        monkeypatch.setattr(module, "ROUNDS", 3)
        monkeypatch.setattr(module, "LIMIT", 8)


@pytest.mark.slow
def test_a_tuning_and_its_repetition(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], short: None
) -> None:
    """T(N), trace, choice and proof of the shipped model; a second call reads the sealed takes.

    The log holds no text and no token of the prompts; these are in a separate folder.
    """
    from engines.shipped import fetched

    fetched()
    prompts = write_prompts(tmp_path / "p.jsonl", PHRASE, f"{PHRASE} green")
    results = tmp_path / "home" / "results"
    arguments = ["tune", "llama_cpp", "--prompts", str(prompts), "--threads", "1", "--repeats", "2"]
    arguments += ["--results", str(results), "--format", "json"]
    run_command(arguments)
    report = json.loads(capsys.readouterr().out)
    assert set(report) == KEYS
    assert all(set(setting) == SETTING_KEYS for setting in report["settings"])
    assert {row["n"] for row in report["curve"]} == {1, 2, 3, 4, 5, 9}
    assert all(setting["identical_share"] == 1 for setting in report["settings"])
    assert all(setting["steps_equal"] and setting["exact"] for setting in report["settings"])
    over = report["held_out"]["over_none"]
    assert [(row["k"], row["drafter"]) for row in over] == [
        (setting["k"], setting["drafter"]) for setting in report["settings"]
    ]
    assert all(row["all"]["low"] <= row["all"]["value"] for row in over)
    assert report["verdict"] in ("speculate", "none", "undecided")
    assert report["paste"].startswith("llama-server -m ")
    start = time.monotonic()
    run_command(arguments)
    assert json.loads(capsys.readouterr().out) == report
    assert time.monotonic() - start < 30
    raw = b"".join(path.read_bytes() for path in (results / "events").rglob("*.jsonl"))
    assert b"blue gate" not in raw
    texts = list((tmp_path / "home" / "results.texts").iterdir())
    assert any(b"blue gate" in path.read_bytes() for path in texts)
    takes = read_scope(Layout(results), "cpu")
    lookups, by_k, defaults = 4 + 1, (2 + 2 + 1) * 7, 4
    """Those that one trace answers for; K up to 8 of drafters with memory; and their defaults."""
    assert sum(len(take.events_of(DraftsTraced)) for take in takes) == 2 * (
        lookups + by_k + defaults
    )
    assert len(report["gain"]["over_defaults"]) == 5
    assert any(take.events_of(DecodeMeasured) for take in takes)
    run_command([*arguments[:-2], "--format", "text"])
    text = capsys.readouterr().out
    assert "verdict: " in text
    assert report["paste"] in text
    assert msgspec_json.encode(report)
    assert report["held_out"]["temperature"] == 0
    run_command([*arguments, "--temperature", "0.8"])
    hot = json.loads(capsys.readouterr().out)
    assert hot["held_out"]["temperature"] == 0.8
    assert hot["events"][0] == report["events"][0]
    assert not set(hot["events"][1:]) & set(report["events"][1:])
    assert all(
        setting["identical_share"] == 1 and setting["steps_equal"] for setting in hot["settings"]
    )
    assert "--temp 0.8" in hot["paste"]


@pytest.mark.slow
def test_caches_of_all_slots_have_to_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Weights and one prompt's cache fit, two caches do not: refused before anything is timed."""
    from engines.shipped import WEIGHTS, fetched
    from nearfree.engines import kernel
    from nearfree.engines.files import cached_weights
    from nearfree.gguf.header import stored_bytes
    from nearfree.gguf.reader import read_header
    from nearfree.models.gguf_forward import shape_of

    fetched()
    header = read_header(cached_weights(WEIGHTS))
    shape = shape_of(header)
    cache = 4 * shape.layers * shape.kv_heads * shape.head_dim * 2048
    monkeypatch.setattr(
        kernel, "free_host_bytes", lambda: stored_bytes(header) + cache + cache // 2
    )
    home = ("--results", str(tmp_path / "home" / "results"))
    message = refusal(capsys, "llama_cpp", "--batch", "2", "--context", "2048", *home)
    assert "Choose a smaller model, batch or context" in message
    assert not (tmp_path / "home").exists()


@pytest.mark.slow
def test_a_tuning_of_two_prompts_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], short: None
) -> None:
    """Outputs and steps equal those of each prompt alone, whatever runs at the same time."""
    from engines.shipped import fetched

    fetched()
    texts = [f"{PHRASE} {word}" for word in ("green", "blue", "gate", "door", "7", "9")]
    prompts = write_prompts(tmp_path / "p.jsonl", *texts)
    results = tmp_path / "home" / "results"
    arguments = ["tune", "llama_cpp", "--prompts", str(prompts), "--threads", "1", "--repeats", "1"]
    arguments += ["--results", str(results), "--format", "json", "--batch", "2"]
    run_command(arguments)
    report = json.loads(capsys.readouterr().out)
    assert set(report) == KEYS
    assert report["held_out"]["batch"] == 2
    assert {row["n"] for row in report["curve"]} == {1, 2, 3, 4, 5, 9}
    assert any(setting["k"] for setting in report["settings"])
    assert all(setting["identical_share"] == 1 for setting in report["settings"])
    assert all(setting["steps_equal"] and setting["exact"] for setting in report["settings"])
    assert "--parallel 2 -c 2048" in report["paste"]


def run_command(arguments: list[str]) -> None:
    """Run a command and check that it ends with exit code 0."""
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert not end.value.code


@pytest.mark.slow
def test_an_interrupt_is_one_message_and_keeps_sealed_takes(tmp_path: Path) -> None:
    """Ctrl-C during a tuning: exit code 2, no traceback, and the probe stays."""
    from engines.shipped import fetched

    fetched()
    results = tmp_path / "home" / "results"
    arguments = [sys.executable, "-m", "nearfree", "tune", "llama_cpp", "--threads", "1"]
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [*arguments, "--results", str(results)],
        env=os.environ | {"PYTHONPATH": str(root / "workflow")},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        while process.poll() is None and not list(results.glob("events/cpu/llama_cpp*/*.jsonl")):
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 2, errors
    assert "Traceback" not in errors
    assert "tuning was stopped" in errors
    assert list(results.glob("events/cpu/hardware/*.seal.json"))
