"""Models whose layers differ, on the command line: answered as served, limiters named by kind."""

from pathlib import Path
from typing import Any

import pytest
from decoders.files import write
from msgspec import json
from msgspec.structs import replace
from nearfree.decoders.attention_uses import (
    ABSORB,
    INDEX_KEY,
    INDEX_QUERY,
    INDEXER,
    LATENT,
    LATENTS,
    LAYER,
    OUTPUT,
    QUERY,
    RELEASE,
    SELECTION,
)
from nearfree.derive.predict import answers
from nearfree.derive.work_model.families import FAMILIES
from nearfree.log.events import Event
from nearfree.log.names import Layout

from cli.conftest import Call
from cli.served_kinds import MODELS

pytestmark = pytest.mark.usefixtures("recorded")
KNOWN_SHARE = 0.95
"""Share of the modules' T(1) that rests on a rule, a public curve or a measurement where a model is
answered; what is between and besides modules rests on published steps."""


def predict(call: Call, folder: Path, model: str, *argv: str) -> tuple[int, dict[str, Any]]:
    """Return the exit code of `predict`, and what it prints as JSON."""
    path = write(folder, MODELS[model], f"{model}.json")
    code, out, err = call("predict", "--model", str(path), *argv, "--format", "json")
    assert err == ""
    (found,) = json.decode(out)
    return code, found


def known(module: dict[str, Any]) -> bool:
    """Return whether T(N) of a module rests on curves of its kernel, or its tile on a rule."""
    return module["regime"] != "R0" or not module["evidence"].startswith("no rule")


@pytest.mark.parametrize(
    ("model", "asked", "kinds"),
    [
        (
            "gemma_2_27b", "--platform h100 --context 8192",
            ["window 4096, 23 of 46 layers", "all positions, 23 of 46 layers"],
        ),
        (
            "gemma_3_27b", "--platform h100",
            ["window 1024, 52 of 62 layers", "all positions, 10 of 62 layers"],
        ),
        (
            "gemma_4_31b", "--platform h200",
            ["window 1024, 50 of 60 layers", "all positions, 10 of 60 layers"],
        ),
        (
            "gpt_oss_20b", "--platform h100",
            ["window 128, 12 of 24 layers", "all positions, 12 of 24 layers"],
        ),
        (
            "gpt_oss_120b", "--platform h100",
            ["window 128, 18 of 36 layers", "all positions, 18 of 36 layers"],
        ),
        (
            "llama_4_scout", "--platform h100 --tp 8",
            ["chunks of 8192, 36 of 48 layers", "all positions, 12 of 48 layers"],
        ),
    ],
)  # fmt: skip
def test_models_of_several_kinds_are_answered(
    call: Call, tmp_path: Path, model: str, asked: str, kinds: list[str]
) -> None:
    """T(N) is the sum over kinds, each a module with a rule of its tile and a share of its own."""
    code, found = predict(call, tmp_path, model, *asked.split(), "--largest", "64")
    assert code == 0
    assert found["refusals"] == []
    modules = {each["module"]: each for each in found["modules"]}
    assert [f"attention, {kind}" in modules for kind in kinds] == [True] * len(kinds)
    decoder = found["deployment"]["decoder"]
    layers = [layer for kind in decoder["kinds"] for layer in kind["layers"]]
    assert sorted(layers) == list(range(decoder["layers"]))
    first = found["curve"][0]
    assert sum(first[name] for name in (*modules, *found["besides"])) == pytest.approx(1.0)
    shares = sum(first[name] for name in modules)
    assert sum(first[n] for n, each in modules.items() if known(each)) >= KNOWN_SHARE * shares
    work = next(each for each in found["predictors"] if each["predictor"] == "work_model")
    assert work["n_max"] >= 1


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give forms of latent attention the constants that a fit starts from: sums, not times."""
    recorded = answers.recorded_constants

    def constants(layout: Layout) -> dict[str, Event]:
        events = recorded(layout)
        event = events["attention_cached"]
        for name in {"mla_cached", "mla_selected", "indexer_logits", "indexer_select"} - {*events}:
            form = FAMILIES[name]
            values = tuple(
                each.calibrated(hypothesis, each.start)
                for hypothesis in form.hypotheses
                for each in form.constants
            )
            data = replace(event.data, family=name, constants=values)
            events[name] = replace(event, data=data)
        return events

    monkeypatch.setattr(answers, "recorded_constants", constants)


@pytest.mark.usefixtures("started")
@pytest.mark.parametrize(
    ("model", "asked"),
    [
        ("deepseek_v2_lite", "--platform h100"),
        ("deepseek_r1", "--platform h200 --tp 8 --ep 8"),
        ("deepseek_v3_2", "--platform h200 --tp 8"),
        ("kimi_k2", "--platform h200 --tp 8 --pp 2"),
        ("mistral_small_4", "--platform h200 --tp 2"),
        ("glm_5_1", "--platform h200 --tp 8"),
    ],
)
def test_models_of_a_latent_are_answered(
    call: Call, tmp_path: Path, model: str, asked: str
) -> None:
    """The latent's products, its call and its indexer have a T(N) each, and its tile a rule.

    Experts that vLLM spreads over Hopper's ranks run FlashInfer's CUTLASS, which no rule answers.
    """
    code, found = predict(call, tmp_path, model, *asked.split(), "--largest", "64")
    assert code == 0
    assert found["refusals"] == []
    modules = {each["module"]: each for each in found["modules"]}
    indexed = (
        {INDEXER, SELECTION, INDEX_QUERY, INDEX_KEY} if "index_topk" in MODELS[model] else set()
    )
    assert {LATENTS, QUERY, ABSORB, LATENT, RELEASE, OUTPUT, *indexed} <= {*modules}
    first = found["curve"][0]
    assert sum(first[name] for name in (*modules, *found["besides"])) == pytest.approx(1.0)
    assert all(known(modules[name]) for name in (LATENTS, QUERY, ABSORB, LATENT, RELEASE, OUTPUT))
    resolved = next(
        each for each in found["predictors"] if each["predictor"] == "principle_resolved"
    )
    if "--ep" in asked:
        assert resolved["n_max"] is None
        assert "MoE FFN: vllm" in resolved["refusal"]
        assert "FlashInfer's CUTLASS" in resolved["refusal"]
        assert "whose blocks are not read" in resolved["refusal"]
    else:
        assert resolved["limiting_module"] in (LATENT, "MoE FFN")


def test_gpt_oss_runs_the_kernels_that_take_it(call: Call, tmp_path: Path) -> None:
    """On Hopper vLLM's FlashAttention 3 takes sinks, in 64 rows but in 192 of layers with a window.

    Experts have their own curves.
    """
    code, found = predict(call, tmp_path, "gpt_oss_20b", "--platform", "h100", "--largest", "64")
    assert code == 0
    assert found["deployment"]["attention"].startswith("vllm_fa3")
    modules = {each["module"]: each for each in found["modules"]}
    experts = modules["MoE FFN"]
    assert experts["regime"] == "R3"
    resolved = next(
        each for each in found["predictors"] if each["predictor"] == "principle_resolved"
    )
    assert resolved["n_max"] == 64 / 8
    assert resolved["limiting_module"].startswith("attention, all positions")


def test_kernels_that_do_not_take_a_model_are_refused(call: Call, tmp_path: Path) -> None:
    """Sinks in FlashAttention 2, and a latent in it, are refused with what would work."""
    for model, said in (("gpt_oss_20b", "sinks"), ("deepseek_v2_lite", "of a latent")):
        asked = ("--platform", "h100", "--attention", "flash-attn", "--largest", "8")
        code, found = predict(call, tmp_path, model, *asked)
        assert code == 2
        assert all(said in each["reason"] for each in found["refusals"])
        assert all("--attention" in each["remedy"] for each in found["refusals"])
        assert found["memory"]["fits"]


def test_the_title_says_what_is_shorter_than_the_context(call: Call, tmp_path: Path) -> None:
    """A window or chunk shorter than L stands beside it with its layers; a longer one does not."""
    path = str(write(tmp_path, MODELS["llama_4_scout"]))
    said = []
    for context in ("4096", "16384"):
        asked = ("--platform", "h100", "--tp", "8", "--context", context, "--largest", "8", "--all")
        said.append(call("predict", "--model", path, *asked)[1])
    assert "L = 4096, attention" in said[0]
    assert "L = 16384 (chunks of 8192 in 36 of 48 layers), attention" in said[1]
    assert "context 16384 (chunks of 8192 in 36 of 48 layers), attention" in said[1]


def test_selected_blocks_are_answered_by_one_engine(call: Call, tmp_path: Path) -> None:
    """MiniMax M3's layers stand on their own curves; SGLang's lack of a forward is said."""
    asked = ("--tp", "8", "--largest", "32")
    for platform in ("h200", "b200"):
        options = (*asked, "--platform", platform, "--moe", "vllm")
        code, found = predict(call, tmp_path, "minimax_m3", *options)
        assert code == 0
        layer = next(each for each in found["modules"] if each["module"] == LAYER)
        assert layer["regime"] in ("R2", "R3")
    options = (*asked, "--platform", "b200", "--moe", "sglang")
    code, found = predict(call, tmp_path, "minimax_m3", *options)
    assert code == 2
    (refusal,) = found["refusals"]
    assert "verifies no drafts" in refusal["reason"]
    assert refusal["remedy"] == "Ask with --moe vllm"


def test_kimi_k3_is_answered_where_its_experts_kernel_is_known(call: Call, tmp_path: Path) -> None:
    """By SGLang on data-centre Blackwell; vLLM's kernel for its file is none that is read."""
    path = str(write(tmp_path, MODELS["kimi_k3"], "kimi_k3.json"))
    asked = ("predict", "--model", path, "--tp", "8", "--platform", "b300", "--largest", "32")
    code, out, err = call(*asked, "--moe", "sglang")
    assert (code, err) == (0, "")
    assert "each 12 layers before them is not timed" in out
    code, out, err = call(*asked, "--moe", "vllm")
    assert code == 2
    assert "MoE FFN" in out + err
