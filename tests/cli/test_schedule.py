"""`nearfree schedule`: options of engines, from the same numbers as `nearfree predict`."""

import math
import re
from pathlib import Path
from typing import Any

import pytest
from derive.schedule.engine import sglang_steps
from derive.schedule.test_expected import best_lengths
from msgspec import json
from nearfree.derive.schedule.expected import independent_acceptance

from cli.conftest import Call
from cli.schedules import (
    BATCH_OPTION,
    BATCHES,
    KEY,
    LARGEST_BATCH,
    SHORT,
    UNNAMED,
    WHERE,
    curves,
    lengths,
    printed,
)
from cli.test_mistakes import one_message


@pytest.fixture
def call(ask: Call) -> Call:
    """Return a function that runs a command, or returns the answer of an equal one."""
    return ask


def boundaries(
    call: Call, predictor: str, longest: int = 16, where: tuple[str, ...] = ()
) -> dict[int, dict[str, Any]]:
    """Return the predictions of `predict` at some batch sizes over N up to K + 1."""
    options = ("--largest", str(longest + 1), "--format", "json")
    code, out, _ = call("predict", *WHERE, *where, *BATCH_OPTION, *options)
    assert code == 0
    composition = "sum" if predictor == "work_model" else "minimum"
    return {
        answer["deployment"]["batch"]: row
        for answer in json.decode(out)
        for row in answer["predictors"]
        if (row["predictor"], row["composition"]) == (predictor, composition)
    }


def capped(n_max: float, longest: int = 16) -> int:
    """Return the K of a boundary: one position is the token that is verified."""
    return min(max(math.floor(n_max), 1), longest + 1) - 1


@pytest.mark.parametrize("longest", [4, 16])
def test_k_is_the_boundary_less_one(call: Call, longest: int) -> None:
    """At each batch size K is the boundary of `predict` less one, and not above the longest."""
    ks = lengths(call, "--longest", str(longest))
    single = boundaries(call, "work_model", longest)
    assert [ks[b - 1] for b in BATCHES] == [capped(single[b]["n_max"], longest) for b in BATCHES]
    assert len(set(ks)) > 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("law", "where"),
    [
        ("idle_compute", ()),
        ("principle", ()),
        ("principle", ("--model", "mixtral_8x7b", "--platform", "h200")),
    ],
)
def test_a_law_counts_with_its_batch(call: Call, law: str, where: tuple[str, ...]) -> None:
    """The form of a law with b in it counts, and its schedule never rises with b."""
    ks = lengths(call, "--by", law, *where)
    single = boundaries(call, law, where=where)
    assert [ks[b - 1] for b in BATCHES] == [capped(single[b]["n_max_extended"]) for b in BATCHES]
    assert ks == sorted(ks, reverse=True)
    assert ks[0] > ks[-1]


def test_engines_take_lengths_of_their_own_steps(call: Call) -> None:
    """SGLang's K are those of `predict` for it, though no layer has experts; vLLM's differ."""
    file = printed(call, "sglang", *SHORT, "--graphs", "none", "--worth", "0")
    steps = [sglang_steps(file, batch) for batch in range(1, LARGEST_BATCH + 1)]
    assert steps != lengths(call, "--graphs", "none")
    single = boundaries(call, "work_model", where=("--moe", "sglang", "--graphs", "none"))
    assert [steps[b - 1] for b in BATCHES] == [capped(single[b]["n_max"]) for b in BATCHES]
    padded = printed(call, "sglang", *SHORT, "--worth", "0")
    assert [sglang_steps(padded, batch) for batch in range(1, LARGEST_BATCH + 1)] != steps


def test_cautious_drafts_are_never_longer(call: Call) -> None:
    """The lower end of the interval gives a K that is nowhere longer, and somewhere shorter."""
    ks, cautious = lengths(call), lengths(call, "--cautious")
    assert all(lower <= k for lower, k in zip(cautious, ks, strict=True))
    assert cautious != ks
    single = boundaries(call, "work_model")
    assert [cautious[b - 1] for b in BATCHES] == [capped(single[b]["low"]) for b in BATCHES]


def test_a_larger_tolerance_shortens_no_draft(call: Call) -> None:
    """A larger tolerance shortens no draft."""
    small_tolerance, large_tolerance = (
        lengths(call, "--epsilon", "0.1"),
        lengths(call, "--epsilon", "0.4"),
    )
    assert all(a <= b for a, b in zip(small_tolerance, large_tolerance, strict=True))
    assert small_tolerance != large_tolerance


@pytest.mark.slow
def test_the_best_length_by_acceptance(call: Call) -> None:
    """With an acceptance K maximises expected tokens per second on the curve of `predict`."""
    rates = ("--acceptance", "0.8", "--draft-cost", "0.02")
    ks = lengths(call, *rates)
    best = best_lengths(curves(call), independent_acceptance(0.8, most=16), draft_cost=0.02)
    assert [ks[b - 1] for b in BATCHES] == [best[b].k for b in BATCHES]
    assert lengths(call, "--acceptance", "0.9,0.5", "--draft-cost", "0")[0] == 2


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama.cpp", "llama_cpp"])
def test_llama_cpp_takes_flags(call: Call, name: str) -> None:
    """llama.cpp takes the K of one request as its flags; a cost array is a comment."""
    flags = printed(call, name).split()
    [k] = lengths(call)[:1]
    assert flags == f"--spec-type draft-simple --spec-draft-n-max {k}".split()
    _, _, err = call("schedule", name, *WHERE, "--longest", "16")
    [array] = re.findall(r'GGML_BATCH_COSTS="([\d.,]+)"', err)
    costs = [float(cost) for cost in array.split(",")]
    ratio = curves(call)[1]
    assert costs == pytest.approx([ratio[n] / n for n in range(1, 18)], abs=1e-6)


@pytest.mark.slow
def test_llama_cpp_s_type_is_that_of_the_drafter(call: Call) -> None:
    """The type is the drafter's: its own layer, a lookup where a draft is free, else a model."""
    rate, expected = ("--acceptance", "0.8"), "--spec-type draft-mtp --spec-draft-n-max "
    assert printed(call, "llama.cpp", *rate, "--drafter", "own").startswith(expected)
    lookup = printed(call, "llama.cpp", *rate, "--draft-cost", "0", "--worth", "0").split()
    assert lookup[:2] == ["--spec-type", "ngram-simple"]
    best = best_lengths(curves(call), independent_acceptance(0.8, most=16), draft_cost=0)[1].k
    assert lookup[-2:] == ["--spec-ngram-simple-size-m", str(best)]
    costs = (*rate, "--draft-cost", "0.02", "--context", "512,4096")
    assert printed(call, "llama.cpp", *costs).startswith("--spec-type draft-simple ")


def test_comments_name_the_conditions_and_the_reader(call: Call) -> None:
    """Comments have the deployment, where the option goes, who reads it, and its cost."""
    _, _, err = call("schedule", "vllm", *UNNAMED, *SHORT)
    lines = err.splitlines()
    assert lines[0].startswith("# qwen3_8b on h800, bfloat16, L = 512, attention vllm_fa3 ")
    assert lines[1].startswith("# the attention backend is assumed")
    assert (
        "--attention is empty" in call("schedule", "vllm", *UNNAMED, *SHORT, "--attention", "")[2]
    )
    assert "# goes to: --speculative-config" in lines
    (reader,) = (line for line in lines if line.startswith("# read by "))
    assert reader.startswith(
        "# read by vllm 0.33.0, vllm/v1/spec_decode/dynamic/utils.py:7-74, 77-148; "
    )
    assert "vllm/config/speculative.py:413, 524; " in reader
    assert "SHA-256" not in err
    data = json.decode(call("schedule", "vllm", *UNNAMED, *SHORT, "--format", "json")[1])
    assert all(", SHA-256 " in source for source in data["read_by"])
    begin = next(index for index, line in enumerate(lines) if "from b" in line)
    assert "T(K+1)/T(1) at most" in lines[begin]
    rows = [line[1:].split() for line in lines[begin + 1 :] if "K = 0" not in line]
    assert (rows[0][0], rows[-1][1]) == ("1", str(LARGEST_BATCH))
    assert all(float(row[3]) <= 1.2 for row in rows)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_schedule_ends_where_memory_does(call: Call, engine: str) -> None:
    """The last batch fits and the next does not, by `predict`, and a comment says so."""
    deployment = ("--model", "qwen3_8b", "--platform", "l40s", "--context", "4096")
    code, out, err = call("schedule", engine, *deployment)
    assert code == 0
    memory = json.decode(call("predict", *deployment, "--format", "json")[1])[0]["memory"]
    largest_batch = memory["largest_batch"]
    assert 1 < largest_batch < 256
    if engine == "vllm":
        assert json.decode(out)[KEY][-1][1] == largest_batch
    assert f"# Batches above {largest_batch} keep the last K" in err
    assert (
        f"# at b = {largest_batch + 1} the schedule ends here: DOES NOT FIT: "
        in err.splitlines()[-1]
    )
    code, out, err = call("schedule", engine, *deployment, "--ignore-memory")
    assert code == 0
    assert "# Batches above 256 keep the last K" in err
    assert (
        f"# at b = {largest_batch + 1} the schedule goes on, memory ignored: "
        in err.splitlines()[-1]
    )


@pytest.mark.parametrize("law", ["work_model", "principle"])
def test_a_model_that_fits_nowhere_needs_ignore_memory(call: Call, law: str) -> None:
    """With --ignore-memory the command writes the schedule that it otherwise refuses."""
    argv = ("--model", "mixtral_8x7b", "--ignore-memory", "--by", law)
    code, out, err = call("schedule", "vllm", *WHERE, *SHORT, *argv)
    assert code == 0
    assert json.decode(out)[KEY][-1][1] == LARGEST_BATCH
    assert "# at b = 1 the schedule goes on, memory ignored: DOES NOT FIT: " in err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "thing"),
    [
        ("vllm --acceptance 1.5 --draft-cost 0", "1.5"),
        ("vllm --acceptance nan --draft-cost 0", "nan"),
        ("vllm --acceptance 0.5", "--draft-cost"),
        ("vllm --draft-cost 0.5", "--acceptance"),
        ("vllm --acceptance 0.5,0.7 --draft-cost 0", "rises from 0.5 to 0.7"),
        ("vllm --acceptance 0.5 --draft-cost -1", "-1"),
        ("vllm --acceptance 0.5 --draft-cost inf", "inf"),
        ("vllm --acceptance 0.5 --draft-cost 0 --cautious", "--cautious"),
        ("vllm --acceptance 0.5 --draft-cost 0 --by principle", "--by"),
        ("llama.cpp --by principle", "--by"),
        ("llama.cpp --acceptance 0.5 --draft-cost 0 --cautious", "--cautious"),
        ("llama.cpp --largest-batch 8", "--largest-batch has no effect with llama.cpp, whose"),
        ("vllm --longest 999999", "999999"),
        ("vllm --largest-batch 999999", "999999"),
        ("vllm --largest-batch 20000 --longest 4096", "4097"),
        ("vllm --model mixtral_8x7b", "DOES NOT FIT: needs 96.3 GB (weights"),
        ("vllm --model mixtral_8x7b", "Ask for --tp 2, a shorter context"),
        ("vllm --attention flash-attn==9.9.9", "flash-attn 9.9.9"),
        ("vllm --epsilon 0.0001", "no batch size"),
        ("vllm --dtype float32", "float32"),
    ],
)
def test_a_mistake_is_one_message(call: Call, line: str, thing: str) -> None:
    """An invalid request is one line that names it, and nothing is printed."""
    engine, *arguments = line.split()
    one_message(call("schedule", engine, *WHERE, *arguments), thing)


@pytest.mark.parametrize(
    ("line", "thing"),
    [
        ("tgi", "tgi"),
        ("vllm --batch 8", "--batch"),
        ("vllm --platform h100,h200", "'h100,h200' names several, and one can be asked about"),
        ("vllm --acceptance x", "'x'"),
        ("vllm --draft-cost x", "'x'"),
        ("vllm --by nothing", "nothing"),
        ("vllm --largest-batch 0", "0"),
    ],
)
def test_a_wrong_call_is_one_message(call: Call, line: str, thing: str) -> None:
    """A call that fits nothing is one message, which names what does not fit."""
    code, out, err = call("schedule", *line.split(), *WHERE)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert thing in err


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_several_groups_have_no_schedule(call: Call, engine: str) -> None:
    """Engines drop a schedule under data parallelism: it is refused, and a table is not."""
    command = ("schedule", engine, *UNNAMED, *SHORT, "--tp", "2", "--dp", "2")
    one_message(call(*command), f"{engine} drops a schedule under data parallelism")
    table = ("--goal", "throughput", "--draft-cost", "0.02")
    assert call(*command, *table)[0] == 0
    one_message(
        call(*command, *table, "--acceptance", "0.8"), "Leave --dp out to schedule one group"
    )


def test_a_platform_without_facts_has_no_schedule(call: Call) -> None:
    """Where the predictor refuses, so does the schedule, with its reason."""
    argv = ("--model", "qwen3_8b", "--platform", "h20", "--dtype", "float32")
    one_message(call("schedule", "vllm", *argv), "no phi of h20 for float32")


@pytest.mark.slow
def test_the_drafter_determines_the_cost(call: Call) -> None:
    """A model's own layer costs little; the model itself as drafter costs T(1) a token."""
    rates = ("--acceptance", "0.9")
    free = lengths(call, *rates, "--draft-cost", "0")
    own_layer = lengths(call, *rates, "--drafter", "own")
    assert any(own_layer)
    assert all(own_k <= k for own_k, k in zip(own_layer, free, strict=True))
    _, _, err = call("schedule", "vllm", *WHERE, *SHORT, *rates, "--drafter", "own")
    assert "without a drafter" not in err
    code, _, err = call("schedule", "vllm", *WHERE, *SHORT, *rates, "--drafter", "qwen3_8b")
    assert code == 0
    assert (
        f"# decoding without a drafter is faster at {LARGEST_BATCH} of {LARGEST_BATCH}"
        " batch sizes, from b = 1 on" in err
    )


@pytest.mark.slow
def test_a_head_drafts_for_the_model_whose_states_it_reads(call: Call, tmp_path: Path) -> None:
    """Its few weights allow longer drafts than a model's; one of another width is refused."""
    head = {
        "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": 4096,
        "intermediate_size": 12288, "num_attention_heads": 32, "num_key_value_heads": 8,
        "num_hidden_layers": 1, "torch_dtype": "bfloat16", "vocab_size": 151936,
        "draft_vocab_size": 32000,
    }  # fmt: skip
    files = {name: tmp_path / f"{name}.json" for name in ("eagle", "eagle_3", "wider")}
    full_head = {"draft_vocab_size": None, "architectures": ["LlamaForCausalLM"]}
    for name, change in (
        ("eagle", full_head),
        ("eagle_3", {}),
        ("wider", {"target_hidden_size": 5120}),
    ):
        files[name].write_bytes(json.encode(head | change))
    rates = ("--acceptance", "0.9", "--drafter")
    model = lengths(call, *rates, "qwen3_8b")
    eagle, eagle_3 = (lengths(call, *rates, str(files[name])) for name in ("eagle", "eagle_3"))
    assert sum(model) < sum(eagle) < sum(eagle_3)
    flags = printed(call, "llama.cpp", *rates, str(files["eagle_3"]))
    assert flags.startswith("--spec-type draft-eagle3 --spec-draft-n-max ")
    argv = (*rates, str(files["wider"]))
    one_message(call("schedule", "vllm", *WHERE, *SHORT, *argv), "reads states of 5120 elements")


def test_a_drafter_takes_memory_and_may_have_a_caveat(call: Call) -> None:
    """A schedule ends where memory holds both; an unnamed drafter has a caveat."""
    deployment = ("--model", "qwen3_8b", "--platform", "l40s", "--context", "4096")
    rates = ("--acceptance", "0.8", "--largest-batch", "64")
    code, _, own_layer = call("schedule", "vllm", *deployment, *rates, "--drafter", "own")
    assert code == 0
    assert "# qwen3_8b's file names no layer of its own for further tokens" in own_layer
    code, _, draft_model = call("schedule", "vllm", *deployment, *rates, "--drafter", "qwen3_8b")
    assert code == 0
    ends = [
        int(re.findall(r"at b = (\d+) the schedule ends", err)[0])
        for err in (own_layer, draft_model)
    ]
    assert ends[1] < ends[0] / 2
    assert re.search(r"allowance for the engine 1\.5 GB, drafter \d+\.\d GB", draft_model)


@pytest.mark.parametrize(("argv", "message"), [
    (("--drafter", "own"), "--acceptance or the drafter's cost is given alone"),
    (("--acceptance", "0.8", "--drafter", "own", "--draft-cost", "0"), "both say what drafting"),
    (("--acceptance", "0.8", "--drafter", "none_such"), "no model 'none_such'"),
    (("--acceptance", "0.8", "--drafter", "onw"), " own is the model's own multi-token-"),
])  # fmt: skip
def test_mistakes_about_drafters(call: Call, argv: tuple[str, ...], message: str) -> None:
    """A drafter needs an acceptance, and one cost."""
    code, out, err = call("schedule", "vllm", *WHERE, *SHORT, *argv)
    assert (code, out) == (2, "")
    assert message in err


def test_a_release_without_the_option_is_named(call: Call) -> None:
    """Text and data have a note that the release of the graphs does not read the option."""
    command = ("schedule", "vllm", *WHERE, *SHORT, "--graphs", "vllm==0.20.2")
    note_start = "vllm 0.20.2 does not read this option"
    assert any(line.startswith(f"# {note_start}") for line in call(*command)[2].splitlines())
    document = json.decode(call(*command, "--format", "json")[1])
    assert any(note.startswith(note_start) for note in document["notes"])


def test_every_mistake_of_the_options_is_told_at_once(call: Call) -> None:
    """Numbers out of range and options that exclude each other stand in one message."""
    wrong = ("--acceptance", "1.2", "--longest", "9999", "--worth", "2", "--cautious")
    code, out, err = call("schedule", "vllm", *WHERE, *wrong)
    assert (code, out) == (2, "")
    assert "5 things stand in the way" in err
    for fault in (
        "acceptance rate is 1.2",
        "9999 is no longest draft",
        "worth is 2",
        "without the drafter's cost",
        "Leave --by and --cautious out",
    ):
        assert fault in err
    cost = call("schedule", "vllm", *WHERE, "--acceptance", "0.5,0.6", "--draft-cost", "-1")
    assert "value 2 of the acceptance curve rises" in cost[2]
    assert "the cost of a draft token is -1" in cost[2]
