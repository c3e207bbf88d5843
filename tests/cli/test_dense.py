"""Rows of dense products on the command line: `--dense`, and `granularity` of vLLM's products."""

from typing import Any

import pytest
from msgspec import json

from cli.conftest import Call

MODEL = ("--model", "llama_3_1_8b", "--attention", "flash-attn==2.8.3", "--largest", "66")
PRODUCT = ("--d-model", "4096", "--d-ff", "14336")
NEWEST = "vllm-linear==0.33.0"

pytestmark = pytest.mark.usefixtures("recorded")


def predicted(call: Call, *argv: str) -> dict[str, Any]:
    """Return what is predicted of one deployment."""
    code, out, err = call("predict", *MODEL, *argv, "--format", "json")
    assert (code, err) == (0, "")
    (found,) = json.decode(out)
    return dict(found)


def ratio(found: dict[str, Any], n: int) -> float:
    """Return T(N) / T(1)."""
    (row,) = (row for row in found["curve"] if row["n"] == n)
    return float(row["ratio"])


@pytest.mark.slow
def test_quantised_products_run_the_release_of_moe_or_the_newest(call: Call) -> None:
    """Without an option the newest on record, with `--moe` that release; `torch` is a library."""
    asked = ("--platform", "l40s", "--weights", "int4", "--context", "128")  # of little attention
    plain = predicted(call, *asked)
    assert plain["deployment"]["dense"] == "vllm_linear 0.33.0"
    assert predicted(call, *asked, "--dense", NEWEST)["curve"] == plain["curve"]
    older = predicted(call, *asked, "--moe", "vllm==0.20.2")
    assert older["deployment"]["dense"] == "vllm_linear 0.20.2"
    library = predicted(call, *asked, "--dense", "torch")
    assert library["deployment"]["dense"] == "torch"
    assert "dense" not in predicted(call, *asked, "--moe", "sglang==0.5.9")["deployment"]
    by_tiles, by_library = (ratio(each, 65) / ratio(each, 64) for each in (plain, library))
    assert by_tiles > 1.25
    assert by_library < 1.2


def test_sixteen_bits_are_a_library_s(call: Call) -> None:
    """Nothing is said of dense products whose weights are not quantised."""
    assert "dense" not in predicted(call, "--platform", "l40s")["deployment"]


def test_the_text_names_release_and_line(call: Call) -> None:
    """The title has the release, modules the file and lines that say their rows."""
    code, out, _ = call("predict", *MODEL, "--platform", "h100", "--weights", "int4", "--all")
    assert code == 0
    assert ", dense products by vllm_linear 0.33.0, " in out.splitlines()[0]
    assert "csrc/quantization/machete/generate.py:" in out


def test_what_runs_no_dense_products_is_refused(call: Call) -> None:
    """An attention backend, also for weights in 16 bits, and a release that is not on record."""
    asked = ("predict", *MODEL, "--platform", "h100", "--weights", "int4", "--dense")
    code, _, err = call(*asked, "flash-attn==2.8.3")
    assert (code, "runs no dense products" in err) == (2, True)
    code, _, err = call(*asked, "vllm-linear==0.30.0")
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
    asked = ("granularity", NEWEST, *PRODUCT, "--dtype", "int4", "--sm", "80", "--tokens")
    code, out, err = call(*asked, "60:70")
    assert (code, err) == (0, "")
    told = [line.split() for line in out.splitlines()[2:]]
    assert [line[:4] for line in told] == [["60", "to", "64", "64"], ["65", "to", "70", "64"]]
    assert "2 passes over the weights" in out.splitlines()[3]
    assert "passes" not in out.splitlines()[2]
    found = json.decode(call(*asked, "60:70", "--format", "json")[1])
    assert [each["passes"] for each in found["intervals"]] == [1, 2]


def test_granularity_of_a_product_in_four_bits(call: Call) -> None:
    """Where a device has no units for nvfp4, Marlin takes 16-bit rows past the weights."""
    sides = ("--d-model", "4096", "--d-ff", "4096")
    asked = ("granularity", "vllm-linear==0.24.0", *sides, "--dtype", "nvfp4", "--sm", "90")
    code, out, err = call(*asked, "--tokens", "64:65", "--format", "json")
    assert (code, err) == (0, "")
    found = json.decode(out)
    assert [each["path"] for each in found["kernel_path"]] == ["Marlin"]
    assert [each["passes"] for each in found["intervals"]] == [1, 2]


@pytest.mark.parametrize(
    ("options", "why"),
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
    call: Call, options: tuple[str, ...], why: str
) -> None:
    """What lacks is named: an option, a format, or the kernel that runs."""
    code, out, err = call("granularity", NEWEST, *options)
    assert (code, out) == (2, "")
    assert any(each in err for each in why.split("|"))
