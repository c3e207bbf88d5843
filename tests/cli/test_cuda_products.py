"""Products of llama.cpp on a GPU on the command line: `granularity llama-cpp-cuda`."""

from typing import Any

import pytest
from msgspec import json

from cli.conftest import Call

pytestmark = pytest.mark.usefixtures("recorded")
RELEASE = "llama-cpp-cuda==0.3.36"
RTX_4090 = ("--device", "NVIDIA GeForce RTX 4090")


def answer(call: Call, *argv: str) -> dict[str, Any]:
    """Return an answer."""
    code, out, err = call("granularity", *argv, "--offline", "--format", "json")
    assert (code, err) == (0, "")
    return dict(json.decode(out))


def test_ranges_of_rows_have_kernel_columns_and_passes(call: Call) -> None:
    """A known device has its compute capability; rows default to 33, as on a CPU."""
    document = answer(call, RELEASE, "--type", "Q4_K", *RTX_4090)
    assert document["intervals"][-1]["to"] == 33
    document = answer(call, RELEASE, "--type", "Q4_K", *RTX_4090, "--rows", "1:64")
    keys = ("from", "to", "path", "holds", "passes")
    assert [[interval[key] for key in keys] for interval in document["intervals"]] == [
        [1, 8, "mmvq", 8, 1],
        [9, 16, "mmq", 16, 1],
        [17, 24, "mmq", 24, 1],
        [25, 32, "mmq", 32, 1],
        [33, 40, "mmq", 40, 1],
        [41, 48, "mmq", 48, 1],
        [49, 64, "mmq", 64, 1],
    ]
    assert (document["sm"], document["routed"]) == (89, False)
    assert document["notes"][0] == "--d-ff and --d-model default to 4096 elements"


def test_the_text_has_a_range_a_line_and_its_rules(call: Call) -> None:
    """The words say what is held, and what a library's tiles are."""
    code, out, err = call("granularity", "llama_cpp_cuda==3.22.1", "--type", "f16", "--rows",
                          "1:20", "--d-ff", "4096", "--d-model", "4096", "--sm", "90",
                          "--offline")  # fmt: skip
    assert (code, err) == (0, "")
    assert "1 to 1      mmvf  holds 1 column, 1 pass over the weights" in out
    assert "2 to 16     mmf  holds up to 16 columns, 1 pass over the weights" in out
    assert "17 to 20     cublas: tiles of the library, not read" in out
    assert "      product  ggml/src/ggml-cuda/mmvf.cu:" in out


def test_experts_are_read_by_token_or_by_expert(call: Call) -> None:
    """`--experts` asks for products by selected experts."""
    options = ("--type", "q4_k", "--rows", "8:9", "--experts", "128", "--d-ff", "1536")
    code, out, _ = call("granularity", RELEASE, *options, *RTX_4090, "--offline")
    assert code == 0
    assert "8 to 8      mmvq  holds 1 column, each token reads its own experts' weights" in out
    assert "9 to 9      mmq  holds 16 columns, at most 1 pass over an expert's weights" in out


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        (RTX_4090, "needs --type"),
        (("--type", "q4_k"), "needs the device's compute capability"),
        (("--type", "q4_k", "--sm", "60"), "compute capability 60 are not read"),
        (("--type", "q9", *RTX_4090), "no rules of weights of the type 'q9' are read"),
        (("--type", "q4_k", *RTX_4090, "--threads", "2"), "--threads has no effect"),
        (("--type", "q4_k", *RTX_4090, "--tokens", "2"), "--tokens has no effect"),
        (("--type", "q4_k", *RTX_4090, "--top-k", "2"), "--top-k has no effect"),
    ],
)
def test_what_an_answer_needs_and_does_not_read(
    call: Call, argv: tuple[str, ...], reason: str
) -> None:
    """Each is one message and exit code 2."""
    code, out, err = call("granularity", RELEASE, *argv, "--offline")
    assert (code, out) == (2, "")
    assert reason in err


def test_a_device_that_is_not_known_is_said(call: Call) -> None:
    """Its capability is asked for then."""
    options = ("--type", "q4_k", "--device", "NVIDIA X", "--sm", "89")
    assert "'NVIDIA X' is not a device" in answer(call, RELEASE, *options)["notes"][-1]
