"""Routing on the command line: power laws, measured loads, and their refusals."""

import csv
import io
from itertools import pairwise
from pathlib import Path

import pytest
from msgspec import json

from cli.conftest import Call

SPARSE = ("--model", "qwen3_30b_a3b", "--platform", "h200", "--moe", "vllm==0.33.0")
SHORT = ("--largest", "24")
UNKNOWN = ("--platform", "rtx_3090", "--ignore-memory")
EVEN = "expert,share\n" + "".join(f"{expert},{1 / 128}\n" for expert in range(128))

pytestmark = pytest.mark.usefixtures("recorded")


@pytest.fixture
def loads(tmp_path: Path) -> Path:
    """Return a file of equal loads of 128 experts."""
    path = tmp_path / "loads.csv"
    path.write_text(EVEN)
    return path


def latencies(call: Call, *argv: str) -> list[float]:
    """Return T(N) of the model from N = 1, in microseconds."""
    code, out, err = call("predict", *SPARSE, *SHORT, "--format", "csv", *argv)
    assert (code, err) == (0, "")
    return [float(row["latency_us"]) for row in csv.DictReader(io.StringIO(out))]


@pytest.mark.slow
def test_other_routing_lies_between_the_bounds(call: Call, loads: Path) -> None:
    """While experts are activated, T(N) of any routing is between the two bounds.

    It is so by the form; curves of different loads would add to it, so the GPU has no such curves.
    """
    skewed, most = (latencies(call, *UNKNOWN, "--routing", n) for n in ("skewed", "balanced"))
    steep, flat = (latencies(call, *UNKNOWN, "--routing", f"power_law:{a}") for a in ("1.2", "99"))
    measured = latencies(call, *UNKNOWN, "--loads", str(loads))
    for curve in (steep, flat, measured):
        assert all(a <= b * 1.0001 for a, b in zip(skewed, curve, strict=True))
        assert all(a <= b * 1.0001 for a, b in zip(curve, most, strict=True))
        assert curve[-1] > 1.5 * skewed[-1]
    assert all(a <= b for a, b in pairwise(measured))


def test_json_names_the_routing(call: Call, loads: Path) -> None:
    """An exponent has one name however it is written; laws refuse, the work model answers."""
    papers = ("--attention", "flash-attn==2.8.3")  # of which the laws have granularities
    for argv in (("--routing", "power_law:1.20"), ("--loads", str(loads))):
        code, out, err = call("predict", *SPARSE, *papers, *SHORT, *argv, "--format", "json")
        assert (code, err) == (0, "")
        (answer,) = json.decode(out)
        routing = answer["deployment"]["routing"]
        expected = (
            routing == "power_law:1.2" if "--routing" in argv else routing.startswith("loads:")
        )
        assert expected, routing
        laws = [row for row in answer["predictors"] if row["predictor"] != "work_model"]
        assert laws
        assert {row["refusal"] for row in laws} == {f"MoE FFN: no law for {routing} routing"}
        assert all(row["n_max"] for row in answer["predictors"] if row not in laws)


def test_lookup_and_schedule_take_routings(call: Call, loads: Path) -> None:
    """`lookup` takes several routings at once, and a schedule is written for measured loads."""
    code, out, _ = call("lookup", *SPARSE, *SHORT, "--routing", "skewed,power_law:1.01")
    assert code == 0
    assert " power_law:1.01 " in out
    options = ("--loads", str(loads), "--largest-batch", "4", "--longest", "2", "--epsilon", "0.6")
    code, out, _ = call("schedule", "vllm", *SPARSE, *options)
    assert code == 0
    assert "num_speculative_tokens_per_batch_size" in out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("--routing", "power_law"), "'power_law' is no routing"),
        (("--routing", "power_law:-1"), "'power_law:-1' is no routing"),
        (("--routing", "power_law:nan"), "such as power_law:1.2"),
        (("--routing", "router"), "'router' is no routing"),
        (("--loads", "nowhere.csv"), "nowhere.csv cannot be read"),
        (("--loads", "nowhere.xlsx"), "neither .csv nor .json"),
    ],
)
def test_an_unknown_routing_is_refused(call: Call, argv: tuple[str, str], message: str) -> None:
    """An unknown routing is refused before anything is predicted, with the list of routings."""
    code, out, err = call("predict", *SPARSE, *argv)
    assert (code, out) == (2, "")
    assert message in err


def test_loads_that_do_not_fit_are_refused(call: Call, loads: Path) -> None:
    """Loads together with a routing, of another model's experts or of none are refused."""
    for argv, message in (
        ((*SPARSE, "--routing", "skewed"), "--loads and --routing both"),
        (
            ("--model", "mixtral_8x7b", "--platform", "h200"),
            "it has 128 experts, and mixtral_8x7b 8",
        ),
        (("--model", "qwen3_8b", "--platform", "h200"), "there are no experts in qwen3_8b"),
    ):
        code, out, err = call("predict", *argv, "--loads", str(loads))
        assert (code, out) == (2, "")
        assert message in err
        assert "Traceback" not in err


@pytest.mark.parametrize("command", [("predict",), ("lookup",), ("schedule", "vllm")])
@pytest.mark.parametrize(
    ("option", "option_name"),
    [
        (("--routing", "skewed"), "--routing has no effect on a model without experts"),
        (("--dense", "torch"), "--dense has no effect where no product outside the experts"),
    ],
)
def test_an_option_without_effect_is_refused(
    call: Call, command: tuple[str, ...], option: tuple[str, str], option_name: str
) -> None:
    """A routing without experts, or a release of quantised products without any, is refused."""
    arguments = (*command, "--platform", "h200", *option)
    code, out, err = call(*arguments, "--model", "qwen3_8b")
    assert (code, out) == (2, "")
    assert err.startswith(f"nearfree: error: {option_name}")
    assert f". Leave out {option[0]}, or " in err
    if command != ("schedule", "vllm") and option[0] == "--routing":
        assert call(*arguments, "--model", "qwen3_8b,qwen3_30b_a3b", "--largest", "2")[0] == 0
