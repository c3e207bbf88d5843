"""Several GPUs on the command line: answered, or refused with every reason."""

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


def predict(call: Call, *options: str) -> tuple[int, Any]:
    """Return the exit code and the first deployment's answer."""
    code, out, _ = call("predict", *options, *FEW, "--format", "json")
    return code, json.loads(out)[0]


def test_json_has_the_degrees_and_gpus(call: Call) -> None:
    """An answer has the degrees and the GPUs that they make, and modules of a rank's size."""
    code, answer = predict(call, *MOE, "--tp", "2", "--dp", "2", "--ep", "4", "--pp", "2")
    assert code == 0
    assert answer["deployment"]["parallel"] == {"tp": 2, "dp": 2, "ep": 4, "pp": 2, "gpus": 8}
    assert not {"tp", "dp", "ep", "pp"} & {*answer["deployment"]}
    assert answer["predictors"]
    assert answer["refusals"] == []


def test_collectives_have_their_bytes(call: Call) -> None:
    """Collectives are among a rank's modules, with the bytes of one call at N = 1."""
    _, answer = predict(call, *DENSE, "--tp", "4", "--batch", "2")
    assert not any("rank" in module for module in answer["modules"])
    bytes_sent = {
        module["module"]: module["bytes_sent"]
        for module in answer["modules"]
        if "bytes_sent" in module
    }
    rows = 2 * 4096 * 2
    assert bytes_sent == {
        "embedding all-reduce": 2 * rows * 3 // 4,
        "attention all-reduce": 2 * rows * 3 // 4,
        "FFN all-reduce": 2 * rows * 3 // 4,
        "logits gather": 2 * 151936 * 2 * 3 // 4,
    }
    _, one_gpu = predict(call, *DENSE)
    assert not [module for module in one_gpu["modules"] if "bytes_sent" in module]
    assert answer["curve"][0].keys() >= {*bytes_sent}


@pytest.mark.parametrize("text", ["0", "-1", "2.5", "1_0", "\u0664", "999999999999", "9" * 5000])
def test_a_degree_is_a_plain_whole_number(call: Call, text: str) -> None:
    """A degree is a number from 1 on in ASCII digits; another is refused by its option."""
    code, out, err = call("predict", *MOE, "--tp", text)
    assert (code, out) == (2, "")
    assert "argument --tp: " in err.splitlines()[-1]


def test_all_reduces_are_in_the_requested_dtype(call: Call, tmp_path: Path) -> None:
    """The bytes of an all-reduce are those of `--dtype`, not of the file's own dtype."""
    file = tmp_path / "wide" / "config.json"
    file.parent.mkdir()
    config = json.loads((ROOT / "config/models/qwen3_8b.json").read_text())
    file.write_text(json.dumps(config | {"torch_dtype": "float32"}))
    options = ("--model", str(file), *DENSE[2:], "--dtype", "bfloat16", "--tp", "2")
    code, answer = predict(call, *options)
    (bytes_sent,) = [m["bytes_sent"] for m in answer["modules"] if m["module"] == "FFN all-reduce"]
    assert (code, bytes_sent) == (0, 4096 * 2)


def test_a_refused_deployment_has_its_engines_memory(call: Call) -> None:
    """SGLang cuts the LM head over all groups, vLLM over tp, also where no forward is predicted."""
    options = (*MOE, "--tp", "3", "--dp", "2", "--moe")
    (code, vllm), (_, sglang) = (predict(call, *options, engine) for engine in ("vllm", "sglang"))
    assert code == 2
    assert vllm["refusals"]
    assert vllm["memory"]["weights_gb"] > sglang["memory"]["weights_gb"]


def test_gpus_alone_share_each_matrix(call: Call) -> None:
    """`--gpus 4` is `--tp 4`, and says so."""
    _, four_gpus = predict(call, *DENSE, "--gpus", "4")
    _, spread = predict(call, *DENSE, "--tp", "4")
    assert four_gpus == spread
    assert four_gpus["deployment"]["parallel"]["tp"] == 4
    out = call("predict", *DENSE, "--gpus", "4", *FEW)[1]
    assert out.startswith("qwen3_8b on 4 h100 (tp 4), bfloat16")


def test_more_gpus_take_less_time_and_memory_each(call: Call) -> None:
    """T(1) falls, and so does the memory of the fullest GPU."""
    one_gpu, four_gpus = (predict(call, *DENSE, "--tp", tp)[1] for tp in ("1", "4"))
    assert four_gpus["curve"][0]["latency_us"] < one_gpu["curve"][0]["latency_us"]
    assert four_gpus["memory"]["rank_gb"] < one_gpu["memory"]["rank_gb"]
    assert four_gpus["memory"]["weights_gb"] >= one_gpu["memory"]["weights_gb"]
    assert four_gpus["memory"]["capacity_gb"] == 4 * one_gpu["memory"]["capacity_gb"]


def test_a_pipeline_has_the_time_of_all_its_stages(call: Call) -> None:
    """A forward passes each stage, so its modules take what they take on one GPU."""
    one_stage, two_stages = (predict(call, *DENSE, "--pp", pp)[1] for pp in ("1", "2"))
    assert two_stages["memory"]["rank_gb"] < 0.6 * one_stage["memory"]["rank_gb"]
    assert two_stages["curve"][0]["latency_us"] >= one_stage["curve"][0]["latency_us"]


@pytest.mark.parametrize(
    ("options", "reasons"),
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
def test_degrees_that_no_engine_supports_are_refused(
    call: Call, options: tuple[str, ...], reasons: tuple[str, ...]
) -> None:
    """One message has every reason, with exit code 2, and JSON has them, too."""
    code, _, err = call("predict", *MOE, *options, *FEW)
    assert code == 2
    assert all(reason in err for reason in reasons), err
    code, answer = predict(call, *MOE, *options)
    assert code == 2
    assert answer["predictors"] == []
    reasons_found = [
        f"{refusal['key']} {refusal['reason']}".strip() for refusal in answer["refusals"]
    ]
    assert all(any(reason in text for text in reasons_found) for reason in reasons), reasons_found


def test_gpus_of_two_nodes_need_a_known_network(call: Call) -> None:
    """More GPUs than a node has are refused where nothing is known between nodes."""
    command = ("predict", "--model", "qwen3_8b", *FEW, "--tp", "8", "--pp", "2", "--platform")
    code, _, err = call(*command, "l40s")
    assert code == 2
    assert "gpus 16 of l40s are more than the 8 of a node" in err
    assert "Give tp x dp x pp of 8 at most" in err
    assert call(*command, "h200")[0] == 0


def test_a_sum_over_two_nodes_is_refused_with_what_would_work(call: Call) -> None:
    """No all-reduce between nodes is known: the GPUs of one are named, and those work."""
    command = ("predict", *DENSE, *FEW, "--gpus")
    _, out, _ = call(*command, "16")
    assert "no constants between nodes for the all_reduce of vllm" in out
    assert out.rstrip().endswith("such as --tp 8 --pp 2")
    _, out, _ = call(*command, "16", "--tp", "8", "--pp", "2")
    assert "T(1)" in out
    assert "Give --tp" not in out


def test_collectives_between_nodes_have_a_caveat(call: Call) -> None:
    """A collective between nodes is timed by the network, from constants of another kind: R0."""
    caveat = "what GPUs on different nodes, of 8 each"
    platform = ("--platform", "h100", "--moe", "vllm==0.33.0")
    for options, roles in (
        (("--tp", "8", "--pp", "2"), ("stage send between nodes",)),
        (("--tp", "4", "--ep", "16", "--dp", "4"), ("expert dispatch", "expert combine")),
    ):
        _, answer = predict(call, *MOE, *platform, *options)
        modules = {module["module"]: module for module in answer["modules"]}
        assert {modules[role]["regime"] for role in roles} == {"R0"}
        assert any(caveat_.startswith(caveat) for caveat_ in answer["caveats"])
    _, one_node = predict(call, *MOE, *platform, "--tp", "4", "--ep", "8", "--dp", "2")
    assert not any(caveat_.startswith(caveat) for caveat_ in one_node.get("caveats", ()))
    assert {module["regime"] for module in one_node["modules"] if "expert" in module["module"]} == {
        "R2"
    }


def test_a_model_without_experts_has_no_ep(call: Call) -> None:
    """An option without effect is refused, not ignored."""
    for ep in ("2", "4"):
        code, _, err = call("predict", *DENSE, "--tp", "2", "--ep", ep, *FEW)
        assert code == 2
        assert f"ep {ep} needs experts, and the model has none. Leave it out" in err
        assert "does not divide" not in err


@pytest.mark.parametrize(
    ("options", "moe"), [(("--tp", "8"), "vllm"), (("--tp", "8", "--ep", "2"), "sglang")]
)
def test_the_default_engine_supports_the_degrees(
    call: Call, options: tuple[str, ...], moe: str
) -> None:
    """Without `--moe` the experts run in an engine that supports the degrees."""
    code, answer = predict(call, *MOE, *options)
    assert code == 0
    assert answer["deployment"]["moe"].startswith(moe)


def test_every_table_has_the_degrees(call: Call) -> None:
    """Rows of `lookup` and of a curve have them in columns of their own."""
    for command in ("lookup", "predict"):
        out = call(command, *DENSE, "--tp", "2", "--pp", "2", *FEW, "--format", "csv")[1]
        (row, *_) = csv.DictReader(io.StringIO(out))
        assert [row[name] for name in ("tp", "dp", "ep", "pp")] == ["2", "1", "1", "2"]


def test_a_schedule_takes_the_degrees(call: Call) -> None:
    """A schedule takes the degrees; its evidence names them."""
    options = ("--context", "1024", "--tp", "2", "--largest-batch", "4")
    code, out, err = call("schedule", "vllm", *DENSE, *options)
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
    options = re.findall(r"^\| `(--[a-z-]+)`", GUIDE, re.MULTILINE)
    assert options == ["--tp", "--dp", "--ep", "--pp", "--gpus"]


def test_the_guide_has_the_allowance_of_collectives() -> None:
    """The guide's allowance is the one that is computed with."""
    assert f"{COLLECTIVE_BYTES / 1e9:.2f} GB for buffers of collectives" in " ".join(GUIDE.split())


@pytest.mark.slow
@pytest.mark.parametrize("line", re.findall(r"^nearfree (.*)$", GUIDE, re.MULTILINE))
def test_commands_of_the_guide_run(call: Call, line: str) -> None:
    """Each ends as its comment says, with 0 where it names no code."""
    command, _, comment = line.partition("#")
    code, _, err = call(*shlex.split(command))
    assert (code, bool(err)) == ((2, True) if "exit code 2" in comment else (0, False))


def test_reasons_of_several_models_name_them(call: Call) -> None:
    """Each reason without a file names its model."""
    code, _, err = call(
        "predict", "--model", "qwen3_8b,llama_2_7b", "--platform", "h100", "--tp", "64"
    )
    assert code == 2
    assert "qwen3_8b: tp 64 does not divide" in err
    assert "llama_2_7b: tp 64 does not divide" in err


@pytest.mark.parametrize(
    ("platform", "expected", "constants"),
    [
        ("l40s", True, "collective_pcie on l40s, rtx_pro_6000"),
        ("h100", False, "collective_graph on a100, h100, b200, gb200"),
    ],
)
def test_collectives_over_pcie_have_a_caveat(
    call: Call, platform: str, constants: str, *, expected: bool
) -> None:
    """Over PCIe a caveat says which paths are meant; no GPU without such tables is named."""
    options = ("--model", "qwen3_8b", "--platform", platform, "--attention", "flash-attn==2.8.3")
    _, answer = predict(call, *options, "--tp", "4")
    assert (
        any("over PCIe is timed as where they share" in caveat for caveat in answer["caveats"])
        == expected
    )
    code, out, _ = call("predict", *options, "--tp", "4", "--all")
    assert code == 0
    assert constants in [line.strip() for line in out.splitlines()]
