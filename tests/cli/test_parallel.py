"""Several GPUs on the command line: answered as asked, or refused with every reason."""

import csv
import io
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from nearfree.derive.memory import COLLECTIVE_BYTES

from cli.conftest import Call
from workflow import ROOT

MOE = ("--model", "qwen3_30b_a3b", "--platform", "h200")
DENSE = ("--model", "qwen3_8b", "--platform", "h100")
FEW = ("--largest", "4")


def predict(call: Call, *words: str) -> tuple[int, Any]:
    """Return the exit code and the first deployment's answer."""
    code, out, _ = call("predict", *words, *FEW, "--format", "json")
    return code, json.loads(out)[0]


def test_json_says_how_gpus_share_the_model(call: Call) -> None:
    """An answer has the degrees and the GPUs that they make, and modules of a rank's size."""
    code, found = predict(call, *MOE, "--tp", "2", "--dp", "2", "--ep", "4", "--pp", "2")
    assert code == 0
    assert found["deployment"]["parallel"] == {"tp": 2, "dp": 2, "ep": 4, "pp": 2, "gpus": 8}
    assert not {"tp", "dp", "ep", "pp"} & {*found["deployment"]}
    assert found["predictors"]
    assert found["refusals"] == []


def test_collectives_say_what_they_send(call: Call) -> None:
    """Beside a rank's modules stand the collectives, with the bytes of one call at N = 1."""
    _, found = predict(call, *DENSE, "--tp", "4", "--batch", "2")
    assert not any("rank" in each for each in found["modules"])
    sent = {each["module"]: each["bytes_sent"] for each in found["modules"] if "bytes_sent" in each}
    rows = 2 * 4096 * 2
    assert sent == {
        "embedding all-reduce": 2 * rows * 3 // 4,
        "attention all-reduce": 2 * rows * 3 // 4,
        "FFN all-reduce": 2 * rows * 3 // 4,
        "logits gather": 2 * 151936 * 2 * 3 // 4,
    }
    _, alone = predict(call, *DENSE)
    assert not [each for each in alone["modules"] if "bytes_sent" in each]
    assert found["curve"][0].keys() >= {*sent}


@pytest.mark.parametrize(
    "text", ["0", "-1", "2.5", "1_0", "\u0664", "999999999999", "9" * 5000, ""]
)
def test_a_degree_is_a_plain_whole_number(call: Call, text: str) -> None:
    """What is no number from 1 on in ASCII digits is refused by its option, in one line."""
    code, out, err = call("predict", *MOE, "--tp", text)
    assert (code, out) == (2, "")
    assert "argument --tp: " in err.splitlines()[-1]


def test_sums_are_in_the_format_that_is_asked_for(call: Call, tmp_path: Path) -> None:
    """What a file's own dtype would send is not sent where another one is asked for."""
    file = tmp_path / "wide" / "config.json"
    file.parent.mkdir()
    own = json.loads((ROOT / "config/models/qwen3_8b.json").read_text())
    file.write_text(json.dumps(own | {"torch_dtype": "float32"}))
    asked = ("--model", str(file), *DENSE[2:], "--dtype", "bfloat16", "--tp", "2")
    code, found = predict(call, *asked)
    (sent,) = [m["bytes_sent"] for m in found["modules"] if m["module"] == "FFN all-reduce"]
    assert (code, sent) == (0, 4096 * 2)


def test_memory_of_what_is_refused_is_that_of_its_engine(call: Call) -> None:
    """SGLang cuts the LM head over all groups, vLLM over tp, also where no forward is predicted."""
    asked = (*MOE, "--tp", "3", "--dp", "2", "--moe")
    (code, vllm), (_, sglang) = (predict(call, *asked, engine) for engine in ("vllm", "sglang"))
    assert code == 2
    assert vllm["refusals"]
    assert vllm["memory"]["weights_gb"] > sglang["memory"]["weights_gb"]


def test_gpus_alone_share_each_matrix(call: Call) -> None:
    """`--gpus 4` is `--tp 4`, and says so."""
    _, four = predict(call, *DENSE, "--gpus", "4")
    _, spread = predict(call, *DENSE, "--tp", "4")
    assert four == spread
    assert four["deployment"]["parallel"]["tp"] == 4
    out = call("predict", *DENSE, "--gpus", "4", *FEW)[1]
    assert out.startswith("qwen3_8b on 4 h100 (tp 4), bfloat16")


def test_more_gpus_take_less_time_and_memory_each(call: Call) -> None:
    """T(1) falls and so does what the GPU with most holds; all together hold as much or more."""
    one, four = (predict(call, *DENSE, "--tp", tp)[1] for tp in ("1", "4"))
    assert four["curve"][0]["latency_us"] < one["curve"][0]["latency_us"]
    assert four["memory"]["rank_gb"] < one["memory"]["rank_gb"]
    assert four["memory"]["weights_gb"] >= one["memory"]["weights_gb"]
    assert four["memory"]["capacity_gb"] == 4 * one["memory"]["capacity_gb"]


def test_a_pipeline_has_the_time_of_all_its_stages(call: Call) -> None:
    """A forward passes each stage, so its modules take what they take on one GPU."""
    one, two = (predict(call, *DENSE, "--pp", pp)[1] for pp in ("1", "2"))
    assert two["memory"]["rank_gb"] < 0.6 * one["memory"]["rank_gb"]
    assert two["curve"][0]["latency_us"] >= one["curve"][0]["latency_us"]


@pytest.mark.parametrize(
    ("words", "reasons"),
    [
        (("--tp", "3"), ("tp 3 does not divide 32 heads over 4", "tp 3 does not divide a vocab")),
        (("--tp", "2", "--gpus", "8"), ("gpus 8 is not the 2 of tp 2 x dp 1 x pp 1",)),
        (("--ep", "3", "--tp", "6"), ("tp 6 does not divide 32 heads", "tp 6 does not divide a")),
        (
            ("--tp", "4", "--ep", "3", "--gpus", "5", "--pp", "99"),
            ("ep 3 does not divide the 4 ranks", "gpus 5 is not", "pp 99 is more than the 48"),
        ),
        (("--dp", "256", "--ep", "256"), ("ep 256 is more than the 128 experts",)),
        (("--tp", "8", "--ep", "2", "--moe", "vllm"), ("ep 2 leaves each expert sharded over 4",)),
    ],
)
def test_what_no_engine_spreads_so_is_refused(
    call: Call, words: tuple[str, ...], reasons: tuple[str, ...]
) -> None:
    """One message has every reason, with exit code 2, and JSON has them, too."""
    code, _, err = call("predict", *MOE, *words, *FEW)
    assert code == 2
    assert all(reason in err for reason in reasons), err
    code, found = predict(call, *MOE, *words)
    assert code == 2
    assert found["predictors"] == []
    told = [f"{each['key']} {each['reason']}".strip() for each in found["refusals"]]
    assert all(any(reason in each for each in told) for reason in reasons), told


def test_gpus_of_two_nodes_need_a_known_network(call: Call) -> None:
    """More GPUs than a node has are refused where nothing is known between nodes."""
    asked = ("predict", "--model", "qwen3_8b", *FEW, "--tp", "8", "--pp", "2", "--platform")
    code, _, err = call(*asked, "l40s")
    assert code == 2
    assert "gpus 16 of l40s are more than the 8 of a node" in err
    assert "Give tp x dp x pp of 8 at most" in err
    assert call(*asked, "h200")[0] == 0


def test_a_sum_over_two_nodes_is_refused_with_what_would_work(call: Call) -> None:
    """No all-reduce between nodes is known: the GPUs of one are named, and those work."""
    asked = ("predict", *DENSE, *FEW, "--gpus")
    _, out, _ = call(*asked, "16")
    assert "no constants between nodes for the all_reduce of vllm" in out
    assert "Give at most --tp 8, and use --pp or --dp for the rest." in out
    _, out, _ = call(*asked, "16", "--tp", "8", "--pp", "2")
    assert "T(1)" in out
    assert "Give --tp" not in out


def test_what_goes_between_nodes_takes_longer_and_is_said(call: Call) -> None:
    """A hop that leaves a node is timed by the network, by constants of no such kernel: R0."""
    caveat = "what GPUs on different nodes, of 8 each"
    platform = ("--platform", "h100", "--moe", "vllm==0.33.0")
    for words, roles in (
        (("--tp", "8", "--pp", "2"), ("stage send between nodes",)),
        (("--tp", "4", "--ep", "16", "--dp", "4"), ("expert dispatch", "expert combine")),
    ):
        _, found = predict(call, *MOE, *platform, *words)
        told = {each["module"]: each for each in found["modules"]}
        assert {told[role]["regime"] for role in roles} == {"R0"}
        assert any(each.startswith(caveat) for each in found["caveats"])
    _, one = predict(call, *MOE, *platform, "--tp", "4", "--ep", "8", "--dp", "2")
    assert not any(each.startswith(caveat) for each in one.get("caveats", ()))
    assert {each["regime"] for each in one["modules"] if "expert" in each["module"]} == {"R2"}


def test_a_model_without_experts_has_no_ep(call: Call) -> None:
    """What does nothing is refused, not dropped."""
    for ep in ("2", "4"):
        code, _, err = call("predict", *DENSE, "--tp", "2", "--ep", ep, *FEW)
        assert code == 2
        assert f"ep {ep} needs experts, and the model has none. Leave it out" in err
        assert "does not divide" not in err


@pytest.mark.parametrize(
    ("words", "moe"), [(("--tp", "8"), "vllm"), (("--tp", "8", "--ep", "2"), "sglang")]
)
def test_who_spreads_experts_so_runs_them(call: Call, words: tuple[str, ...], moe: str) -> None:
    """Where nobody says what runs experts it is an engine that spreads them as asked."""
    code, found = predict(call, *MOE, *words)
    assert code == 0
    assert found["deployment"]["moe"].startswith(moe)


def test_every_table_says_the_degrees(call: Call) -> None:
    """Rows of `lookup` and of a curve have them in columns of their own."""
    for command in ("lookup", "predict"):
        out = call(command, *DENSE, "--tp", "2", "--pp", "2", *FEW, "--format", "csv")[1]
        (row, *_) = csv.DictReader(io.StringIO(out))
        assert [row[name] for name in ("tp", "dp", "ep", "pp")] == ["2", "1", "1", "2"]


def test_a_schedule_is_that_of_the_gpus(call: Call) -> None:
    """A schedule takes the degrees; its evidence names them."""
    words = ("--context", "1024", "--tp", "2", "--largest-batch", "4")
    code, out, err = call("schedule", "vllm", *DENSE, *words)
    assert code == 0
    assert out
    assert "2 h100 (tp 2)" in err


def test_a_split_group_of_scales_is_refused(call: Call) -> None:
    """Blocks of 128 with one scale cannot be cut to 96 columns."""
    code, _, err = call("predict", *MOE, "--weights", "float8_block", "--tp", "8", *FEW)
    assert code == 2
    assert "8 does not divide 768, the width of an expert, in groups of 128" in err
    assert "or --ep 8, which cuts no expert" in err


CHAPTER = (ROOT / "docs" / "guide" / "predict.md").read_text()
GUIDE = CHAPTER.partition("\n## Several GPUs\n")[2].partition("\n## ")[0]


def test_the_guide_names_every_option_of_gpus() -> None:
    """The table of options has the degrees and the GPUs that they make."""
    named = re.findall(r"^\| `(--[a-z-]+)`", GUIDE, re.MULTILINE)
    assert named == ["--tp", "--dp", "--ep", "--pp", "--gpus"]


def test_the_guide_has_the_allowance_of_collectives() -> None:
    """What is assumed is what is computed with."""
    assert f"{COLLECTIVE_BYTES / 1e9:.2f} GB for buffers of collectives" in " ".join(GUIDE.split())


@pytest.mark.slow
@pytest.mark.parametrize("line", re.findall(r"^nearfree (.*)$", GUIDE, re.MULTILINE))
def test_commands_of_the_guide_run(call: Call, line: str) -> None:
    """Each ends as its comment says, with 0 where it says nothing of a code."""
    command, _, comment = line.partition("#")
    code, _, err = call(*shlex.split(command))
    assert (code, bool(err)) == ((2, True) if "exit code 2" in comment else (0, False))


def test_reasons_of_several_models_name_them(call: Call) -> None:
    """Each reason that stands in no file says of which model it is."""
    code, _, err = call(
        "predict", "--model", "qwen3_8b,llama_2_7b", "--platform", "h100", "--tp", "64"
    )
    assert code == 2
    assert "qwen3_8b: tp 64 does not divide" in err
    assert "llama_2_7b: tp 64 does not divide" in err


@pytest.mark.parametrize(
    ("platform", "said", "constants"),
    [
        ("l40s", True, "collective_pcie on l40s, rtx_pro_6000"),
        ("h100", False, "collective_graph on a100, h100, b200, gb200"),
    ],
)
def test_collectives_say_whose_constants_time_them(
    call: Call, platform: str, constants: str, *, said: bool
) -> None:
    """Over PCIe a caveat says which paths are meant; no GPU without such tables is named."""
    asked = ("--model", "qwen3_8b", "--platform", platform, "--attention", "flash-attn==2.8.3")
    _, found = predict(call, *asked, "--tp", "4")
    assert (
        any("over PCIe is timed as where they share" in each for each in found["caveats"]) == said
    )
    code, out, _ = call("predict", *asked, "--tp", "4", "--all")
    assert code == 0
    assert constants in [line.strip() for line in out.splitlines()]
