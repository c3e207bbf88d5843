"""The Python API: the same data as the commands print, and errors to catch."""

import doctest
import json

import nearfree
import pytest
from nearfree import api
from nearfree.errors import ConfigError, NearfreeError

from cli.conftest import Call

pytestmark = pytest.mark.usefixtures("recorded")
OPTIONS = {"batch": [1, 2], "largest": 8, "attention": "flash-attn==2.8.3"}


@pytest.mark.parametrize("name", ["predict", "schedule", "granularity", "boundary", "curves"])
def test_examples_give_the_results_below_them(name: str) -> None:
    """Each function's example gives the result below it."""
    runner = doctest.DocTestRunner()
    for example in doctest.DocTestFinder().find(getattr(api, name), name):
        runner.run(example)
    assert runner.summarize().attempted >= 2
    assert runner.failures == 0


def test_the_api_answers_as_the_command(call: Call) -> None:
    """Lists are options with commas, and the answer is the command's JSON."""
    options = ("--batch", "1,2", "--largest", "8", "--attention", "flash-attn==2.8.3")
    code, out, _ = call(
        "predict", "--model", "qwen3_8b", "--platform", "h200", *options, "--format", "json"
    )
    assert code == 0
    assert nearfree.predict("qwen3_8b", "h200", **OPTIONS) == json.loads(out)


def test_answers_are_a_frame() -> None:
    """T(N) of several answers is one frame, and of none an empty one."""
    frame = nearfree.curves(nearfree.predict("qwen3_8b", "h200", **OPTIONS))
    assert frame.height == 16
    assert nearfree.curves([]).columns == frame.columns
    chart = frame.plot.line("n", "ratio", color="batch:N").to_dict()
    assert chart["encoding"]["x"]["field"] == "n"


def test_false_switches_an_option_off() -> None:
    """False is the option's `--no-` form where there is one, and nothing where there is none."""
    shape = {"heads": 32, "kv_heads": 8, "head_dim": 128, "device": "NVIDIA H20", "api": "dense"}
    causal, full, unpaged = (
        nearfree.granularity("xformers==0.0.34", **shape, **option)
        for option in ({"causal": True}, {"causal": False}, {"paged": False})
    )
    assert causal == unpaged != full


def test_mistakes_are_errors_to_catch(capsys: pytest.CaptureFixture[str]) -> None:
    """An unknown model, option or curve is an error with a remedy."""
    with pytest.raises(NearfreeError, match="no/such"):
        nearfree.predict("no/such.json", "h200")
    with pytest.raises(ConfigError, match="unrecognized arguments: --colour red"):
        nearfree.predict("qwen3_8b", "h200", colour="red")
    with pytest.raises(ConfigError, match="--attention is empty"):
        nearfree.predict("qwen3_8b", "h200", attention="")
    for options in ({"format": "csv"}, {"help": True}):
        with pytest.raises(ConfigError, match=r"is no option of a function.* `nearfree predict`"):
            nearfree.predict("qwen3_8b", "h200", **options)
    infinite = float("inf")
    for n, latency in (
        ([], []), ([1, 1], [1.0, 1.0]), ([1, 2], [1.0]), ([1], [0.0]), ([0, 1], [1.0, 1.0]),
        ([1.5, 2.5], [1.0, 1.0]), ([1, 2], [1.0, infinite]), ([1, infinite], [1.0, 1.0]),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match="are not a curve"):
            nearfree.boundary(n, latency)
    for epsilon in (float("nan"), -1.0, float("inf")):
        with pytest.raises(ConfigError, match="tolerance"):
            nearfree.boundary([1, 2], [1.0, 1.0], epsilon)
    with pytest.raises(AttributeError, match="no attribute 'guess'"):
        _ = nearfree.guess  # type: ignore[attr-defined]
    assert capsys.readouterr() == ("", "")
