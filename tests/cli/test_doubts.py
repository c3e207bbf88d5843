"""Whatever command answers by another kernel's curves says so."""

import json

import pytest

from cli.conftest import Call

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
