"""`nearfree predict`: text, JSON and CSV, `--positions`, and refusals."""

import csv
import io
import math
import re
from pathlib import Path
from typing import Any

import pytest
from decoders.files import change, write
from msgspec import json

from cli.conftest import Call
from cli.test_mistakes import one_message

DENSE, SPARSE = ("--model", "qwen3_8b"), ("--model", "qwen3_30b_a3b")
H800 = ("--platform", "h800")
SHORT = ("--largest", "48")
LAWS = ["idle_compute", "principle", "principle_resolved"]

pytestmark = pytest.mark.usefixtures("recorded")


def printed(call: Call, *argv: str, exit_code: int = 0) -> str:
    """Return what the command prints, and ends with this exit code."""
    code, out, err = call("predict", *argv)
    assert (code, err) == (exit_code, "")
    return out


def as_json(call: Call, *argv: str, exit_code: int = 0) -> list[dict[str, Any]]:
    """Return what the command prints as JSON."""
    out = printed(call, *argv, "--format", "json", exit_code=exit_code)
    assert not re.search(r"\b(NaN|Infinity)\b", out)
    answers: list[dict[str, Any]] = json.decode(out)
    return answers


def as_csv(call: Call, *argv: str, exit_code: int = 0) -> list[dict[str, str]]:
    """Return what the command prints as CSV."""
    return list(
        csv.DictReader(io.StringIO(printed(call, *argv, "--format", "csv", exit_code=exit_code)))
    )


def test_the_text_says_what_limits_and_where(call: Call) -> None:
    """The text has each predictor's N_max, limiter and place, shares, knobs and constants."""
    out = printed(call, *DENSE, *H800, "--attention", "flash-attn==2.8.3", "--all")
    lines = out.splitlines()
    assert lines[lines.index("") + 1] == (
        "qwen3_8b on h800, bfloat16, b = 1, L = 4096, attention flash_attn 2.8.3, "
        "CUDA graphs of vllm 0.33.0"
    )
    assert "N_max, the largest N with T(N) <= 1.2 T(1), from N = 1" in lines
    (law,) = (line for line in lines if line.startswith("  principle "))
    assert law.split()[:4] == ["principle", "64", "attention:", "M_attn"]
    assert law.endswith("paper sec. 4.1, M_attn of tab:fa2-kblockm, split-KV")
    (resolved,) = (line for line in lines if line.startswith("  principle_resolved "))
    assert re.search(r"csrc/[\w/.]+\.h:\d+-\d+ \([0-9a-f]{12}\)", resolved)
    heads = next(line for line in lines if line.split()[:2] == ["N", "T(N)/T(1)"])
    for role in ("qkv projection", "attention", "output projection", "Dense FFN", "LM head"):
        assert role in heads
        assert any(line.startswith(f"  {role} ") for line in lines)
    assert "N_max of each module alone, by the work model from N = 1" in lines
    assert any(line.startswith("Options that move this limit (") for line in lines)
    assert "constants (out of sample), by the regime of each module:" in lines
    assert "  attention_cached on a100, h100" in lines


def test_a_censored_boundary_has_no_limiter(call: Call) -> None:
    """A boundary at the grid's end is a lower bound, without a limiter or a rule beside it."""
    lines = printed(call, *DENSE, *H800, "--largest", "8", "--all").splitlines()
    (line,) = (line for line in lines if line.startswith("  work_model  "))
    assert line.split() == [
        *("work_model", ">=", "8", "[>=", "8,", ">=", "8]", "no", "limit", "up", "to", "there")
    ]


def test_an_unbounded_law_has_no_limiter(call: Call) -> None:
    """A law without a bound is reported as unbounded, without a limiter."""
    argv = ("--model", "ling_2_0_mini", *H800, "--context", "100", *SHORT)
    line = next(
        x for x in printed(call, *argv, "--all").splitlines() if x.startswith("  idle_compute")
    )
    assert line.split()[1:3] == ["unbounded", "nothing"]
    (answer,) = as_json(call, *argv)
    prediction = answer["predictors"][0]
    assert (prediction["n_max"], prediction["unbounded"]) == (None, True)


@pytest.mark.parametrize(
    ("word", "name"), [("bf16", "bfloat16"), ("FP8", "float8"), ("fp8_block", "float8_block")]
)
def test_formats_are_taken_as_engines_write_them(call: Call, word: str, name: str) -> None:
    """The answer has this program's name of the format."""
    options = ("--largest", "4", "--weights")
    assert printed(call, *DENSE, *H800, *options, word) == printed(
        call, *DENSE, *H800, *options, name
    )


def test_both_baselines_of_balanced_experts(call: Call) -> None:
    """Balanced experts have two tables: from N = 1, and from where every expert is active."""
    out = printed(call, *SPARSE, *H800, "--batch", "4", *SHORT, "--all")
    assert "from N = 1\n" in out
    assert "T(4), from N = 4, where balanced routing activates every expert\n" in out
    skewed = printed(call, *SPARSE, *H800, "--batch", "4", "--routing", "skewed", *SHORT, "--all")
    assert "activates" not in skewed


def test_json_holds_everything(call: Call) -> None:
    """The JSON has deployment, answers, modules and curve, and the text's numbers in them."""
    papers = ("--attention", "flash-attn==2.8.3")  # of which the laws have granularities
    (answer,) = as_json(call, *SPARSE, *H800, *papers, "--batch", "4", *SHORT, "--accepted", "2.5")
    parts = {
        "schema",
        "deployment",
        "answer",
        "basis",
        "predictors",
        "modules",
        "besides",
        "curve",
        "memory",
        "refusals",
        "graphs",
        "caveats",
    }
    assert set(answer) == parts
    deployment = {
        name: answer["deployment"][name] for name in ("model", "platform", "batch", "context")
    }
    assert deployment == {"model": "qwen3_30b_a3b", "platform": "h800", "batch": 4, "context": 4096}
    assert [row["n"] for row in answer["curve"]] == list(range(1, 49))
    assert answer["curve"][0]["ratio"] == 1.0
    names = [
        (row["predictor"], row["composition"], row["baseline"]) for row in answer["predictors"]
    ]
    predictors = [
        *((name, "minimum") for name in LAWS),
        ("work_model", "sum"),
        ("work_model", "minimum"),
    ]
    assert names == [(*pair, baseline) for baseline in (1, 4) for pair in predictors]
    for row in answer["predictors"]:
        assert row["accepted_per_n_max"] == pytest.approx(2.5 / row["n_max"])
        assert row["unbounded"] is False
    assert set(answer["besides"]) == {"between", "host"}
    shares = sum(row["share"] for row in answer["modules"]) + sum(answer["besides"].values())
    assert math.isclose(shares, 1.0)
    assert all(row["knobs"] and row["evidence"] for row in answer["modules"])


def test_csv_is_the_curve(call: Call) -> None:
    """The CSV has T(N) of every deployment, a row an N, and shares that sum to 1."""
    models = ("--model", "qwen3_8b,mixtral_8x7b", "--ignore-memory")
    rows = as_csv(call, *models, *H800, "--batch", "1,2", *SHORT)
    settings = [(row["model"], row["batch"], row["n"]) for row in rows]
    assert settings == [
        (model, batch, str(n))
        for model in ("qwen3_8b", "mixtral_8x7b") for batch in "12" for n in range(1, 49)
    ]  # fmt: skip
    at_one = [row for row in rows if row["n"] == "1"]
    assert [row["ratio"] for row in at_one] == ["1.0"] * 4
    for row in rows:
        shares = [float(value) for name, value in row.items() if "share" in name and value]
        assert float(row["latency_us"]) > 0
        assert math.isclose(sum(shares), 1.0)


def test_lists_are_all_their_combinations(call: Call) -> None:
    """Lists with commas are answered one combination after the other, duplicates once."""
    answers = as_json(
        call, "--model", "qwen3_8b,qwen3_30b_a3b", "--platform", "h20,h800", "--batch", "1,1",
        "--context", "512, 1024", "--routing", "balanced,skewed", "--largest", "2",
    )  # fmt: skip
    fields = ("model", "platform", "routing", "context")
    conditions = [tuple(answer["deployment"][name] for name in fields) for answer in answers]
    assert conditions == [
        (model, platform, routing, context)
        for model in ("qwen3_8b", "qwen3_30b_a3b")
        for platform in ("h20", "h800")
        for routing in ([None] if model == "qwen3_8b" else ["balanced", "skewed"])
        for context in (512, 1024)
    ]


def test_one_position_is_said_in_the_singular(call: Call) -> None:
    """The line that sums up K positions is a sentence for each K, and for one that does not fit."""
    argv = (*DENSE, *H800, "--batch", "1,64", "--context", "65536", "--positions", "1")
    lines = printed(call, *argv, exit_code=2).splitlines()
    *_, summary = [line for line in lines if "near-free (" in line]
    assert summary.startswith("1 position is near-free (T(1) <= 1.2 T(1)")
    assert summary.endswith("in 2 of 2 settings, of which 1 does not fit in memory")


@pytest.mark.slow
def test_positions_list_the_settings_where_they_are_near_free(call: Call) -> None:
    """With K, settings where K positions are near-free come first, alike in all formats."""
    options = ("--attention", "flash-attn==2.8.3", "--positions", "8")
    argv = (*DENSE, *H800, "--batch", "1,64", "--context", "1024,65536", *options)
    unfit, longer, *lines = printed(call, *argv, "--accepted", "4", exit_code=2).splitlines()
    assert longer.startswith("qwen3_8b, from L = 65536 on: 65,536 cached positions and a new one")
    assert unfit.startswith("qwen3_8b on h800, from b = 64 at L = 65536 on: DOES NOT FIT")
    rows = as_json(call, *argv, "--accepted", "4", exit_code=2)
    assert [row["fits"] for row in rows] == [True, True, True, False]
    free = [row for row in rows if row["verdict"] == "near-free"]
    assert 0 < len(free) < len(rows) == 4
    assert lines[0] == (
        "8 positions are near-free (T(8) <= 1.2 T(1), by the work model) in "
        f"{len(free)} of 4 settings"
    )
    ends = [line.endswith("near-free") for line in lines[2:]]
    assert ends == [True] * len(free) + [False] * (4 - len(free))
    assert [line.endswith(", does not fit") for line in lines[2:]] == [False] * 3 + [True]
    assert "accepted / N_max" in lines[1]
    for row in rows:
        assert (row["ratio"] <= 1.2) == (row["verdict"] == "near-free")
        assert row["accepted_per_n_max"] == 4 / row["n_max"]
    flat = as_csv(call, *argv, exit_code=2)
    assert [float(row["ratio"]) for row in flat] == [row["ratio"] for row in rows]
    assert {row["positions"] for row in flat} == {"8"}


def test_positions_have_default_batch_sizes_and_contexts(call: Call) -> None:
    """Without lists, K is answered for nine batch sizes and four contexts, beyond --largest too."""
    rows = as_json(call, *DENSE, *H800, "--positions", "20", "--largest", "4")
    assert len({(row["batch"], row["context"]) for row in rows}) == len(rows) == 36
    assert {row["positions"] for row in rows} == {20}


def test_a_backend_without_rules_is_refused_by_name(call: Call) -> None:
    """A backend without rules is refused by name; the law that needs none answers."""
    argv = ("--model", "mixtral_8x7b", *H800, "--moe", "torch-grouped", *SHORT)
    out = printed(call, *argv, "--all", exit_code=2)
    rows = {line.split()[0]: line for line in out.splitlines() if line.startswith("  ")}
    for name in ("principle", "principle_resolved", "work_model"):
        assert re.search(r"refused +MoE FFN: .* of torch_grouped", rows[name])
    assert rows["idle_compute"].split()[1].isdecimal()
    assert "T(N) by the work model" not in out
    (answer,) = as_json(call, *argv, exit_code=2)
    assert answer["curve"] == answer["modules"] == []
    code, out, err = call("predict", *argv, "--format", "csv")
    assert (code, list(csv.DictReader(io.StringIO(out)))) == (2, [])
    assert err.startswith("nearfree: error: T(N) of mixtral_8x7b on h800 is not known: MoE FFN: ")


@pytest.mark.parametrize(
    ("line", "thing"),
    [
        ("--largest 4", "--model and --platform are missing"),
        ("--platform h20", "--model is missing"),
        ("--model qwen3_8b --platform h20 --format csv --accepted 2", "--accepted has no effect"),
        ("--model qwen3_8b --platform h20 --format csv --all", "--all has no effect"),
        ("--model qwen3_8b --platform h20 --positions 4 --all", "--all has no effect"),
        ("--model qwen3_9b --platform h20", "'qwen3_9b'"),
        ("--model qwen3_9b --platform h20", "qwen3_8b"),
        ("--model no/such.json --platform h20", "'no/such.json'"),
        ("--model qwen3_8b --platform h21", "'h21'"),
        ("--model qwen3_8b --platform h21", "platforms.yaml"),
        ("--model qwen3_8b --platform h20 --attention flash-atn", "flash-attn"),
        ("--model qwen3_8b --platform h20 --attention flash-attn==", "'flash-attn=='"),
        ("--model mixtral_8x7b --platform h20 --moe vlm==1", "'vlm'"),
        ("--model mixtral_8x7b --platform h20 --moe vllm==9.9.9", "vllm 9.9.9"),
        ("--model mixtral_8x7b --platform h20 --moe vllm==9.9.9", "vllm==0.20.2"),
        ("--model qwen3_8b --platform h20 --attention flash-attn==9.9.9", "flash-attn==2.8.3"),
        ("--model qwen3_8b --platform h20 --positions 999999", "999999 N"),
        ("--model qwen3_8b --platform h20,h800 --largest 999999", "999999 N"),
        ("--model qwen3_8b --platform h20 --results nowhere", "there is no folder nowhere"),
        ("--model qwen3_8b --platform h20 --config nowhere", "nowhere"),
        ("--model qwen3_8b --platform h20 --attention flash-attn --config nowhere", "nowhere"),
    ],
)
def test_a_mistake_is_one_message(call: Call, line: str, thing: str) -> None:
    """An unknown value is one line that names it, with its file or nearest names."""
    one_message(call("predict", *line.split()), thing)


@pytest.mark.parametrize(
    ("line", "thing"),
    [
        ("--batch 0", "0 is not between"),
        ("--batch 1,x", "'1,x'"),
        ("--batch 1,", "'1,'"),
        ("--batch 1,024", "'1,024' lists several numbers, of which one begins with 0: write 1024"),
        ("--batch 1,08,16", "write 1,8,16"),
        ("--context 4,096", "write 4096"),
        ("--batch 1,000", "write 1000"),
        ("--context 512,4,096,131,072", "write 512,4096,131072"),
        ("--context 100000000", "100000000"),
        ("--epsilon 2", "'2'"),
        ("--epsilon nan", "'nan'"),
        ("--epsilon all", "'all'"),
        ("--positions 0", "0"),
        ("--positions 10000000", "10000000"),
        ("--accepted 0", "0"),
        ("--accepted 0.7", "is not a number of tokens per forward, which is from 1 "),
        ("--accepted 1e9", "to 999999"),
        ("--accepted nan", "nan"),
        ("--accepted inf", "inf"),
        ("--routing random", "'random'"),
        ("--dtype int3", "int3"),
        ("--weights awq", "awq is a quantisation method, not a format: most "),
        ("--format yaml", "yaml"),
    ],
)
def test_a_wrong_amount_is_one_message(call: Call, line: str, thing: str) -> None:
    """An amount out of range is one message, which names what does not fit."""
    code, out, err = call("predict", *DENSE, *H800, *line.split())
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"nearfree: error: argument {line.split(maxsplit=1)[0]}: ")
    assert thing in err


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"num_experts_per_tok": 99}, "num_experts_per_tok"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"hidden_size": ...}, "hidden_size"),
        ({"hidden_size": 10**30}, "hidden_size"),
        ({"hidden_size": "64"}, "hidden_size"),
        ({"model_type": "qwen4_moe"}, "model_type"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
    ],
)
def test_a_model_file_that_cannot_be_used(
    call: Call, tmp_path: Path, changes: dict[str, Any], key: str
) -> None:
    """A config.json that cannot be used is refused with the file and the key."""
    path = write(tmp_path, change("qwen3_moe", **changes))
    code, out, err = call("predict", "--model", str(path), *H800)
    assert (code, out) == (2, "")
    assert key in err
    assert err.startswith(f"nearfree: error: {path}: ")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 10**5])
def test_a_model_file_that_is_none(call: Call, tmp_path: Path, content: bytes) -> None:
    """A file that is no JSON object is refused with its path."""
    path = tmp_path / "small.json"
    path.write_bytes(content)
    one_message(call("predict", "--model", str(path), *H800), str(path))


@pytest.mark.parametrize("key", ["\x1b[31m", "\udcff", "\x07" * 10**5])
@pytest.mark.parametrize("format_", ["text", "json"])
def test_a_key_of_a_model_file_is_shown_escaped(
    call: Call, tmp_path: Path, key: str, format_: str
) -> None:
    """A key with control characters or lone surrogates is one printable line."""
    path = write(tmp_path, change("qwen3", quantization_config={"quant_method": "fp8", key: 1}))
    out = "".join(call("predict", "--model", str(path), *H800, "--format", format_)[1:])
    assert out.replace("\n", "").isprintable()
    assert len(out) < 10**4
    assert "is not understood" in out


@pytest.mark.parametrize("format_", ["text", "json"])
def test_a_path_of_a_model_file_is_shown_escaped(call: Call, tmp_path: Path, format_: str) -> None:
    """A folder's name with control characters is one printable line."""
    folder = tmp_path / "\x1b[31m\udcff"
    folder.mkdir()
    path = write(folder, {"a": 1})
    out = "".join(call("predict", "--model", str(path), *H800, "--format", format_)[1:])
    assert out.replace("\n", "").isprintable()


def test_a_model_file_by_its_path(call: Call, tmp_path: Path) -> None:
    """A config.json anywhere is answered about under its file's name."""
    path = write(tmp_path, change("qwen3"), "mine.json")
    assert printed(call, "--model", str(path), *H800, *SHORT).startswith("mine on h800, bfloat16")


def test_steps_are_padded_to_the_engines_graphs(call: Call) -> None:
    """JSON has the rows of each step, and the text names them; `none` pads nothing."""
    options = (*DENSE, *H800, "--batch", "33", *SHORT)
    (answer,) = as_json(call, *options, "--graphs", "vllm==0.9.1")
    graphs = answer["graphs"]
    assert (graphs["engine"], graphs["counts"]) == ("vllm 0.9.1", "tokens")
    steps = [(step["n"], step["tokens"], step["rows"], step["size"]) for step in graphs["steps"]]
    assert steps[:3] == [(1, 33, 40, 40), (2, 66, 72, 72), (3, 99, 104, 104)]
    assert steps[15] == (16, 528, 528, None)
    assert all(source.startswith("vllm/config.py L") for source in graphs["evidence"])
    text = printed(call, *options, "--graphs", "vllm==0.9.1", "--all")
    assert "from 16 positions on no CUDA graph is large enough" in text.splitlines()[3]
    assert "from N = 16 on no graph is large enough" in text
    assert re.search(r"^ +1 +1\.000 +\d+ +33 +40 ", text, re.MULTILINE)
    (unpadded,) = as_json(call, *options, "--graphs", "none")
    assert unpadded["graphs"] is None
    assert "graphs" not in unpadded["deployment"]
    full = (*DENSE, *H800, "--batch", "40", *SHORT)
    (of_forty,) = as_json(call, *full, "--graphs", "vllm==0.9.1")
    padded_us, own_us, full_us = (
        entry["curve"][0]["latency_us"] * entry["curve"][0]["Dense FFN"]
        for entry in (answer, unpadded, of_forty)
    )
    assert padded_us == pytest.approx(full_us, rel=1e-9)
    assert padded_us != pytest.approx(own_us, rel=1e-5)
