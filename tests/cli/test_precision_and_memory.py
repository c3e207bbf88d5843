"""Precision and memory on the command line: order of the text, refusals, exit codes."""

import csv
import io
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from decoders.files import change, write
from decoders.test_model_file import FP8, NVFP4, STATES
from derive.test_memory import SHAPES
from msgspec import json

from cli.conftest import ROOT, Call
from cli.served_kinds import MODELS

pytestmark = pytest.mark.usefixtures("recorded")
H100 = ("--platform", "h100", "--largest", "16")
BIG = {**SHAPES["llama_70b"], "tie_word_embeddings": False}


def predict(call: Call, path: Path, *argv: str) -> tuple[int, list[dict[str, Any]]]:
    """Return the exit code of `predict`, and what it prints as JSON."""
    code, out, err = call("predict", "--model", str(path), *argv, "--format", "json")
    assert err == ""
    return code, json.decode(out)


def test_a_model_that_does_not_fit_is_reported_first(call: Call, tmp_path: Path) -> None:
    """A 70B model in bf16 on one card of 80 GB: the first line says so, and the exit code is 2."""
    command = ("predict", "--model", str(write(tmp_path, BIG)), *H100)
    code, out, _ = call(*command)
    assert code == 2
    assert out.startswith("DOES NOT FIT: needs 145.6 GB (weights 141.1 GB")
    assert "; 1 h100 has 80.0 GB; 2 h100 hold it" in out.splitlines()[0]
    code, out, _ = call(*command, "--ignore-memory")
    assert code == 0
    assert out.startswith("DOES NOT FIT")


QWEN_72B = {
    **SHAPES["llama_70b"], "model_type": "qwen2", "intermediate_size": 29568, "vocab_size": 152064,
    "tie_word_embeddings": False, "use_sliding_window": False,
    "quantization_config": {"quant_method": "gptq", "bits": 8, "group_size": 128, "sym": True,
                            "desc_act": False},
}  # fmt: skip
"""Its FFN has 231 groups of 128 columns with one scale, which no power of two of GPUs shares."""


def test_gpus_that_an_engine_cannot_share_a_model_among_do_not_hold_it(
    call: Call, tmp_path: Path
) -> None:
    """Where tp splits a scale no number of GPUs is told, whatever their memory; tp 2 is refused."""
    model = write(tmp_path, QWEN_72B)
    code, out, _ = call("predict", "--model", str(model), "--platform", "a100", "--largest", "4")
    assert (code, out.startswith("DOES NOT FIT: needs 80.8 GB")) == (2, True)
    assert "no number of them holds it by --tp alone" in out.splitlines()[0]


@pytest.mark.parametrize(
    ("platform", "tp", "remedy"),
    [
        ("a100", "2", "--tp 1 --pp 2 is answered"),
        ("h200", "2", "--tp 1 is answered"),
        ("l4", "2", "--tp 1 is answered, but does not fit"),
    ],
)
def test_other_degrees_are_named_that_hold_the_model(
    call: Call, tmp_path: Path, platform: str, tp: str, remedy: str
) -> None:
    """Of degrees that are answered one is named that fits; if none does, that is said."""
    about = ("predict", "--model", str(write(tmp_path, QWEN_72B)), "--platform", platform)
    code, _, err = call(*about, "--tp", tp, "--largest", "4")
    assert (code, err.rstrip().endswith(f"; {remedy}")) == (2, True)
    words = remedy.partition(" is ")[0].split()
    code, out, err = call(*about, *words, "--largest", "4")
    assert (code, out.startswith("DOES NOT FIT"), err) == (2 if "not fit" in remedy else 0,
                                                           "not fit" in remedy, "")  # fmt: skip


def test_gpus_that_would_hold_it_by_other_degrees_are_named_with_them(
    call: Call, tmp_path: Path
) -> None:
    """Two copies on two GPUs may not fit where one over both does."""
    model = write(tmp_path, BIG)
    code, out, _ = call("predict", "--model", str(model), *H100, "--dp", "2")
    assert code == 2
    assert "; 2 h100 hold it by --tp 2 alone; " in out.splitlines()[0]


@pytest.mark.parametrize(
    ("platform", "engine", "code"),
    [
        ("h200", "vllm", 0), ("b200", "vllm", 2), ("gb10", "vllm", 2), ("rtx_5090", "vllm", 2),
        ("b200", "sglang", 0),
    ],
)  # fmt: skip
def test_products_in_int8_are_refused_where_vllm_compiles_none(
    call: Call, platform: str, engine: str, code: int
) -> None:
    """On Blackwell vLLM takes a kernel for them that ends with an error; in experts it does not."""
    formats = ("--weights", "int8", "--largest", "4", "--engine", engine)
    found, out, err = call("predict", "--model", "qwen3_8b", "--platform", platform, *formats)
    assert (found, "ends with an error at products in int8" in out + err) == (code, code == 2)
    weights = (*formats, "--dense", "torch")
    found, _, err = call("predict", "--model", "qwen3_8b", "--platform", platform, *weights)
    assert found == 0, err


def test_float32_is_served_in_16_bits(call: Call, tmp_path: Path) -> None:
    """Of a file in float32 a GPU holds half, as engines load it, unless float32 is asked for."""
    model = write(tmp_path, BIG | {"torch_dtype": "float32"})
    arguments = (model, *H100, "--gpus", "2")
    code, (answer,) = predict(call, *arguments)
    assert (code, answer["deployment"]["dtype"]) == (0, "bfloat16")
    assert answer["memory"]["weights_gb"] == pytest.approx(141.1, abs=0.05)
    (note,) = answer["memory"]["notes"]
    assert note.startswith("dtype is float32: bfloat16, as engines load it on GPUs")
    for options in (("--dtype", "float32"), ("--platform", "cpu")):
        _, (answer,) = predict(call, *arguments[:1], *H100, *options)
        assert answer["memory"]["weights_gb"] == pytest.approx(282.2, abs=0.05)
        assert answer["memory"]["notes"] == []


def test_lookup_lists_deployments_that_do_not_fit_first(call: Call, tmp_path: Path) -> None:
    """The table is headed by the deployments that do not fit."""
    code, out, _ = call("lookup", "--model", str(write(tmp_path, BIG)), *H100)
    assert code == 2
    assert out.startswith("small on h100, from b = 1 at L = 4096 on: DOES NOT FIT: needs 145.6 GB")


def test_a_model_that_fits_has_the_largest_batch_and_context(call: Call) -> None:
    """An answer has the memory, the largest batch and the largest context."""
    code, out, _ = call("predict", "--model", "qwen3_8b", *H100)
    assert code == 0
    title, _, _, _, memory, *_ = out.splitlines()
    assert title.startswith("qwen3_8b on h100")
    assert memory.startswith("memory: 19.2 GB of 80.0 GB on 1 h100 (weights 16.4 GB")
    assert "; largest batch at this context: 101; " in memory


def test_json_has_precision_memory_and_refusals(call: Call, tmp_path: Path) -> None:
    """An answer keeps its keys, and adds precision, memory and refusals by their names."""
    path = write(tmp_path, change("qwen3", quantization_config=FP8, hidden_size=256))
    code, (answer,) = predict(call, path, *H100)
    assert code == 0
    parts = {
        "schema",
        "deployment",
        "answer",
        "basis",
        "predictors",
        "modules",
        "besides",
        "curve",
        "memory",
        "refusals",
        "graphs",
        "caveats",
    }
    assert parts == {*answer}
    assert answer["deployment"]["precision"] == {
        "weights": "float8_block", "activations": "float8_block", "kv": "bfloat16",
    }  # fmt: skip
    assert {*answer["memory"]} >= {
        "fits", "weights_gb", "kv_gb", "workspace_gb", "capacity_gb", "gpus_needed",
        "largest_batch", "largest_context",
    }  # fmt: skip
    assert answer["refusals"] == []


@pytest.mark.parametrize("options", [(), ("--weights", "bfloat16"), ("--dtype", "bfloat16")])
def test_unknown_products_stop_a_forward(
    call: Call, tmp_path: Path, options: tuple[str, ...]
) -> None:
    """Weights that are dequantised have a memory and no answer, whatever is asked for instead."""
    section = {"quant_method": "bitsandbytes", "load_in_8bit": True}
    path = write(tmp_path, change("llama", quantization_config=section))
    code, (answer,) = predict(call, path, *H100, *options)
    assert code == 2
    assert answer["predictors"] == []
    assert answer["memory"]["fits"]
    assert [refusal["key"] for refusal in answer["refusals"]] == [
        "quantization_config.quant_method"
    ]


def test_a_refused_forward_has_memory_and_every_reason(call: Call, tmp_path: Path) -> None:
    """Latent attention on GPUs of two nodes: no answer, all reasons, and what the model takes."""
    path = write(tmp_path, STATES | {"quantization_config": FP8})
    options = (*("--platform", "l40s"), "--gpus", "16")
    code, (answer,) = predict(call, path, *options)
    assert code == 2
    assert answer["predictors"] == answer["modules"] == answer["curve"] == []
    keys = [refusal["key"] for refusal in answer["refusals"]]
    assert {"full_attention_interval", "gpus"} <= {*keys}
    assert all({*refusal} == {"file", "key", "reason", "remedy"} for refusal in answer["refusals"])
    assert answer["memory"]["fits"]
    assert answer["deployment"]["precision"]["weights"] == "float8_block"
    code, out, err = call("predict", "--model", str(path), *options)
    assert code == 2
    assert out.splitlines()[1].startswith("memory: ")
    assert all(key in err for key in keys)


def test_bad_files_are_one_message(call: Call, tmp_path: Path) -> None:
    """Files that contradict each other, and a group that divides nothing, are reported together."""
    path = write(tmp_path, change("llama", quantization_config=FP8), "config.json")
    write(tmp_path, NVFP4, "hf_quant_config.json")
    code, (answer,) = predict(call, path, *H100)
    assert code == 2
    assert any(refusal["file"].endswith("hf_quant_config.json") for refusal in answer["refusals"])
    assert answer["memory"] is None


@pytest.mark.parametrize(
    ("section", "reason"),
    [
        ({"quant_method": "squeeze"}, "squeeze"),
        ({"quant_method": "awq", "bits": 4, "group_size": 48, "zero_point": True}, "48"),
        ({"quant_method": "awq", "bits": 5, "group_size": 32, "zero_point": True}, "5"),
    ],
)
def test_unknown_quantisation_is_refused(
    call: Call, tmp_path: Path, section: dict[str, Any], reason: str
) -> None:
    """An unknown method, a group that divides nothing, odd bits: refused, never taken for bf16."""
    code, (answer,) = predict(
        call, write(tmp_path, change("llama", quantization_config=section)), *H100
    )
    assert code == 2
    assert answer["predictors"] == []
    assert any(reason in f"{refusal['key']} {refusal['reason']}" for refusal in answer["refusals"])


def test_a_requested_format_is_used(call: Call) -> None:
    """`--weights` and `--kv-dtype` are in the title, the precision and the memory."""
    code, (answer,) = predict(call, Path("qwen3_8b"), *H100, "--weights", "float8")
    assert code == 0
    assert answer["deployment"]["precision"]["weights"] == "float8"
    assert answer["memory"]["weights_gb"] < 10
    code, out, err = call("predict", "--model", "qwen3_8b", *H100, "--activations", "float8")
    assert (code, out) == (2, "")
    assert "bfloat16 weights enter no product with float8" in err


def test_one_of_several_models_is_refused(call: Call, tmp_path: Path) -> None:
    """The other models are answered; the exit code reports the refusal."""
    path = write(tmp_path, STATES)
    code, answers = predict(call, Path(f"qwen3_8b,{path}"), *H100)
    assert code == 2
    assert [bool(answer["predictors"]) for answer in answers] == [True, False]


@pytest.mark.parametrize(
    "command",
    [("lookup",), ("lookup", "--format", "csv"), ("predict", "--format", "csv"),
     ("predict", "--positions", "2"), ("predict", "--positions", "2", "--format", "csv")],
    ids=" ".join,
)  # fmt: skip
def test_one_of_several_is_refused_in_tables(
    call: Call, tmp_path: Path, command: tuple[str, ...]
) -> None:
    """The others are answered, and the refused one is named on standard error with its file."""
    path = write(tmp_path, STATES)
    code, out, err = call(*command, "--model", f"qwen3_8b,{path}", *H100)
    assert code == 2
    assert "qwen3_8b" in out
    assert str(path) in err
    assert "full_attention_interval" in err
    code, out, err = call(*command, "--model", str(path), *H100)
    assert (code, out) == (2, "")
    assert "full_attention_interval" in err


def test_positions_as_json_have_the_refusals(call: Call, tmp_path: Path) -> None:
    """A deployment without a forward is an entry of its own, with its reasons."""
    path = write(tmp_path, STATES)
    code, answers = predict(call, Path(f"qwen3_8b,{path}"), *H100, "--positions", "2")
    assert code == 2
    assert any("refusals" not in answer for answer in answers)
    assert any(
        r["key"] == "full_attention_interval"
        for answer in answers
        for r in answer.get("refusals", [])
    )


def test_an_unreadable_companion_file_is_a_refusal_in_json(call: Call, tmp_path: Path) -> None:
    """A folder called hf_quant_config.json is a refusal like any other, within the document."""
    path = write(tmp_path, change("llama"), "config.json")
    (tmp_path / "hf_quant_config.json").mkdir()
    code, (answer,) = predict(call, path, *H100)
    assert code == 2
    (refusal,) = answer["refusals"]
    assert refusal["file"].endswith("hf_quant_config.json")
    assert refusal["reason"] == "is not there or is no file"


@pytest.mark.slow
def test_tables_have_the_formats(call: Call) -> None:
    """Rows and tables have the stored format of weights, not only that of products."""
    where = ("--model", "qwen3_8b", *H100, "--weights", "int4")
    for command in ("lookup", "predict"):
        _, out, _ = call(command, *where, "--format", "csv")
        (row, *_) = csv.DictReader(io.StringIO(out))
        values = [row[name] for name in ("dtype", "weights", "kv", "fits")]
        assert values == ["bfloat16", "int4", "bfloat16", "true"]
    for command in (["lookup"], ["surface"], ["predict", "--positions", "2"]):
        assert "int4 weights with bfloat16" in call(*command, *where)[1]


def test_a_format_of_libraries_alone_has_their_form(call: Call) -> None:
    """NVFP4 experts have no blocks to read: on Blackwell a library is named, its tiles assumed."""
    options = ("--model", "qwen3_30b_a3b", "--weights", "nvfp4", "--largest", "4", "--platform")
    code, out, _ = call("predict", *options, "b200", "--all")
    assert code == 0
    assert " (FlashInfer's TRTLLM), tokens spread" in out.splitlines()[0]
    assert "by FlashInfer's TRTLLM, balanced routing" in out
    assert "no rule: the library picks its own tile" in out
    code, out, _ = call("predict", *options, "h100")
    assert code == 2
    assert "h100 has no nvfp4 units" in out


def test_a_refusal_has_a_remedy(call: Call) -> None:
    """A card without units of a format refuses it, with a remedy in the text.

    An engine with a kernel for stored weights alone runs it without an option.
    """
    command = ("predict", "--model", "qwen3_8b", "--platform", "a100", "--weights", "float8")
    code, out, _ = call(*command, "--dense", "torch")
    assert code == 2
    assert "a100 has no float8 units; weights alone can be float8 there" in out
    code, out, _ = call(*command, "--dense", "torch", "--activations", "bfloat16")
    assert code == 0
    code, out, _ = call(*command)
    assert code == 0
    assert "float8 weights with bfloat16" in out


def test_a_refusal_names_no_option_that_changes_nothing(call: Call, tmp_path: Path) -> None:
    """An indexer always multiplies in float8; constants are of no other vendor's GPU."""
    file = str(write(tmp_path, MODELS["deepseek_v3_2"], "v3_2.json"))
    code, out, _ = call("predict", "--model", file, "--platform", "a100", "--weights", "bfloat16")
    assert code == 2
    assert "indexer, index selection: a100 has no float8 units, by which an indexer" in out
    assert "--activations" not in out
    command = ("predict", "--model", "qwen3_8b", "--platform", "mi300x")
    for formats in ((), ("--weights", "nvfp4")):
        code, out, _ = call(*command, *formats)
        assert code == 2
        assert (
            "LM head: constants are of NVIDIA's GPUs, and mi300x has no compute capability" in out
        )
        assert "units" not in out


CHAPTER = (ROOT / "docs" / "guide" / "predict.md").read_text()
SECTION = CHAPTER.partition("\n## Precision and memory\n")[2].partition("\n## ")[0]
COMMANDS = re.findall(r"^nearfree (.*)$", SECTION, re.MULTILINE)


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_of_the_guide_run(call: Call, line: str) -> None:
    """Each ends as its comment says, with 0 where it names no code, and prints the memory."""
    command, _, comment = line.partition("#")
    code, out, err = call(*shlex.split(command))
    expects_refusal = "exit code 2" in comment
    assert (code, bool(err)) == ((2, True) if expects_refusal else (0, False))
    assert "memory" in out or "DOES NOT FIT" in out
