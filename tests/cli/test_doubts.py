"""Whatever command answers by another kernel's curves says so."""

import json

import pytest

from cli.conftest import ROOT, Call

pytestmark = pytest.mark.usefixtures("recorded")
ABOUT = ("--model", "qwen3_8b", "--platform", "b200")
DOUBT = "of T(1) are dense products in int4 whose kernel on this GPU no public curve measures"
COMMANDS = {
    "predict": ("predict",),
    "everything": ("predict", "--all"),
    "positions": ("predict", "--positions", "4", "--batch", "1", "--context", "512"),
    "lookup": ("lookup",),
    "surface": ("surface", "--batch", "1", "--context", "512"),
    "schedule": ("schedule", "vllm", "--largest-batch", "2"),
    "table of K": (
        *("schedule", "vllm", "--largest-batch", "2"),
        *("--goal", "throughput", "--draft-cost", "0.1"),
    ),
}


@pytest.mark.parametrize("weights", ["int4", "bfloat16"])
@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_each_answer_doubts_products_of_other_kernels(
    call: Call, command: tuple[str, ...], weights: str
) -> None:
    """Text and JSON say which products stand on another kernel's constants, and no other answer."""
    _, text, evidence = call(*command, *ABOUT, "--weights", weights)
    assert (DOUBT in text + evidence) == (weights == "int4")
    if "--all" not in command:
        _, out, _ = call(*command, *ABOUT, "--weights", weights, "--format", "json")
        assert json.loads(out)
        assert (DOUBT in out) == (weights == "int4")


LATENTS = (
    *("predict", "--model", str(ROOT / "config/whole/models/deepseek_r1.json")),
    *("--platform", "h200", "--tp", "8", "--context", "16384", "--largest", "2"),
)


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_a_named_format_with_which_a_step_takes_longer_is_told(call: Call, engine: str) -> None:
    """SGLang's kernel takes longer over a float8 cache than over bfloat16, vLLM's does not.

    The caveat has the ratio of both answers, and is there if and only if it is above 1.05.
    """
    asked = (*LATENTS, "--engine", engine, "--batch", "32", "--format", "json")
    answers = [json.loads(call(*asked, "--kv-dtype", kv)[1])[0] for kv in ("float8", "bfloat16")]
    ratio = answers[0]["curve"][0]["latency_us"] / answers[1]["curve"][0]["latency_us"]
    told = [each for each in answers[0]["caveats"] if each.startswith("--kv-dtype float8 makes")]
    assert (ratio > 1.05) == (engine == "sglang") == bool(told)
    assert not told or f"makes T(1) {ratio:.2f} times as long: without it T(1) is" in told[0]


def test_the_condition_where_a_named_format_costs_most_is_told(call: Call) -> None:
    """A table of several conditions has one line about a format, with the largest ratio."""
    asked = (*LATENTS, "--engine", "sglang", "--kv-dtype", "float8", "--batch", "1,32")
    _, out, _ = call(*asked, "--positions", "2")
    (line,) = (line for line in out.splitlines() if "--kv-dtype float8 makes" in line)
    assert line.startswith("deepseek_r1, most at b = 32 and L = 16384: ")


def test_another_engine_without_a_named_format_is_told(call: Call) -> None:
    """Only SGLang's kernel is known of experts in float8 there: without the format vLLM answers."""
    asked = ("predict", "--model", "gpt_oss_20b", "--platform", "b300", "--largest", "2")
    _, out, _ = call(*asked, "--weights", "float8")
    assert "experts by sglang" in out
    (_, _, told) = out.partition("--weights float8 makes T(1) ")
    assert told.splitlines()[0].partition(";")[0].startswith("1.")
    assert "without it by vllm T(1) is " in told


def test_a_format_that_takes_longer_is_told_where_neither_fits(call: Call) -> None:
    """Where neither a named format nor its absence fits in memory, the ratio is told."""
    model = str(ROOT / "config/whole/models/gpt_oss_120b.json")
    asked = ("predict", "--model", model, "--platform", "l40s", "--batch", "32", "--largest", "2")
    answers = [
        json.loads(call(*asked, *weights, "--format", "json")[1])[0]
        for weights in (("--weights", "float8"), ())
    ]
    assert [answer["memory"]["fits"] for answer in answers] == [False, False]
    named_us, own_us = (answer["curve"][0]["latency_us"] for answer in answers)
    told = [each for each in answers[0]["caveats"] if each.startswith("--weights float8 makes")]
    assert f"makes T(1) {named_us / own_us:.2f} times as long: without it T(1) is" in told[0]


@pytest.mark.parametrize("tp", ["4", "8"])
def test_more_gpus_that_take_longer_are_told(call: Call, tp: str) -> None:
    """Beyond the four GPUs of a machine a small model waits longer for all-reduces than it saves.

    The caveat is there if and only if half of tp is faster by more than 5 %.
    """
    about = ("predict", "--model", "llama_3_2_1b", "--platform", "gb300", "--engine", "sglang")
    asked = (*about, "--context", "1024", "--largest", "2", "--format", "json")
    half = str(int(tp) // 2)
    answers = [json.loads(call(*asked, "--tp", each)[1])[0] for each in (tp, half)]
    ratio = answers[0]["curve"][0]["latency_us"] / answers[1]["curve"][0]["latency_us"]
    told = [each for each in answers[0]["caveats"] if each.startswith(f"--tp {tp} makes T(1)")]
    assert (ratio > 1.05) == (tp == "8") == bool(told)
    assert not told or f"{ratio:.2f} times as long: with --tp {half} T(1) is" in told[0]


def test_a_format_that_another_needs_is_not_left_out(call: Call) -> None:
    """Rows in int8 ask for weights in int8: together they are answered, and one alone is not."""
    asked = ("predict", "--model", "qwen3_8b", "--platform", "a100", "--largest", "2")
    formats = ("--activations", "int8", "--weights", "int8")
    code, _, err = call(*asked, *formats)
    assert (code, err) == (0, "")
    assert call(*asked, *formats[:2])[0] == 2
