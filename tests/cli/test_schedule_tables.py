"""nearfree schedule without an acceptance, as data, and over contexts: tables, notes, entries."""

import argparse
from typing import Any

import pytest
from derive.schedule.engine import vllm_lookup
from derive.schedule.test_expected import best_lengths
from msgspec import json
from nearfree.cli.schedule import _safe
from nearfree.config.files import Config
from nearfree.derive.schedule.expected import independent_acceptance, speedups
from nearfree.derive.schedule.full_graphs import outside_full_graphs
from nearfree.show.text.context_schedule import ContextSchedule

from cli.conftest import ROOT, Call
from cli.schedules import (
    BATCHES,
    KEY,
    LARGEST_BATCH,
    SHORT,
    UNNAMED,
    WHERE,
    curves,
    lengths,
)


@pytest.fixture
def call(ask: Call) -> Call:
    """Return a function that runs a command, or returns the answer of an equal one."""
    return ask


@pytest.mark.slow
@pytest.mark.parametrize(("model", "platform", "options"), [
    ("qwen3_8b", "h200", ()),
    ("qwen3_30b_a3b", "h200", ("--epsilon", "0.4")),
    ("llama_3_1_8b", "h100", ("--tp", "2", "--weights", "float8", "--activations", "float8")),
    ("mixtral_8x7b", "h200", ()),
    ("llama_3_1_8b", "l40s", ("--context", "16384")),
])  # fmt: skip
def test_an_option_has_few_entries(
    call: Call, model: str, platform: str, options: tuple[str, ...]
) -> None:
    """Near-free lengths make 6 entries with 5 K at most, each near-free, none above memory."""
    command = ("--model", model, "--platform", platform, "--context", "4096", "--format", "json")
    document = json.decode(call("schedule", "vllm", *command, *options)[1])
    unmerged = json.decode(call("schedule", "vllm", *command, *options, "--worth", "0")[1])
    merged_entries, all_entries = (
        {x["from"]: x for x in schedule["safe"]["entries"]} for schedule in (document, unmerged)
    )
    assert len(merged_entries) <= 6
    assert len({entry["k"] for entry in merged_entries.values()}) <= 5
    free = {b: e["k"] for e in all_entries.values() for b in range(e["from"], e["to"] + 1)}
    merged = {b: e["k"] for e in merged_entries.values() for b in range(e["from"], e["to"] + 1)}
    assert merged.keys() == free.keys()
    assert all(merged[b] <= free[b] for b in free)
    epsilon = float(dict(zip(options[::2], options[1::2], strict=True)).get("--epsilon", 0.2))
    assert all(entry["cost"] <= 1 + epsilon for entry in merged_entries.values())
    ends = document["safe"]["memory_ends_at"]
    assert ends is None or max(merged) == ends - 1


@pytest.mark.slow
def test_full_graphs_are_those_of_the_gpu(call: Call) -> None:
    """Batch sizes outside the graphs are counted by the tokens that vLLM captures on the GPU."""
    options = ("--model", "qwen3_8b", "--platform", "b200", "--context", "512", "--worth", "0")
    rates = ("--acceptance", "0.9", "--draft-cost", "0")
    code, out, err = call("schedule", "vllm", *options, *rates)
    assert code == 0
    document = json.decode(out)
    ks = vllm_lookup(document[KEY], 256, document["num_speculative_tokens"])
    k_by_batch = dict(enumerate(ks, 1))
    outside = outside_full_graphs(k_by_batch, largest=1024)
    assert outside != outside_full_graphs(k_by_batch)
    assert f"# {len(outside)} of 256 batch sizes (" in err


def test_json_has_the_deployment_and_the_tolerance(call: Call) -> None:
    """JSON has the deployment as that of `predict`, but for b and L, and the tolerance."""
    command = ("schedule", "vllm", *WHERE, *SHORT, "--epsilon", "0.1", "--format", "json")
    document, options = json.decode(call(*command)[1]), ("--largest", "2", "--format", "json")
    (answer,) = json.decode(call("predict", *WHERE, "--moe", "vllm", *options)[1])
    varying = {name: answer["deployment"].pop(name) for name in ("batch", "context")}
    assert varying.keys().isdisjoint(document["deployment"])
    assert document["deployment"] == answer["deployment"]
    assert document["epsilon"] == 0.1


def test_without_an_acceptance_a_table_is_printed(call: Call) -> None:
    """`--goal throughput` without an acceptance prints a table of the best K, and no option."""
    command = ("schedule", "vllm", *WHERE, *SHORT, "--goal", "throughput", "--draft-cost", "0.02")
    code, out, err = call(*command)
    assert (code, err) == (0, "")
    assert KEY not in out
    rows = out.splitlines()[3:]
    assert [int(row.split()[0]) for row in rows] == [1, 2, 4, 8, 16, 32, 64]
    best = best_lengths(curves(call), independent_acceptance(0.8, most=16), draft_cost=0.02)
    data = json.decode(call(*command, "--format", "json")[1])
    assert data["option"] is None
    near_free = json.decode(call("schedule", "vllm", *WHERE, *SHORT, "--format", "json")[1])
    assert {name: data[name] for name in ("engine", "deployment", "contexts")} == {
        name: near_free[name] for name in ("engine", "deployment", "contexts")
    }
    assert (data["goal"], near_free["goal"]) == ("throughput", "tolerance")
    (ends,) = data["memory"]
    assert ends.items() <= near_free["safe"].items()
    k_by_batch = {row["batch"]: row["k"] for row in data["choices"] if row["acceptance"] == 0.8}
    assert [k_by_batch[b] for b in BATCHES] == [best[b].k for b in BATCHES]


def test_a_table_has_the_notes_of_an_option(call: Call) -> None:
    """Assumptions, caveats of the drafter, and the end of memory, in text and in JSON."""
    command = (
        *("schedule", "vllm", "--model", "qwen3_8b", "--platform", "l40s", "--context", "4096"),
        *("--goal", "throughput", "--drafter", "own"),
    )
    code, out, err = call(*command)
    assert (code, err) == (0, "")
    data = json.decode(call(*command, "--format", "json")[1])
    begins = ("the attention backend is assumed", "qwen3_8b's file names no layer of its own")
    assert [note[: len(begin)] for note, begin in zip(data["notes"], begins, strict=False)] == [
        *begins
    ]
    assert set(out.splitlines()) >= {f"# {note}" for note in data["notes"]}
    (end,) = data["memory"]
    last_line = f"# at b = {end['memory_ends_at']} the schedule ends here: {end['memory']}"
    assert out.splitlines()[-1] == last_line
    assert max(row["batch"] for row in data["choices"]) == end["memory_ends_at"] - 1


def test_json_has_the_notes_of_the_text(call: Call) -> None:
    """Caveats, the loss by few entries, and where no drafter is faster, are in JSON, too."""
    rates = ("--acceptance", "0.9", "--drafter", "qwen3_8b")
    command = ("schedule", "vllm", *UNNAMED, "--largest-batch", "8", *rates)
    comments = call(*command)[2].splitlines()
    data = json.decode(call(*command, "--format", "json")[1])
    (only,) = data["schedules"]
    assert any("decoding without a drafter is faster at 8 of 8" in note for note in only["notes"])
    for note in (*data["notes"], *only["notes"]):
        assert f"# {note}" in comments
    worst, mean = (f"{only['lost'][name]:.1%}" for name in ("worst", "mean"))
    assert any(f"lose {worst} of" in line and f"{mean} in the mean" in line for line in comments)
    near_free = json.decode(call("schedule", "vllm", *WHERE, *SHORT, "--format", "json")[1])
    lines = call("schedule", "vllm", *WHERE, *SHORT)[2].splitlines()
    begin = next(index for index, line in enumerate(lines) if "from b" in line) + 1
    rows = [line[1:].split() for line in lines[begin:]]
    limits = [" ".join(row[4:]) for row in rows if row[0].isdigit()]
    limiters = [entry["limited_by"] for entry in near_free["safe"]["entries"]]
    assert [limiter or "-" for limiter in limiters] == limits


@pytest.mark.slow
def test_the_safe_option_is_near_free_at_every_context(call: Call) -> None:
    """At several contexts the option is the longest K that is near-free at all of them."""
    contexts = ("--context", "512,4096")
    code, out, err = call("schedule", "vllm", *WHERE, *SHORT, "--worth", "0", *contexts)
    assert code == 0
    option = json.decode(out)
    safe = vllm_lookup(option[KEY], LARGEST_BATCH, option["num_speculative_tokens"])
    longest = [lengths(call), lengths(call, "--context", "4096")]
    assert all(k <= min(ks) for k, *ks in zip(safe, *longest, strict=True))
    ratios = [curves(call, where=("--context", context)) for context in ("512", "4096")]
    for b in BATCHES:
        free = [k for k in range(17) if all(ratio[b][k + 1] <= 1.2 for ratio in ratios)]
        assert safe[b - 1] == max(free)
    assert "# the option is safe at L = 512, 4096: at each batch size the longest K" in err
    rates = ("--acceptance", "0.8", "--draft-cost", "0.02")
    _, out, err = call("schedule", "vllm", *WHERE, *SHORT, *contexts, *rates)
    assert any(f"# L = {context}: {out.strip()}" in err for context in (512, 4096))
    assert "whose worst loss over the contexts is the smallest" in err


def test_one_length_is_by_the_slowest_context(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts beyond the tolerance, and the cost array, are by the largest T(N) of all contexts."""
    by_context = {
        512: {1: 1.0, 2: 1.1, 3: 1.1, 4: 1.2},
        4096: {1: 1.0, 2: 1.1, 3: 1.3, 4: 1.1},
    }
    monkeypatch.setattr("nearfree.cli.schedule.ratio_by_batch", lambda ratio: {1: ratio})
    schedules: list[Any] = [
        ContextSchedule(
            context=context,
            deployments=(),
            forecast=ratios_by_n,
            near_free={1: frozenset({0, 1, 3})},
        )  # type: ignore[arg-type]
        for context, ratios_by_n in by_context.items()
    ]
    args = argparse.Namespace(
        engine="llama.cpp", goal="tolerance", acceptance=None, epsilon=0.2, drafter=None,
        draft_cost=None, worth=0.0,
    )  # fmt: skip
    for ordered in (schedules, schedules[::-1]):
        option = _safe(args, Config(ROOT / "config"), ordered).option
        assert option.text == "--spec-type draft-simple --spec-draft-n-max 3"
        assert any(note.startswith("Drafts of 2 tokens are beyond") for note in option.notes)
        assert any('GGML_BATCH_COSTS="1,0.55,0.433333,0.3"' in note for note in option.notes)


@pytest.mark.parametrize("rate", ["0.5", "0.8"])
def test_merged_entries_lose_little(call: Call, rate: str) -> None:
    """Merged, six entries lose less than 2 % of tokens per second, and name the worst loss."""
    rates = ("--acceptance", rate, "--draft-cost", "0.02")
    code, out, err = call("schedule", "vllm", *WHERE, *SHORT, *rates)
    assert code == 0
    option = json.decode(out)
    assert len(option[KEY]) <= 6
    assert len({k for _, _, k in option[KEY]}) <= 5
    merged = vllm_lookup(option[KEY], LARGEST_BATCH, option["num_speculative_tokens"])
    accepted = independent_acceptance(float(rate), most=16)
    speeds = speedups(curves(call), accepted, draft_cost=0.02)
    lost = [
        1 - speed_by_k[merged[batch - 1]] / max(speed_by_k.values())
        for batch, speed_by_k in speeds.items()
    ]
    assert sum(lost) / len(lost) <= 0.02
    assert "of the best expected tokens/s at worst" in err
