"""`nearfree lookup`: the deployment table, and the paper's own beside its print."""

import io

import polars as pl
import pytest
from msgspec import json
from nearfree.config.files import Config

from cli.conftest import ROOT, Call

pytestmark = pytest.mark.usefixtures("recorded")
WHERE = ("--model", "qwen3_8b", "--platform", "h800", "--attention", "flash-attn==2.8.3")


def printed(call: Call, *argv: str) -> str:
    """Return what the command prints."""
    code, out, err = call("lookup", *argv)
    assert (code, err) == (0, "")
    return out


def test_the_papers_table_is_computed_and_equal(call: Call) -> None:
    """All nine rows round to the printed ones, and differences of the sources are named."""
    out = printed(call, "--published")
    assert out.startswith("paper, tab:practical_lookup: 9 of 9 rows round to what is printed\n")
    assert "M_moe E / (b k) = M_attn" in out
    assert "configs/triton_3_4_0/E=256,N=512,device_name=NVIDIA_H20.json" in out
    frame = pl.read_csv(io.StringIO(printed(call, "--published", "--format", "csv")))
    assert frame["equal"].all()
    assert frame["over_prediction"].to_list() == [None, None, 2.4, 4.6, None, 23, 5.7, 2.8, 2.8]


def test_a_list_is_one_line_a_deployment(call: Call) -> None:
    """Every combination has a line with each predictor's N_max, from each baseline."""
    lines = printed(call, *WHERE, "--batch", "1,8").splitlines()
    assert len(lines) == 4
    batch_1, batch_8 = (line.split() for line in lines[2:])
    assert batch_1[5:9] == ["graphs", "of", "vllm", "0.33.0"]
    assert batch_1[10:14] == ["1", "4096", "1", "295"]
    assert batch_8[10:15] == ["8", "4096", "1", "36", "36"]


def test_json_has_the_rows_of_csv(call: Call) -> None:
    """Both hold the same answers; an unbounded N_max is null and marked, and caveats are a list."""
    frame = pl.read_csv(io.StringIO(printed(call, *WHERE, "--batch", "1,8", "--format", "csv")))
    rows = json.decode(printed(call, *WHERE, "--batch", "1,8", "--format", "json"))
    assert len(rows) == frame.height
    for row, csv_row in zip(rows, frame.to_dicts(), strict=True):
        assert (row["predictor"], row["batch"]) == (csv_row["predictor"], csv_row["batch"])
        assert row["n_max"] == (None if row["unbounded"] else pytest.approx(csv_row["n_max"]))
        assert isinstance(row["caveats"], list)
    published = json.decode(printed(call, "--published", "--format", "json"))
    assert [row["row"] for row in published] == list(range(1, 10))


@pytest.mark.slow
def test_without_a_model_the_configs_deployments_are_answered(call: Call) -> None:
    """The entries of deployments.yaml are answered, with both routings and both baselines."""
    frame = pl.read_csv(io.StringIO(printed(call, "--format", "csv")), infer_schema_length=None)
    entries = Config(ROOT / "config").deployments.values()
    drawn = [entry for entry in entries if entry.drawn]
    assert set(frame["model"]) == {model for entry in drawn for model in entry.models}
    routed = frame.filter(pl.col("routing") == "balanced")
    assert routed["baseline"].n_unique() > 1
    assert set(frame["predictor"]) == {
        "idle_compute", "principle", "principle_resolved", "work_model"
    }  # fmt: skip


def test_one_of_model_and_platform_is_not_enough(call: Call) -> None:
    """A model without a platform is a mistake, in one line."""
    code, out, err = call("lookup", "--model", "qwen3_8b")
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert "--platform" in err


def test_an_option_without_effect_on_a_list_is_refused(call: Call) -> None:
    """Without a model, conditions would have no effect, so they are refused."""
    for options, thing in (
        (("--tp", "2", "--kv-dtype", "float8"), "--kv-dtype, --tp have no effect without --model"),
        (("--published", "--largest", "8"), "--largest has no effect with --published"),
        (("--published", "--ignore-memory"), "--ignore-memory has no effect with --published"),
        (("--published", "--tp", "2"), "--tp has no effect with --published"),
        (("--published", "--model", "qwen3_8b"), "--model has no effect with --published"),
    ):
        code, out, err = call("lookup", *options)
        assert (code, out) == (2, "")
        assert err.count("\n") == 1
        assert thing in err
        assert "Leave out --" in err


def test_a_refusal_is_printed_with_its_predictor(call: Call) -> None:
    """A predictor that refuses has a line with its reason below the table."""
    code, out, err = call("lookup", "--model", "qwen3_8b", "--platform", "a100", "--dtype", "mxfp8")
    assert (code, err) == (2, "")
    assert "refused by idle_compute: " in out
    assert "a100 has no mxfp8 units" in out
