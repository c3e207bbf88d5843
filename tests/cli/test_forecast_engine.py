"""`nearfree predict --engine`: a GGUF file's forward on a CPU, by rules and by curves."""

from pathlib import Path
from typing import Any

import pytest
from derive.engines import engine_log, forward
from derive.predict.test_engine_answers import CONSTANTS
from gguf_files.files import Said, gguf, scalar, string
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
    tensors = [Said(f"blk.{n}.ffn_up.weight", (64, 128), Q8_0, size) for n in range(2)]
    path = tmp_path / "small.gguf"
    path.write_bytes(gguf(metadata, tensors))
    return path


def asked(file: Path | str, *argv: str, engine: str = "llama_cpp") -> tuple[str, ...]:
    """Return a command."""
    return ("predict", "--platform", "cpu", "--engine", engine, "--model", str(file), *argv)


def answered(call: Call, *argv: str) -> dict[str, Any]:
    """Return the one answer of a command."""
    code, out, err = call(*argv, "--format", "json")
    assert (code, err) == (0, "")
    (found,) = json.decode(out)
    return dict(found)


def by_predictor(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the answers by predictor."""
    return {each["predictor"]: each for each in found["predictors"]}


def test_rules_answer_without_a_measurement(call: Call, file: Path) -> None:
    """N_max and the steps have file and lines; the work model says what is missing."""
    found = answered(call, *asked(file, "--cpu-flags", ZEN4, engine="llama.cpp"))
    said = by_predictor(found)
    assert said["principle_resolved"]["n_max"] == 1.0
    assert "sgemm.cpp:" in said["principle_resolved"]["evidence"]
    assert "no curve of llama_cpp 3.22.1 with 1 thread on cpu" in said["work_model"]["refusal"]
    assert [(step["rows"], step["before"], step["after"]) for step in found["steps"]][:3] == [
        (2, 1, 1), (5, 1, 2), (9, 2, 3),
    ]  # fmt: skip
    assert found["steps"][-1]["rows"] == 33
    assert (found["release"], found["batch"], found["latency"]) == ("3.22.1", 1, [])


def test_a_folder_stands_for_the_only_file_in_it(call: Call, file: Path) -> None:
    """As it does without an engine."""
    whole, folder = (answered(call, *asked(at, "--cpu-flags", ZEN4)) for at in (file, file.parent))
    assert folder["model"] == str(file.parent)
    assert {**folder, "model": str(file)} == whole


def test_curves_of_the_release_say_what_positions_cost(
    call: Call, file: Path, tmp_path: Path
) -> None:
    """T(N) follows from curves of the same types, and the library's own words say its flags."""
    others = [forward(matrices=MATRICES, shape=SHAPE, context=each) for each in (256, 1024)]
    engine_log(Layout(tmp_path / "r"), others, CONSTANTS, grid=range(1, 34))
    found = answered(call, *asked(file, "--results", str(tmp_path / "r")))
    said = by_predictor(found)["work_model"]
    assert (said["in_sample"], "refusal" in said) == (False, False)
    assert said["low"] <= said["n_max"] <= said["high"]
    assert said["censored"] == (said["n_max"] == 33)
    assert [each["n"] for each in found["latency"]] == [1, 2, 4, 8, 16]
    ratios = [each["ratio"] for each in found["latency"]]
    assert ratios[0] == 1.0
    assert ratios == sorted(ratios)
    assert found["constants"]["curves"]
    assert found["flags_from"] == "as the library reported when it was measured"
    two = answered(call, *asked(file, "--results", str(tmp_path / "r"), "--threads", "2"))
    assert "2 threads" in by_predictor(two)["work_model"]["refusal"]


def test_the_text_has_the_steps_and_the_times(call: Call, file: Path, tmp_path: Path) -> None:
    """Steps that come at several rows stand in one line; times are in ms."""
    known = [forward(matrices=MATRICES, shape=SHAPE)]
    engine_log(Layout(tmp_path / "r"), known, CONSTANTS)
    code, out, err = call(*asked(file, "--results", str(tmp_path / "r")))
    assert (code, err) == (0, "")
    assert "5, 9, 13, 17, 21, 25, 29, 33" in out
    assert "T(N)/T(1)" in out
    assert ">= 33  >= 33 to >= 33" in out
    assert by_predictor(answered(call, *asked(file, "--results", str(tmp_path / "r"))))[
        "work_model"
    ]["censored"]
    assert "no limit up to there, in sample" in out


def test_several_batches_and_another_release(call: Call, file: Path) -> None:
    """Options of what is asked take lists; each has an answer of its own."""
    argv = ("--release", "0.3.36", "--no-repack", "--cpu-flags", ZEN4, "--batch", "1,4")
    code, out, err = call(*asked(file, *argv, "--format", "json"))
    assert (code, err) == (0, "")
    found = json.decode(out)
    assert [(each["batch"], each["release"], each["repack"]) for each in found] == [
        (1, "0.3.36", False), (4, "0.3.36", False),
    ]  # fmt: skip
    assert all(step["rows"] % 4 == 0 for step in found[1]["steps"])


@pytest.mark.parametrize(
    ("argv", "names"),
    [
        (("--release", "9.9.9"), "llama-cpp 9.9.9 is not in the cache. Recorded in "),
        (("--release", "9.9.9"), "--online reads any other one"),
        (("--release", "latest"), "latest"),
        (("--cpu-flags", "neon"), "neon"),
        (("--moe", "vllm"), "--moe"),
        (("--positions", "4"), "--positions"),
        (("--format", "csv"), "csv"),
        (("--context", "2048"), "L + N = 2049"),
    ],
)
def test_mistakes_are_one_message(call: Call, file: Path, argv: tuple[str, ...], names) -> None:
    """What cannot be asked ends with code 2, and names itself."""
    flags = () if "--cpu-flags" in argv else ("--cpu-flags", ZEN4)
    code, out, err = call(*asked(file, *argv, *flags))
    assert (code, out) == (2, "")
    assert names in err
    assert "Traceback" not in err


def test_odd_files_and_engines_are_one_message(call: Call, tmp_path: Path) -> None:
    """No such file, no GGUF, no such engine, a GPU, and options without an engine."""
    odd = tmp_path / "odd.gguf"
    odd.write_bytes(b"no GGUF at all")
    for argv, named in (
        (asked(tmp_path / "none.gguf", "--cpu-flags", ZEN4), "none.gguf"),
        (asked(odd, "--cpu-flags", ZEN4), "odd.gguf"),
        (
            asked(odd, engine="tgi"),
            "'tgi' is unknown. Choose llama_cpp, openvino on a CPU, or vllm",
        ),
        (("predict", "--platform", "h20", "--engine", "llama_cpp", "--model", str(odd)), "h20"),
        (("predict", "--platform", "cpu", "--threads", "2", "--model", str(odd)), "--threads"),
        (("predict", "--platform", "cpu", "--no-repack", "--model", str(odd)), "--no-repack has"),
    ):
        code, out, err = call(*argv)
        assert (code, out) == (2, "")
        assert named in err
        assert "Traceback" not in err
