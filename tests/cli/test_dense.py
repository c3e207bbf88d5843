"""Rows of dense products on the command line: `--dense`, and `granularity` of vLLM's products."""

from typing import Any

import pytest
from msgspec import json

from cli.conftest import Call

MODEL = ("--model", "llama_3_1_8b", "--attention", "flash-attn==2.8.3", "--largest", "66")
PRODUCT = ("--d-model", "4096", "--d-ff", "14336")
NEWEST = "vllm-linear==0.33.0"

pytestmark = pytest.mark.usefixtures("recorded")


def predict(call: Call, *argv: str) -> dict[str, Any]:
    """Return the prediction of one deployment."""
    code, out, err = call("predict", *MODEL, *argv, "--format", "json")
    assert (code, err) == (0, "")
    (answer,) = json.decode(out)
    return dict(answer)


def products_us(answer: dict[str, Any], n: int) -> float:
    """Return the time of all dense products of a step, in microseconds."""
    (row,) = (row for row in answer["curve"] if row["n"] == n)
    names = ("qkv projection", "output projection", "Dense FFN", "LM head")
    return float(sum(row[name] for name in names) * row["latency_us"])


@pytest.mark.slow
def test_quantised_products_run_the_release_of_moe_or_the_newest(call: Call) -> None:
    """Without an option the newest on record, with `--moe` that release; `torch` is a library."""
    options = ("--platform", "l40s", "--weights", "int4", "--context", "128")  # of little attention
    answer = predict(call, *options)
    assert answer["deployment"]["dense"] == "vllm_linear 0.33.0"
    assert predict(call, *options, "--dense", NEWEST)["curve"] == answer["curve"]
    older = predict(call, *options, "--moe", "vllm==0.20.2")
    assert older["deployment"]["dense"] == "vllm_linear 0.20.2"
    library = predict(call, *options, "--dense", "torch")
    assert library["deployment"]["dense"] == "torch"
    assert "dense" not in predict(call, *options, "--moe", "sglang==0.5.9")["deployment"]
    by_tiles, by_library = (
        products_us(n_answer, 65) / products_us(n_answer, 64) for n_answer in (answer, library)
    )
    assert by_tiles > 1.3
    assert by_library < by_tiles - 0.1


def test_products_in_16_bits_have_no_release(call: Call) -> None:
    """Dense products whose weights are not quantised have no release."""
    assert "dense" not in predict(call, "--platform", "l40s")["deployment"]


def test_the_text_names_release_and_line(call: Call) -> None:
    """The title has the release, the modules have the file and lines of their rows."""
    code, out, _ = call("predict", *MODEL, "--platform", "h100", "--weights", "int4", "--all")
    assert code == 0
    assert ", dense products by vllm_linear 0.33.0, " in out.splitlines()[0]
    assert "csrc/quantization/machete/generate.py:" in out


def test_a_backend_without_dense_products_is_refused(call: Call) -> None:
    """An attention backend, also for weights in 16 bits, and a release that is not on record."""
    command = ("predict", *MODEL, "--platform", "h100", "--weights", "int4", "--dense")
    code, _, err = call(*command, "flash-attn==2.8.3")
    assert (code, "runs no dense products" in err) == (2, True)
    code, _, err = call(*command, "vllm-linear==0.30.0")
    assert (code, "Recorded in" in err and NEWEST in err) == (2, True)
    code, _, err = call("predict", *MODEL, "--platform", "h100", "--dense", "flash-attn==2.8.3")
    assert (code, "runs no dense products" in err) == (2, True)


def test_an_engine_that_is_not_on_record_is_refused(call: Call) -> None:
    """Also for a model without experts, whose graphs and rows are rules of the release."""
    code, _, err = call("predict", *MODEL, "--platform", "h100", "--moe", "vllm==77.0.0")
    assert (code, "Recorded in" in err and "vllm==0.33.0" in err) == (2, True)
    code, _, err = call("predict", *MODEL, "--platform", "h100", "--graphs", "vllm==77.0.0")
    assert (code, "the CUDA graphs of vllm 77.0.0 are not on record" in err) == (2, True)
    assert " vllm==0.33.0;" in err
    assert "vllm-graphs" not in err


def test_granularity_of_a_product(call: Call) -> None:
    """Intervals of rows with the tile and, where it is several, the passes over the weights."""
    command = ("granularity", NEWEST, *PRODUCT, "--dtype", "int4", "--sm", "80", "--tokens")
    code, out, err = call(*command, "60:70")
    assert (code, err) == (0, "")
    rows = [line.split() for line in out.splitlines()[3:]]
    assert [line[:4] for line in rows] == [["60", "to", "64", "64"], ["65", "to", "70", "64"]]
    assert "2 passes over the weights" in out.splitlines()[4]
    assert "passes" not in out.splitlines()[3]
    document = json.decode(call(*command, "60:70", "--format", "json")[1])
    assert [interval["passes"] for interval in document["intervals"]] == [1, 2]


def test_granularity_of_a_product_in_four_bits(call: Call) -> None:
    """Where a device has no units for nvfp4, Marlin takes 16-bit rows past the weights."""
    sides = ("--d-model", "4096", "--d-ff", "4096")
    command = ("granularity", "vllm-linear==0.24.0", *sides, "--dtype", "nvfp4", "--sm", "90")
    code, out, err = call(*command, "--tokens", "64:65", "--format", "json")
    assert (code, err) == (0, "")
    document = json.decode(out)
    assert [path["path"] for path in document["kernel_path"]] == ["Marlin"]
    assert [interval["passes"] for interval in document["intervals"]] == [1, 2]


@pytest.mark.parametrize(
    ("options", "reasons"),
    [
        (("--d-ff", "8", "--sm", "90", "--dtype", "fp8"), "--d-model"),
        ((*PRODUCT, "--dtype", "fp8"), "compute capability"),
        ((*PRODUCT, "--sm", "90"), "a library chooses its tile"),
        ((*PRODUCT, "--sm", "90", "--dtype", "mxfp4"), "the kernel that runs them is unknown"),
        ((*PRODUCT, "--sm", "90", "--dtype", "fp8_block"), "DeepGEMM"),
        ((*PRODUCT, "--sm", "86", "--dtype", "int8"), "no kernel|CUTLASS"),
    ],
)
def test_a_question_without_an_answer_is_refused(
    call: Call, options: tuple[str, ...], reasons: str
) -> None:
    """What is missing is named: an option, a format, or the kernel that runs."""
    code, out, err = call("granularity", NEWEST, *options)
    assert (code, out) == (2, "")
    assert any(reason in err for reason in reasons.split("|"))
