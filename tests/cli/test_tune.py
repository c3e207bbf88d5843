"""`nearfree tune`: what it refuses, and a whole tuning of the shipped model in short."""

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

from cli.test_measure_engine import written

KEYS = {
    "schema", "engine", "model", "curve", "curve_of", "settings", "predicted", "by_kind", "choice",
    "gain", "verdict", "held_out", "paste", "events",
}  # fmt: skip
SETTING_KEYS = {
    "k", "drafter", "threads", "repack", "predicted_tokens_s", "tokens_s", "identical_share",
    "steps_equal", "exact", "first_difference", "margin",
}  # fmt: skip
PHRASE = "Repeat: blue gate 7 green door 9 blue gate 7 green door 9 blue gate 7"


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Return what a command says that ends with exit code 2, in one message."""
    with pytest.raises(SystemExit) as end:
        main(["tune", *words])
    said = capsys.readouterr().err
    assert end.value.code == 2, said
    assert "Traceback" not in said
    return said


def write_prompts(path: Path, *texts: str) -> Path:
    """Write a file of prompts."""
    path.write_text("".join(f"{json.dumps({'prompt': text})}\n" for text in texts))
    return path


def test_mistakes_end_in_one_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Engines, files, drafters and contexts that cannot be are named, and nothing is written."""
    home = ("--results", str(tmp_path / "home" / "results"))
    assert "not an engine that nearfree can tune" in refused(capsys, "an_engine", *home)
    missing = str(tmp_path / "none.gguf")
    assert "none.gguf" in refused(capsys, "llama_cpp", "--model", missing, *home)
    text = tmp_path / "text.gguf"
    text.write_text("no weights")
    assert "text.gguf" in refused(capsys, "llama_cpp", "--model", str(text), *home)
    empty = write_prompts(tmp_path / "empty.jsonl")
    said = refused(capsys, "llama_cpp", "--model", missing, "--prompts", str(empty), *home)
    assert "holds no prompt" in said
    said = refused(capsys, "llama_cpp", "--drafter", "draft_model", *home)
    assert "needs --draft-model" in said
    said = refused(capsys, "llama_cpp", "--drafter", "none", "--draft-model", missing, *home)
    assert "takes no --draft-model" in said
    assert "compared or replayed" in refused(capsys, "openvino", "--temperature", "0.8", *home)
    for heat in ("-1", "nan", "101", "warm"):
        assert "--temperature" in refused(capsys, "llama_cpp", f"--temperature={heat}", *home)
    said = refused(capsys, "openvino", "--batch", "2", *home)
    assert "one prompt alone" in said
    assert "llama_cpp" in said
    for many in ("0", "-1", "two"):
        assert "--batch" in refused(capsys, "llama_cpp", f"--batch={many}", *home)
    three = write_prompts(tmp_path / "three.jsonl", "one", "two", "three")
    said = refused(capsys, "llama_cpp", "--batch", "2", "--prompts", str(three), *home)
    assert "--batch 2 exceeds 1, the smaller of the numbers" in said
    assert not (tmp_path / "home").exists()


def test_a_part_of_a_model_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One file of several is refused, as the model and as what drafts for it."""
    home = ("--results", str(tmp_path / "home" / "results"))
    whole, part = written(tmp_path / "whole.gguf"), written(tmp_path / "part.gguf", parts=2)
    for words in (("--model", str(part)), ("--model", str(whole), "--draft-model", str(part))):
        said = refused(capsys, "llama_cpp", *words, *home)
        assert "part.gguf: split.count 2 says that the file is one of several" in said
    assert not (tmp_path / "home").exists()


def test_more_threads_than_cpus_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They would wait for each other; without a word all are weighed that this process may use."""
    monkeypatch.setattr(threads, "usable_cpus", lambda: 3)
    home = ("--results", str(tmp_path / "home" / "results"))
    words = ("llama_cpp", "--model", str(written(tmp_path / "model.gguf")), *home)
    said = refused(capsys, *words, "--threads", "1,5000")
    assert "5000 threads are more than the 3 CPUs" in said
    assert not (tmp_path / "home").exists()

    def weighed(*_: object) -> None:
        raise ConfigError(f"weighed: {_[2]}", remedy="None")

    monkeypatch.setattr(tune_engine, "_plans", weighed)
    assert "weighed: (1, 3)" in refused(capsys, *words)


def test_a_signal_in_a_step_that_is_sealed_begins_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGTERM in the last round of T(N) is not lost: the trace is not begun."""

    def sealed(*_: object) -> None:
        with stoppable(no_progress) as told:
            os.kill(os.getpid(), signal.SIGTERM)
            told(1.0)

    job = SimpleNamespace(layout=Layout(Path("none")), forwards=None, draft=None)
    monkeypatch.setattr(tune_engine, "_job", lambda _: job)
    monkeypatch.setattr(tune_engine, "_measure_forwards", sealed)
    monkeypatch.setattr(tune_engine, "_trace", lambda *_: pytest.fail("it was begun"))
    with pytest.raises(StoppedError, match="SIGTERM"):
        tune_engine.tune(argparse.Namespace())


def test_results_lie_in_the_users_own_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """$NEARFREE_HOME counts, else the folder for data."""
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
    from gguf_files.files import Said, gguf, scalar, string

    monkeypatch.chdir(tmp_path)
    header = [
        ("general.architecture", string("llama")),
        ("llama.block_count", scalar("uint32", 1)),
        ("llama.context_length", scalar("uint32", 512)),
    ]
    model = tmp_path / "m.gguf"
    model.write_bytes(gguf(header, [Said("blk.0.ffn_up.weight", (256, 2), 8, 16 * 34)]))
    home = ("--results", str(tmp_path / "results"))
    said = refused(capsys, "openvino", "--model", str(model), *home)
    assert "Run it in a clone" in said
    assert not (tmp_path / "results").exists()


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a tuning be a short one: fewer N, rounds and tokens."""
    monkeypatch.setattr(plans, "GRID", (1, 2, 3, 4, 5, 9))
    monkeypatch.setattr(plans, "ROUNDS", 3)
    monkeypatch.setattr(plans, "LIMIT", 8)


@pytest.mark.slow
def test_a_tuning_from_nothing_and_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], short: None
) -> None:
    """T(N), trace, choice and proof of the shipped model; a second time it reads what is sealed.

    The log holds no text and no token of it; these lie in a folder beside.
    """
    from engines.shipped import fetched

    fetched()
    prompts = write_prompts(tmp_path / "p.jsonl", PHRASE, f"{PHRASE} green")
    results = tmp_path / "home" / "results"
    words = ["tune", "llama_cpp", "--prompts", str(prompts), "--threads", "1", "--repeats", "2"]
    words += ["--results", str(results), "--format", "json"]
    main_ends(words)
    first = json.loads(capsys.readouterr().out)
    assert set(first) == KEYS
    assert all(set(each) == SETTING_KEYS for each in first["settings"])
    assert {each["n"] for each in first["curve"]} == {1, 2, 3, 4, 5, 9}
    assert all(each["identical_share"] == 1 for each in first["settings"])
    assert all(each["steps_equal"] and each["exact"] for each in first["settings"])
    over = first["held_out"]["over_none"]
    assert [(each["k"], each["drafter"]) for each in over] == [
        (each["k"], each["drafter"]) for each in first["settings"]
    ]
    assert all(each["all"]["low"] <= each["all"]["value"] for each in over)
    assert first["verdict"] in ("speculate", "none", "undecided")
    assert first["paste"].startswith("llama-server -m ")
    began = time.monotonic()
    main_ends(words)
    assert json.loads(capsys.readouterr().out) == first
    assert time.monotonic() - began < 30
    raw = b"".join(path.read_bytes() for path in (results / "events").rglob("*.jsonl"))
    assert b"blue gate" not in raw
    texts = list((tmp_path / "home" / "results.texts").iterdir())
    assert any(b"blue gate" in path.read_bytes() for path in texts)
    takes = read_scope(Layout(results), "cpu")
    lookups, by_k, defaults = 4 + 1, (2 + 2 + 1) * 7, 4
    """Those that one trace answers for; K up to 8 of those that remember; and their defaults."""
    assert sum(len(take.events_of(DraftsTraced)) for take in takes) == 2 * (
        lookups + by_k + defaults
    )
    assert len(first["gain"]["over_defaults"]) == 5
    assert any(take.events_of(DecodeMeasured) for take in takes)
    main_ends([*words[:-2], "--format", "text"])
    said = capsys.readouterr().out
    assert "verdict: " in said
    assert first["paste"] in said
    assert msgspec_json.encode(first)
    assert first["held_out"]["temperature"] == 0
    main_ends([*words, "--temperature", "0.8"])
    hot = json.loads(capsys.readouterr().out)
    assert hot["held_out"]["temperature"] == 0.8
    assert hot["events"][0] == first["events"][0]
    assert not set(hot["events"][1:]) & set(first["events"][1:])
    assert all(each["identical_share"] == 1 and each["steps_equal"] for each in hot["settings"])
    assert "--temp 0.8" in hot["paste"]


@pytest.mark.slow
def test_caches_of_all_slots_have_to_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Weights and one prompt's cache have room, two do not: refused before anything is timed."""
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
    said = refused(capsys, "llama_cpp", "--batch", "2", "--context", "2048", *home)
    assert "Choose a smaller model, batch or context" in said
    assert not (tmp_path / "home").exists()


@pytest.mark.slow
def test_a_tuning_of_two_prompts_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], short: None
) -> None:
    """Outputs and steps are those that were replayed of each alone, whatever runs beside it."""
    from engines.shipped import fetched

    fetched()
    texts = [f"{PHRASE} {word}" for word in ("green", "blue", "gate", "door", "7", "9")]
    prompts = write_prompts(tmp_path / "p.jsonl", *texts)
    results = tmp_path / "home" / "results"
    words = ["tune", "llama_cpp", "--prompts", str(prompts), "--threads", "1", "--repeats", "1"]
    words += ["--results", str(results), "--format", "json", "--batch", "2"]
    main_ends(words)
    two = json.loads(capsys.readouterr().out)
    assert set(two) == KEYS
    assert two["held_out"]["batch"] == 2
    assert {each["n"] for each in two["curve"]} == {1, 2, 3, 4, 5, 9}
    assert any(each["k"] for each in two["settings"])
    assert all(each["identical_share"] == 1 for each in two["settings"])
    assert all(each["steps_equal"] and each["exact"] for each in two["settings"])
    assert "--parallel 2 -c 2048" in two["paste"]


def main_ends(words: list[str]) -> None:
    """Run a command that ends well."""
    with pytest.raises(SystemExit) as end:
        main(words)
    assert not end.value.code


@pytest.mark.slow
def test_an_interrupt_ends_in_one_message_and_keeps_what_was_sealed(tmp_path: Path) -> None:
    """Ctrl-C in the middle: exit code 2, no traceback, and the probe stays."""
    from engines.shipped import fetched

    fetched()
    results = tmp_path / "home" / "results"
    words = [sys.executable, "-m", "nearfree", "tune", "llama_cpp", "--threads", "1"]
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [*words, "--results", str(results)],
        env=os.environ | {"PYTHONPATH": str(root / "workflow")},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        while process.poll() is None and not list(results.glob("events/cpu/llama_cpp*/*.jsonl")):
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=120)
    assert process.returncode == 2, said
    assert "Traceback" not in said
    assert "tuning was stopped" in said
    assert list(results.glob("events/cpu/hardware/*.seal.json"))
