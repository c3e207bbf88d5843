"""The kernel of experts that an engine's own option names, on the command line."""

from typing import Any

import pytest
from msgspec import json
from nearfree.backends.moe_kernels import TRITON, TRTLLM

from cli.conftest import Call

pytestmark = pytest.mark.usefixtures("recorded")
ASKED = ("--platform", "b200", "--moe", "vllm==0.33.0", "--largest", "16")


def predicted(call: Call, *argv: str) -> dict[str, Any]:
    """Return what is predicted of a model's experts in 16 bits on a B200."""
    asked = ("predict", "--model", "qwen3_30b_a3b", *ASKED)
    code, out, err = call(*asked, *argv, "--format", "json")
    assert (code, err) == (0, "")
    (found,) = json.decode(out)
    return dict(found)


def test_a_kernel_that_is_named_answers(call: Call) -> None:
    """Triton's T(N) is another than that of the kernel that vLLM takes there by itself."""
    own, named = predicted(call), predicted(call, "--moe-backend", "triton")
    assert [each["n"] for each in own["curve"]] == [each["n"] for each in named["curve"]]
    assert own["curve"] != named["curve"]
    kernels = [each["deployment"]["moe_kernel"] for each in (own, named)]
    assert kernels == [TRTLLM, TRITON]
    code, out, _ = call("predict", "--model", "qwen3_30b_a3b", *ASKED, "--moe-backend", "triton")
    assert code == 0
    assert "experts by vllm 0.33.0 (Triton), " in out.splitlines()[0]


def test_the_engine_s_own_choice_by_its_name_changes_nothing(call: Call) -> None:
    """What it takes anyway may be said."""
    assert predicted(call, "--moe-backend", "flashinfer_trtllm") == predicted(call)


@pytest.mark.parametrize(
    ("model", "word", "told"),
    [
        ("qwen3_8b", "triton", "'triton' names a kernel of experts in qwen3_8b, which has no exp"),
        ("qwen3_30b_a3b", "cublas", "'cublas' names no MoE kernel of vllm that is read"),
        ("qwen3_30b_a3b", "triton_kernel", "'triton_kernel' names no MoE kernel of vllm"),
    ],
)
def test_a_word_that_names_no_kernel_of_the_model_is_refused(
    call: Call, model: str, word: str, told: str
) -> None:
    """A model without experts has none, and an engine has its own words alone."""
    code, out, err = call("predict", "--model", model, *ASKED, "--moe-backend", word)
    assert code == 2
    assert told in out + err
    assert "Leave --moe-backend out" in out + err or "Name marlin, triton, " in out + err


@pytest.mark.parametrize("engine", ["tensorrt-llm", "torch-grouped"])
def test_an_engine_without_the_option_takes_no_word(call: Call, engine: str) -> None:
    """Of one that has no option for its kernel any word is refused."""
    asked = ("predict", "--model", "qwen3_30b_a3b", "--platform", "b200", "--moe", engine)
    code, out, err = call(*asked, "--moe-backend", "marlin")
    assert (code, "'marlin' names no MoE kernel of" in out + err) == (2, True)
    assert "Leave --moe-backend out" in out + err


def test_a_kernel_that_does_not_take_the_file_s_experts_is_refused(call: Call) -> None:
    """FlashInfer's take float8 with stored scales, which weights in another format do not say."""
    for word, code in (("flashinfer_cutlass", 2), ("triton", 0)):
        asked = ("predict", "--model", "qwen3_30b_a3b", *ASKED, "--weights", "float8")
        found, out, err = call(*asked, "--moe-backend", word)
        assert found == code
        told = "takes experts in float8 whose file stores scales of activations"
        assert (told in out + err) == (code == 2)
