"""Models whose layers differ, on the command line: answered as served, limiters named by kind."""

from pathlib import Path
from typing import Any

import pytest
from decoders.files import write
from msgspec import json
from msgspec.structs import replace
from nearfree.decoders.ranks.attention_uses import (
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
    (answer,) = json.decode(out)
    return code, answer


def rests_on_evidence(module: dict[str, Any]) -> bool:
    """Return whether T(N) of a module rests on curves of its kernel, or its tile on a rule."""
    return module["regime"] != "R0" or not module["evidence"].startswith("no rule")


@pytest.mark.parametrize(
    ("model", "options", "kinds"),
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
    call: Call, tmp_path: Path, model: str, options: str, kinds: list[str]
) -> None:
    """T(N) is the sum over kinds, each a module with a rule of its tile and a share of its own."""
    code, answer = predict(call, tmp_path, model, *options.split(), "--largest", "64")
    assert code == 0
    assert answer["refusals"] == []
    modules = {module["module"]: module for module in answer["modules"]}
    assert [f"attention, {kind}" in modules for kind in kinds] == [True] * len(kinds)
    decoder = answer["deployment"]["decoder"]
    layers = [layer for kind in decoder["kinds"] for layer in kind["layers"]]
    assert sorted(layers) == list(range(decoder["layers"]))
    at_one = answer["curve"][0]
    assert sum(at_one[name] for name in (*modules, *answer["besides"])) == pytest.approx(1.0)
    shares = sum(at_one[name] for name in modules)
    assert (
        sum(at_one[n] for n, module in modules.items() if rests_on_evidence(module))
        >= KNOWN_SHARE * shares
    )
    work = next(row for row in answer["predictors"] if row["predictor"] == "work_model")
    assert work["n_max"] >= 1


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give forms of latent attention the start values of their fit: sums, not times."""
    recorded = answers.recorded_constants

    def constants(layout: Layout) -> dict[str, Event]:
        events = recorded(layout)
        event = events["attention_cached"]
        for name in {"mla_cached", "mla_selected", "indexer_logits", "indexer_select"} - {*events}:
            form = FAMILIES[name]
            values = tuple(
                constant.calibrated(hypothesis, constant.start)
                for hypothesis in form.hypotheses
                for constant in form.constants
            )
            data = replace(event.data, family=name, constants=values)
            events[name] = replace(event, data=data)
        return events

    monkeypatch.setattr(answers, "recorded_constants", constants)


@pytest.mark.usefixtures("started")
@pytest.mark.parametrize(
    ("model", "options"),
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
    call: Call, tmp_path: Path, model: str, options: str
) -> None:
    """The latent's products, its call and its indexer have a T(N) each, and its tile a rule.

    Experts that vLLM spreads over Hopper's ranks run FlashInfer's CUTLASS, which no rule answers.
    """
    code, answer = predict(call, tmp_path, model, *options.split(), "--largest", "64")
    assert code == 0
    assert answer["refusals"] == []
    modules = {module["module"]: module for module in answer["modules"]}
    indexed = (
        {INDEXER, SELECTION, INDEX_QUERY, INDEX_KEY} if "index_topk" in MODELS[model] else set()
    )
    assert {LATENTS, QUERY, ABSORB, LATENT, RELEASE, OUTPUT, *indexed} <= {*modules}
    at_one = answer["curve"][0]
    assert sum(at_one[name] for name in (*modules, *answer["besides"])) == pytest.approx(1.0)
    assert all(
        rests_on_evidence(modules[name])
        for name in (LATENTS, QUERY, ABSORB, LATENT, RELEASE, OUTPUT)
    )
    resolved = next(row for row in answer["predictors"] if row["predictor"] == "principle_resolved")
    if "--ep" in options:
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
    code, answer = predict(call, tmp_path, "gpt_oss_20b", "--platform", "h100", "--largest", "64")
    assert code == 0
    assert answer["deployment"]["attention"].startswith("vllm_fa3")
    modules = {module["module"]: module for module in answer["modules"]}
    experts = modules["MoE FFN"]
    assert experts["regime"] == "R3"
    resolved = next(row for row in answer["predictors"] if row["predictor"] == "principle_resolved")
    assert resolved["n_max"] == 64 / 8
    assert resolved["limiting_module"].startswith("attention, all positions")


def test_kernels_that_do_not_take_a_model_are_refused(call: Call, tmp_path: Path) -> None:
    """Sinks in FlashAttention 2, and a latent in it, are refused with a remedy."""
    for model, reason in (("gpt_oss_20b", "sinks"), ("deepseek_v2_lite", "of a latent")):
        options = ("--platform", "h100", "--attention", "flash-attn", "--largest", "8")
        code, answer = predict(call, tmp_path, model, *options)
        assert code == 2
        assert all(reason in refusal["reason"] for refusal in answer["refusals"])
        assert all("--attention" in refusal["remedy"] for refusal in answer["refusals"])
        assert answer["memory"]["fits"]


def test_the_title_has_windows_shorter_than_the_context(call: Call, tmp_path: Path) -> None:
    """A window or chunk shorter than L is in the title with its layers; a longer one is not."""
    path = str(write(tmp_path, MODELS["llama_4_scout"]))
    texts = []
    for context in ("4096", "16384"):
        options = (
            "--platform",
            "h100",
            "--tp",
            "8",
            "--context",
            context,
            "--largest",
            "8",
            "--all",
        )
        texts.append(call("predict", "--model", path, *options)[1])
    assert "L = 4096, attention" in texts[0]
    assert "L = 16384 (chunks of 8192 in 36 of 48 layers), attention" in texts[1]
    assert "context 16384 (chunks of 8192 in 36 of 48 layers), attention" in texts[1]


def test_selected_blocks_are_answered_by_one_engine(call: Call, tmp_path: Path) -> None:
    """MiniMax M3's layers have their own curves; SGLang, which lacks a forward of it, refuses."""
    deployment = ("--tp", "8", "--largest", "32")
    for platform in ("h200", "b200"):
        options = (*deployment, "--platform", platform, "--moe", "vllm")
        code, answer = predict(call, tmp_path, "minimax_m3", *options)
        assert code == 0
        layer = next(module for module in answer["modules"] if module["module"] == LAYER)
        assert layer["regime"] in ("R2", "R3")
    options = (*deployment, "--platform", "b200", "--moe", "sglang")
    code, answer = predict(call, tmp_path, "minimax_m3", *options)
    assert code == 2
    (refusal,) = answer["refusals"]
    assert "verifies no drafts" in refusal["reason"]
    assert refusal["remedy"] == "Ask with --moe vllm"


def test_kimi_k3_is_answered_where_its_experts_kernel_is_known(call: Call, tmp_path: Path) -> None:
    """SGLang answers on data-centre Blackwell; vLLM's kernel for the file has no rule."""
    path = str(write(tmp_path, MODELS["kimi_k3"], "kimi_k3.json"))
    command = ("predict", "--model", path, "--tp", "8", "--platform", "b300", "--largest", "32")
    code, out, err = call(*command, "--moe", "sglang")
    assert (code, err) == (0, "")
    assert "each 12 layers before them is not timed" in out
    code, out, err = call(*command, "--moe", "vllm")
    assert code == 2
    assert "MoE FFN" in out + err
