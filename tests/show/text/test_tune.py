"""The answer of tuning as text and as JSON, and the line to paste."""

import ast
import json
import re
from pathlib import Path
from typing import get_args

import msgspec
import pytest
from derive.tune.tuned import (
    FLAT,
    MIDDLING,
    STEEP,
    write_all,
    write_forwards,
    write_proof,
    write_trace,
)
from msgspec import structs
from nearfree.core.drafting import Drafter, Drafting
from nearfree.derive.tune.recorded import RecordedProof, read_proof
from nearfree.log.names import Layout
from nearfree.show.text.tune import tune_text
from nearfree.show.text.tune_json import document
from nearfree.show.text.tune_line import paste

MODEL = Path("a model.gguf")
SIMPLE, MAP, MOD = "--spec-ngram-simple", "--spec-ngram-map-k4v", "--spec-ngram-mod"


def proof_of(layout: Layout, t_us: dict[int, float], **changes: object) -> RecordedProof:
    """Return the content of a proof."""
    takes = write_all(layout, t_us, **changes)
    return read_proof(takes[-1], {str(take.name): take for take in takes[:-1]})


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (Drafting(threads=2), "-t 2 --spec-type none"),
        (Drafting(repack=False), "-t 1 --no-repack --spec-type none"),
        (
            Drafting(drafter="ngram_simple", k=7, ngram_max=3, ngram_min=3),
            f"-t 1 --spec-type ngram-simple {SIMPLE}-size-n 3 {SIMPLE}-size-m 7",
        ),
        (
            Drafting(drafter="ngram_map_k4v", k=7, ngram_max=3, ngram_min=3),
            f"-t 1 --spec-type ngram-map-k4v {MAP}-size-n 3 {MAP}-size-m 7",
        ),
        (
            Drafting(drafter="ngram_mod", k=7, ngram_max=4, ngram_min=4, shortest=2),
            f"-t 1 --spec-type ngram-mod {MOD}-n-match 4 {MOD}-n-max 7 {MOD}-n-min 2",
        ),
        (
            Drafting(drafter="ngram_cache", k=8, ngram_max=4, ngram_min=1),
            "-t 1 --spec-type ngram-cache",
        ),
        (
            Drafting(drafter="draft_model", k=3),
            "-t 1 -md d.gguf --spec-type draft-simple --spec-draft-n-max 3",
        ),
    ],
)
def test_a_line_to_paste_asks_for_what_ran(run: Drafting, words: str) -> None:
    """The options are those of the engine's own program, with file names quoted for a shell."""
    line = paste("llama_cpp", run, MODEL, Path("d.gguf"), 0)
    assert line == f"llama-server -m 'a model.gguf' {words}"
    assert paste("llama_cpp", run, MODEL, Path("d.gguf"), 0.8) == (
        f"{line} --samplers temperature --temp 0.8"
    )


PLACE = "INFERENCE_NUM_THREADS=2, NUM_STREAMS=1"
PRECISE = f'{PLACE}, INFERENCE_PRECISION_HINT="f32", KV_CACHE_PRECISION="f32"'
OPENVINO_LOOKUP = Drafting(
    drafter="prompt_lookup", k=8, ngram_max=3, ngram_min=1, first=True, padded=True, threads=2,
    kv_dtype="float32",
)  # fmt: skip


@pytest.mark.parametrize(
    ("run", "properties", "settings"),
    [
        (Drafting(threads=2), PLACE, "prompt"),
        (
            OPENVINO_LOOKUP,
            f"{PRECISE}, prompt_lookup=True",
            "prompt, num_assistant_tokens=8, max_ngram_size=3",
        ),
        (
            Drafting(drafter="draft_model", k=3, threads=2, kv_dtype="float32"),
            f"{PRECISE}, draft_model=ov.draft_model('d.gguf', \"CPU\", {PRECISE})",
            "prompt, num_assistant_tokens=3",
        ),
    ],
    ids=["none", "lookup", "draft_model"],
)
def test_a_pipeline_to_paste_computes_as_what_ran(
    run: Drafting, properties: str, settings: str
) -> None:
    """OpenVINO's line is a program in Python with the properties that were compiled with."""
    line = paste("openvino", run, MODEL, Path("d.gguf"), 0)
    ast.parse(line)
    assert line == (
        f"import openvino_genai as ov; ov.LLMPipeline('a model.gguf', \"CPU\", {properties})"
        f".generate({settings})"
    )


def test_a_batch_is_asked_of_the_server_with_its_slots() -> None:
    """Each slot gets a prompt's context; one prompt names no slots."""
    line = paste("llama_cpp", Drafting(), MODEL, None, 0, batch=3, positions=512)
    assert line == "llama-server -m 'a model.gguf' -t 1 --spec-type none --parallel 3 -c 1536"
    assert "--parallel" not in paste("llama_cpp", Drafting(), MODEL, None, 0, positions=512)


def test_a_batch_is_said_where_it_is(layout: Layout) -> None:
    """The first line, T(N) and JSON name the number of prompts decoded together."""
    takes = [write_forwards(layout, FLAT, few=(1,)), write_trace(layout)]
    proof = write_proof(layout, takes, FLAT, batch=2)
    two = read_proof(proof, {str(take.name): take for take in takes})
    lines = list(tune_text(two, MODEL, None))
    assert "; 2 prompts at once" in lines[0]
    assert any("N rows of each of 2 sequences" in line for line in lines)
    made = document(two, MODEL, None)
    assert made["held_out"]["batch"] == 2
    assert made["curve"][0]["n"] == 1
    assert "--parallel 2 -c 2048" in made["paste"]
    takes[0] = write_forwards(layout, FLAT)
    alone = read_proof(write_proof(layout, takes, FLAT), {str(take.name): take for take in takes})
    assert not any("at once" in line for line in tune_text(alone, MODEL, None))


def test_sampling_is_said_where_it_is(layout: Layout) -> None:
    """The first line and JSON have the temperature; greedy answers name none."""
    forwards, *greedy = write_all(layout, FLAT)
    takes = [forwards, write_trace(layout, heat=0.8)]
    proof = write_proof(layout, takes, FLAT, heat=0.8)
    hot = read_proof(proof, {str(take.name): take for take in takes})
    plain = read_proof(greedy[-1], {str(take.name): take for take in (forwards, *greedy)})
    assert "; sampled at temperature 0.8" in next(tune_text(hot, MODEL, None))
    assert "sampled" not in next(tune_text(plain, MODEL, None))
    temperatures = [
        document(tuned, MODEL, None)["held_out"]["temperature"] for tuned in (hot, plain)
    ]
    assert temperatures == [0.8, 0]


def test_json_has_numbers_or_null(layout: Layout) -> None:
    """The interval of one repeat has null ends in JSON."""
    made = document(proof_of(layout, FLAT, noise=(1.0,)), MODEL, None)
    read = json.loads(msgspec.json.encode(made))
    assert all(setting["tokens_s"]["high"] is None for setting in read["settings"])
    assert read["verdict"] == "undecided"
    assert read["choice"]["k"] == 0
    assert set(read["gain"]) == {"over_none", "over_default", "over_defaults"}
    assert read["gain"]["over_none"] is None
    simple, cache, idle = read["gain"]["over_defaults"]
    assert simple["over"] == read["gain"]["over_default"]
    assert (cache["drafter"], cache["k"], cache["drafts"]) == ("ngram_cache 1-4", 8, True)
    assert (idle["drafter"], idle["drafts"], idle["over"]) == ("ngram_mod 24 from 48", False, None)
    assert [point["n"] for point in read["curve"]] == list(FLAT)


@pytest.mark.parametrize(
    ("t_us", "words"), [(FLAT, "speculate, with"), (STEEP, "do not speculate")]
)
def test_the_text_says_the_verdict_and_what_to_run(
    layout: Layout, t_us: dict[int, float], words: str
) -> None:
    """The text has T(N), every setting that ran, each kind of prompts, and evidence."""
    proof = proof_of(layout, t_us)
    text = "\n".join(tune_text(proof, MODEL, None))
    assert f"verdict: {words}" in text
    assert "llama-server -m 'a model.gguf'" in text
    assert all(str(take.name) in text for take in proof.takes)
    assert "times as fast as ngram_cache 1-4 with K = 8, a default" in text
    assert "ngram_mod 24 from 48 with K = 64, a default" in text
    assert text.count("drafts nothing on these prompts") == 1
    assert all(f"\n  {kind} " in text for kind in ("copying", "text", "all"))
    assert text.count("yes") >= 2 * len(proof.answer.settings)


def test_settings_whose_outputs_differ_alike_share_a_line(layout: Layout) -> None:
    """The text names where outputs part from those of none, and by how little the best led."""
    proof = proof_of(layout, FLAT)
    first, *drafted, last = sorted(
        proof.answer.settings, key=lambda setting: setting.result.drafting.k
    )
    differing = [
        structs.replace(
            setting, result=structs.replace(setting.result, first_difference=7, margin=0.0161)
        )
        for setting in drafted
    ]
    alone = structs.replace(last, result=structs.replace(last.result, first_difference=3))
    answer = structs.replace(proof.answer, settings=(first, *differing, alone))
    lines = [
        line
        for line in tune_text(structs.replace(proof, answer=answer), MODEL, None)
        if "outputs differ" in line
    ]
    names = [f"K = {s.result.drafting.k}, {s.result.drafting.label}" for s in (*drafted, last)]
    assert lines == [
        (
            f"  {'; '.join(names[:-1])}: outputs differ from none after 7 tokens at the earliest, "
            "where the best logit led by 0.016"
        ),
        f"  {names[-1]}: outputs differ from none after 3 tokens at the earliest",
    ]
    assert len(drafted) > 1


@pytest.mark.parametrize(("slower", "told"), [(1.0, 0), (1.1, 0), (1.4, 1), (0.7, 1)])
def test_forwards_that_took_longer_than_t_of_n_says_are_told(
    layout: Layout, slower: float, told: int
) -> None:
    """Where the same steps took another time, the text says by how much, and what that means."""
    proof = proof_of(layout, FLAT, slower=dict.fromkeys(get_args(Drafter), slower) | {"none": 1.0})
    lines = [line for line in tune_text(proof, MODEL, None) if "forwards took" in line]
    assert len(lines) == told
    for line in lines:
        assert "gains are as measured" in line
        ends = [float(number) for number in re.findall(r"\d\.\d\d", line)]
        assert ends == pytest.approx([min(slower, 1), max(slower, 1)], abs=0.03)


def test_json_has_what_the_text_says(layout: Layout) -> None:
    """JSON has whose T(N) it is, the best prediction per kind, and the first difference."""
    proof = proof_of(layout, FLAT)
    made, lines = document(proof, MODEL, None), list(tune_text(proof, MODEL, None))
    of = made["curve_of"]
    (head,) = (line for line in lines if line.startswith("T(N) in "))
    assert head.startswith(f"T(N) in {of['seconds']} time, {of['threads']} thread(s)")
    assert f"over L = {of['context']}" in head
    begin = next(at for at, line in enumerate(lines) if line.startswith("predicted choice"))
    rows = [line.split() for line in lines[begin + 2 : begin + 2 + len(made["predicted"])]]
    assert [row[0] for row in rows] == [prediction["prompts"] for prediction in made["predicted"]]
    assert {"copying", "text", "all"} == {row[0] for row in rows}
    for row, prediction in zip(rows, made["predicted"], strict=True):
        assert (row[1], row[-2]) == (str(prediction["k"]), f"{prediction['over_none']:.2f}")
    by_kind = made["by_kind"]
    assert list(by_kind) == ["copying", "text"]
    begin = next(at for at, line in enumerate(lines) if line.startswith("choice for each kind"))
    for line, (kind, kind_row) in zip(lines[begin + 2 :], by_kind.items(), strict=False):
        assert line.split()[:3] == [
            kind,
            str(kind_row["choice"]["k"]),
            *kind_row["choice"]["drafter"].split()[:1],
        ]
        assert line.split()[-2:] == [
            f"{kind_row['copied_share'][half]:.0%}" for half in ("tuned", "held_out")
        ]
    (setting, *_), (parted, *_) = proof.answer.settings, made["settings"]
    assert (parted["first_difference"], parted["margin"]) == (
        setting.result.first_difference,
        setting.result.margin,
    )


def test_a_kind_that_is_to_run_otherwise_has_a_line_of_its_own(layout: Layout) -> None:
    """If drafts win on one kind of prompts only, that kind has its own line."""
    proof = proof_of(layout, MIDDLING, default=None, defaults=())
    made, lines = document(proof, MODEL, None), list(tune_text(proof, MODEL, None))
    assert made["paste"].endswith("--spec-type none")
    assert made["by_kind"]["text"]["paste"] == made["paste"]
    copying = made["by_kind"]["copying"]
    assert copying["run"] == copying["choice"]
    assert copying["over_none"]["low"] > 1
    assert copying["predicted_over_none"] > 1
    at = lines.index("to run where all prompts are copying:")
    assert lines[at + 1] == f"  {copying['paste']}"
    assert "--spec-ngram-" in copying["paste"]
    assert "to run where all prompts are text:" not in lines
