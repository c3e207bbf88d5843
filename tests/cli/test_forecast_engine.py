"""`nearfree predict --engine`: T(N) of a GGUF file on a CPU, by rules and by curves."""

from pathlib import Path
from typing import Any

import pytest
from derive.engines import engine_log, forward
from derive.predict.test_engine_answers import CONSTANTS
from gguf_files.files import TensorEntry, gguf, scalar, string
from gguf_files.models import model
from msgspec import json
from nearfree.log.events import EngineMatrix, EngineShape
from nearfree.log.names import Layout

from cli.conftest import Call

pytestmark = pytest.mark.usefixtures("recorded")
ZEN4 = "avx2,f16c,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx512vnni"
Q8_0 = 8
MATRICES = (EngineMatrix(part="ffn_up", type="q8_0", rows=128, columns=64, count=2),)
SHAPE = EngineShape(layers=2, heads=4, kv_heads=4, head_dim=16)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return a file of two layers whose matrices are of one type."""
    metadata = [
        ("general.architecture", string("llama")),
        ("llama.block_count", scalar("uint32", 2)),
        ("llama.embedding_length", scalar("uint32", 64)),
        ("llama.attention.head_count", scalar("uint32", 4)),
        ("llama.context_length", scalar("uint32", 2048)),
    ]
    size = 64 * 128 // 32 * 34
    tensors = [TensorEntry(f"blk.{n}.ffn_up.weight", (64, 128), Q8_0, size) for n in range(2)]
    path = tmp_path / "small.gguf"
    path.write_bytes(gguf(metadata, tensors))
    return path


def command(file: Path | str, *argv: str, engine: str = "llama_cpp") -> tuple[str, ...]:
    """Return a command."""
    return ("predict", "--platform", "cpu", "--engine", engine, "--model", str(file), *argv)


def answer(call: Call, *argv: str) -> dict[str, Any]:
    """Return the one answer of a command."""
    code, out, err = call(*argv, "--format", "json")
    assert (code, err) == (0, "")
    (document,) = json.decode(out)
    return dict(document)


def by_predictor(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the answers by predictor."""
    return {row["predictor"]: row for row in document["predictors"]}


def test_layers_with_a_state_have_rules_and_no_time(call: Call, tmp_path: Path) -> None:
    """Passes over the products are known; T(N) has no term for the state, and is refused."""
    _, path = model(tmp_path, "qwen3_5_text", types=lambda matrix: "f32")  # noqa: ARG005
    document = answer(call, *command(path, "--cpu-flags", ZEN4))
    predictors = by_predictor(document)
    assert predictors["principle_resolved"]["n_max"] >= 1.0
    assert "layers have a recurrent state" in predictors["work_model"]["refusal"]


def test_experts_are_passes_of_their_own(call: Call, tmp_path: Path) -> None:
    """Each position more reads rows of k experts more, which limits at once; the text says how."""
    _, path = model(tmp_path, "qwen3_moe", types=lambda matrix: "f32")  # noqa: ARG005
    argv = command(path, "--cpu-flags", ZEN4)
    document = answer(call, *argv)
    assert document["taken_experts"] < document["experts"]
    resolved = by_predictor(document)["principle_resolved"]
    assert resolved["n_max"] == 1.0
    routed = [step for step in document["steps"] if step["routed"]]
    taken = document["taken_experts"]
    assert (routed[0]["before"], routed[0]["after"]) == pytest.approx((taken, 2 * taken))
    assert "ggml-cpu.c:" in routed[0]["place"]
    code, out, _ = call(*argv)
    assert code == 0
    assert f"a token takes {taken} of {document['experts']} experts, each as likely" in out
    assert "f32 of experts, " in out


def test_rules_answer_without_a_measurement(call: Call, file: Path) -> None:
    """N_max and the steps have file and lines; the work model names what is missing."""
    document = answer(call, *command(file, "--cpu-flags", ZEN4, engine="llama.cpp"))
    predictors = by_predictor(document)
    assert predictors["principle_resolved"]["n_max"] == 1.0
    assert "sgemm.cpp:" in predictors["principle_resolved"]["evidence"]
    assert (
        "no curve of llama_cpp 3.22.1 with 1 thread on cpu" in predictors["work_model"]["refusal"]
    )
    assert [(step["rows"], step["before"], step["after"]) for step in document["steps"]][:3] == [
        (2, 1, 1), (5, 1, 2), (9, 2, 3),
    ]  # fmt: skip
    assert document["steps"][-1]["rows"] == 33
    assert (document["release"], document["batch"], document["latency"]) == ("3.22.1", 1, [])


def test_a_folder_of_one_file_means_the_file(call: Call, file: Path) -> None:
    """A folder means its only file, as without an engine."""
    of_file, of_folder = (
        answer(call, *command(path, "--cpu-flags", ZEN4)) for path in (file, file.parent)
    )
    assert of_folder["model"] == str(file.parent)
    assert {**of_folder, "model": str(file)} == of_file


def test_curves_of_the_release_give_the_cost_of_positions(
    call: Call, file: Path, tmp_path: Path
) -> None:
    """T(N) follows from curves of the same types; the flags are those that the library reports."""
    forwards = [forward(matrices=MATRICES, shape=SHAPE, context=context) for context in (256, 1024)]
    engine_log(Layout(tmp_path / "r"), forwards, CONSTANTS, grid=range(1, 34))
    document = answer(call, *command(file, "--results", str(tmp_path / "r")))
    work_model = by_predictor(document)["work_model"]
    assert (work_model["in_sample"], "refusal" in work_model) == (False, False)
    assert work_model["low"] <= work_model["n_max"] <= work_model["high"]
    assert work_model["censored"] == (work_model["n_max"] == 33)
    assert [row["n"] for row in document["latency"]] == [1, 2, 4, 8, 16]
    ratios = [row["ratio"] for row in document["latency"]]
    assert ratios[0] == 1.0
    assert ratios == sorted(ratios)
    assert document["constants"]["curves"]
    assert document["flags_from"] == "as the library reported when it was measured"
    two_threads = answer(call, *command(file, "--results", str(tmp_path / "r"), "--threads", "2"))
    assert "2 threads" in by_predictor(two_threads)["work_model"]["refusal"]


def test_the_text_has_the_steps_and_the_times(call: Call, file: Path, tmp_path: Path) -> None:
    """Steps at several rows are printed in one line; times are in ms."""
    forwards = [forward(matrices=MATRICES, shape=SHAPE)]
    engine_log(Layout(tmp_path / "r"), forwards, CONSTANTS)
    code, out, err = call(*command(file, "--results", str(tmp_path / "r")))
    assert (code, err) == (0, "")
    assert "5, 9, 13, 17, 21, 25, 29, 33" in out
    assert "T(N)/T(1)" in out
    assert ">= 33  >= 33 to >= 33" in out
    assert by_predictor(answer(call, *command(file, "--results", str(tmp_path / "r"))))[
        "work_model"
    ]["censored"]
    assert "no limit up to there, in sample" in out


def test_several_batches_and_another_release(call: Call, file: Path) -> None:
    """Options take lists; each combination has an answer."""
    argv = ("--release", "0.3.36", "--no-repack", "--cpu-flags", ZEN4, "--batch", "1,4")
    code, out, err = call(*command(file, *argv, "--format", "json"))
    assert (code, err) == (0, "")
    answers = json.decode(out)
    assert [(answer_["batch"], answer_["release"], answer_["repack"]) for answer_ in answers] == [
        (1, "0.3.36", False), (4, "0.3.36", False),
    ]  # fmt: skip
    assert all(step["rows"] % 4 == 0 for step in answers[1]["steps"])


@pytest.mark.parametrize(
    ("argv", "names"),
    [
        (("--release", "9.9.9"), "llama-cpp 9.9.9 is not in the cache. Recorded in "),
        (("--release", "9.9.9"), "--online reads any other one"),
        (("--release", "latest"), "latest"),
        (("--cpu-flags", "neon"), "neon"),
        (("--moe", "vllm"), "--moe"),
        (("--tp", "2"), "--tp has no effect with --engine llama_cpp"),
        (("--largest", "8"), "--largest has no effect with --engine llama_cpp"),
        (("--ignore-memory",), "--ignore-memory has no effect with --engine llama_cpp"),
        (("--all",), "--all has no effect with --engine llama_cpp"),
        (("--positions", "4"), "--positions"),
        (("--format", "csv"), "csv"),
        (("--context", "2048"), "L + N = 2049"),
    ],
)
def test_mistakes_are_one_message(call: Call, file: Path, argv: tuple[str, ...], names) -> None:
    """An impossible question ends with code 2, and the message names it."""
    flags = () if "--cpu-flags" in argv else ("--cpu-flags", ZEN4)
    code, out, err = call(*command(file, *argv, *flags))
    assert (code, out) == (2, "")
    assert names in err
    assert "Traceback" not in err


def test_without_a_platform_the_known_ones_are_named(call: Call, file: Path) -> None:
    """Which platforms an engine's forward is predicted on is told where none is given."""
    code, out, err = call("predict", "--engine", "llama_cpp", "--model", str(file))
    assert (code, out) == (2, "")
    assert "--platform is missing" in err
    assert "(platforms: cpu, or an NVIDIA GPU)" in err


def test_odd_files_and_engines_are_one_message(call: Call, tmp_path: Path) -> None:
    """No such file, no GGUF, no such engine, and options without an engine."""
    odd = tmp_path / "odd.gguf"
    odd.write_bytes(b"no GGUF at all")
    for argv, thing in (
        (command(tmp_path / "none.gguf", "--cpu-flags", ZEN4), "none.gguf"),
        (command(odd, "--cpu-flags", ZEN4), "odd.gguf"),
        (command(odd, engine="tgi"), "'tgi' is unknown. Choose llama_cpp, openvino on a CPU, or"),
        (("predict", "--platform", "cpu", "--threads", "2", "--model", str(odd)), "--threads"),
        (("predict", "--platform", "cpu", "--no-repack", "--model", str(odd)), "--no-repack has"),
    ):
        code, out, err = call(*argv)
        assert (code, out) == (2, "")
        assert thing in err
        assert "Traceback" not in err
