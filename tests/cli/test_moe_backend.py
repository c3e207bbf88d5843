"""The kernel of experts that an engine's own option names, on the command line."""

from typing import Any

import pytest
from msgspec import json
from nearfree.backends.moe_kernels import TRITON, TRTLLM

from cli.conftest import Call

pytestmark = pytest.mark.usefixtures("recorded")
OPTIONS = ("--platform", "b200", "--moe", "vllm==0.33.0", "--largest", "16")


def predict(call: Call, *argv: str) -> dict[str, Any]:
    """Return the prediction of a model with experts in 16 bits on a B200."""
    command = ("predict", "--model", "qwen3_30b_a3b", *OPTIONS)
    code, out, err = call(*command, *argv, "--format", "json")
    assert (code, err) == (0, "")
    (answer,) = json.decode(out)
    return dict(answer)


def test_a_named_kernel_is_answered(call: Call) -> None:
    """T(N) with Triton differs from that of the kernel that vLLM takes by default."""
    default, named = predict(call), predict(call, "--moe-backend", "triton")
    assert [row["n"] for row in default["curve"]] == [row["n"] for row in named["curve"]]
    assert default["curve"] != named["curve"]
    kernels = [answer["deployment"]["moe_kernel"] for answer in (default, named)]
    assert kernels == [TRTLLM, TRITON]
    code, out, _ = call("predict", "--model", "qwen3_30b_a3b", *OPTIONS, "--moe-backend", "triton")
    assert code == 0
    assert "experts by vllm 0.33.0 (Triton), " in out.splitlines()[0]


def test_the_engine_s_own_choice_by_its_name_changes_nothing(call: Call) -> None:
    """To name the default kernel changes nothing."""
    assert predict(call, "--moe-backend", "flashinfer_trtllm") == predict(call)


@pytest.mark.parametrize(
    ("model", "word", "message"),
    [
        ("qwen3_8b", "triton", "'triton' names a kernel of experts in qwen3_8b, which has no exp"),
        ("qwen3_30b_a3b", "cublas", "'cublas' names no MoE kernel of vllm that is read"),
        ("qwen3_30b_a3b", "triton_kernel", "'triton_kernel' names no MoE kernel of vllm"),
    ],
)
def test_a_word_that_names_no_kernel_of_the_model_is_refused(
    call: Call, model: str, word: str, message: str
) -> None:
    """A model without experts has no such kernel, and an engine has its own names alone."""
    code, out, err = call("predict", "--model", model, *OPTIONS, "--moe-backend", word)
    assert code == 2
    assert message in out + err
    assert "Leave --moe-backend out" in out + err or "Name marlin, triton, " in out + err


@pytest.mark.parametrize("engine", ["tensorrt-llm", "torch-grouped"])
def test_an_engine_without_the_option_takes_no_word(call: Call, engine: str) -> None:
    """An engine that has no option for its kernel refuses any name."""
    command = ("predict", "--model", "qwen3_30b_a3b", "--platform", "b200", "--moe", engine)
    code, out, err = call(*command, "--moe-backend", "marlin")
    assert (code, "'marlin' names no MoE kernel of" in out + err) == (2, True)
    assert "Leave --moe-backend out" in out + err


def test_a_kernel_that_does_not_take_the_file_s_experts_is_refused(call: Call) -> None:
    """FlashInfer's kernels take float8 with stored scales, which other files do not have."""
    for word, code in (("flashinfer_cutlass", 2), ("triton", 0)):
        command = ("predict", "--model", "qwen3_30b_a3b", *OPTIONS, "--weights", "float8")
        exit_code, out, err = call(*command, "--moe-backend", word)
        assert exit_code == code
        reason = "takes experts in float8 whose file stores scales of activations"
        assert (reason in out + err) == (code == 2)


def test_a_kernel_that_chooses_its_blocks_itself_is_named(call: Call) -> None:
    """Of 8-bit experts with 16-bit rows vLLM's rule says one size; the refusal says who runs."""
    asked = ("--model", "qwen3_30b_a3b", "--platform", "a100", "--engine", "vllm")
    code, out, _ = call("predict", *asked, "--weights", "int8", "--activations", "bfloat16")
    assert code == 2
    assert "Marlin runs this layer and chooses BLOCK_SIZE_N and BLOCK_SIZE_K itself" in out
