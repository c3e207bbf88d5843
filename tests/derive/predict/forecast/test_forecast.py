"""The paper's rule for a model: the minimum of its modules' boundaries."""

from typing import Any

import pytest
from msgspec.structs import asdict
from nearfree.core.predictors import LAWS
from nearfree.decoders.ranks.attention_uses import INDEXER, LAYER
from nearfree.decoders.ranks.modules import DENSE, MIXING
from nearfree.derive.predict.forecast.deployment import Deployment
from nearfree.derive.predict.forecast.forecast import headline, knobs

from derive.predict.forecast.pool import (
    ANSWERER,
    GRID,
    MODELS,
    POOL,
    deployment,
    forecast_of,
    pool,
)
from derive.questions import ask

RHO = {"h20": 37.0, "h800": 989 / 3.35}


def law(answer: Deployment, predictor: str, baseline: int = 1) -> dict[str, Any]:
    """Return what a law says of a deployment."""
    rows = forecast_of(answer, predictors=[predictor], grid=GRID).answers
    return rows.filter(baseline=baseline).row(0, named=True)


def by_module(answer: Deployment, predictor: str, baseline: int = 1) -> dict[str, dict[str, Any]]:
    """Return what a law says of each main module, asked by itself, by role."""
    answers = {}
    for use in answer.uses():
        beside = {"platform": answer.platform, "backend_version": use.backend_version}
        row = asdict(use.setting) | beside | {"baseline": baseline}
        if use.main:
            answer_rows = ANSWERER.answers(ask(row), [0.2], [predictor])
            answers[use.role] = answer_rows.row(0, named=True)
    return answers


@pytest.mark.parametrize("predictor", LAWS)
def test_the_least_of_the_modules(predictor: str) -> None:
    """A model's boundary is the smallest of its main modules' and names the one it comes from."""
    kinds = set()
    for place in range(0, len(POOL), 5):
        query = POOL[place]
        rows = pool().answers.filter(deployment=place, predictor=predictor, epsilon=0.2)
        for row in rows.to_dicts():
            alone = by_module(query, predictor, row["baseline"])
            assert set(alone) == {"attention", "MoE FFN" if query.moe else "Dense FFN"}
            assert row["n_max"] == min(module_row["n_max"] for module_row in alone.values())
            limiter = alone[row["limiting_module"]]
            assert row["n_max"] == limiter["n_max"]
            assert row["evidence"] == limiter["evidence"]
            assert row["limiting_term"] == limiter["limiting_term"]
            assert row["n_max_extended"] == min(x["n_max_extended"] for x in alone.values())
            assert (row["composition"], row["censored"]) == ("minimum", False)
            kinds.add(row["limiting_module"])
    assert len(kinds) > 1


@pytest.mark.parametrize(
    ("platform", "batch", "n_max", "module"),
    [
        ("h800", 1, 64, "attention"),
        ("h800", 8, 36.9, "Dense FFN"),
        ("h20", 1, 37, "Dense FFN"),
        ("h20", 8, 4.6, "Dense FFN"),
    ],
)
def test_a_dense_model_is_the_papers(platform: str, batch: int, n_max: float, module: str) -> None:
    """min(rho s / 2 b, M_attn) of Qwen3-8B with FlashAttention 2.8.3: 64, then 37 on an H800."""
    row = law(deployment(platform=platform, batch=batch), "principle")
    assert row["n_max"] == pytest.approx(min(RHO[platform] / batch, 64))
    assert row["n_max"] == pytest.approx(n_max, abs=0.05)
    assert row["limiting_module"] == module


@pytest.mark.parametrize("batch", [1, 2, 8, 64])
@pytest.mark.parametrize(("model", "experts", "top_k"), [
    ("qwen3_30b_a3b", 128, 8), ("ling_2_0_mini", 256, 8), ("mixtral_8x7b", 8, 2),
])  # fmt: skip
def test_a_sparse_model_is_the_papers(model: str, experts: int, top_k: int, batch: int) -> None:
    """Balanced: min(M_moe E / k, tau, M_attn), and with batch in it the first two by b."""
    row = law(deployment(model, batch=batch), "principle")
    slack, tau, m_attn = 16 * experts / top_k, experts, 64
    assert row["n_max"] == min(slack, tau, m_attn)
    assert row["n_max_extended"] == min(slack / batch, tau / batch, m_attn)
    assert row["evidence"].startswith("paper sec. 4.")
    flashinfer = deployment(model, attention="flashinfer==0.6.13", batch=batch)
    assert law(flashinfer, "principle")["n_max"] == min(slack, tau, 16)
    skewed = law(deployment(model, "skewed", batch=batch), "principle")
    assert skewed["n_max_extended"] == min(16 / batch, m_attn)


def test_one_silent_module_silences_the_law() -> None:
    """Where a law says nothing of one main module, it says nothing of the model, and says why."""
    engine = deployment(attention="vllm==0.20.2")
    row = law(engine, "principle")
    assert row["refusal"] == "attention: the paper prints no M_attn of vllm for bfloat16"
    assert row["n_max"] is row["limiting_module"] is row["limiting_term"] is row["evidence"] is None
    assert row["n_max_extended"] is row["margin"] is None
    assert law(engine, "idle_compute")["refusal"] is None


def test_the_margin_is_what_the_next_term_leaves() -> None:
    """The margin is how far above N_max the next smallest boundary lies, of any module."""
    row = law(deployment(batch=4), "principle")
    assert (row["n_max"], row["limiting_module"]) == (64, "attention")
    assert row["margin"] == pytest.approx(RHO["h800"] / 4 / 64)
    assert law(deployment(batch=8), "principle")["margin"] == pytest.approx(64 / RHO["h800"] * 8)


def test_the_headline_is_one_row_a_predictor() -> None:
    """A user is told each law's minimum and the work model's sum."""
    rows = headline(pool().answers)
    keys = ["deployment", "baseline", "predictor", "epsilon"]
    assert rows.select(keys).is_duplicated().sum() == 0
    assert set(rows.select("predictor", "composition").unique().rows()) == {
        *((name, "minimum") for name in LAWS), ("work_model", "sum"),
    }  # fmt: skip


@pytest.mark.parametrize("model", MODELS)
def test_a_law_knows_no_tolerance(model: str) -> None:
    """A law says the same at each tolerance."""
    places = [at for at, query in enumerate(POOL) if query.decoder.name == model]
    rows = pool().answers.filter(predictor="principle_resolved", deployment=places[0], baseline=1)
    assert rows["epsilon"].n_unique() == rows.height == 3
    assert rows.drop("epsilon").n_unique() == 1


@pytest.mark.parametrize("role", [f"{LAYER}, window 128, 2 of 3 layers", MIXING, INDEXER])
def test_what_is_no_product_has_knobs_of_its_own(role: str) -> None:
    """Attention to entries, mixed streams and indexers are not told to try another product."""
    assert knobs(role) != knobs(DENSE)
    assert any(knob.startswith("batch") for knob in knobs(role))
