"""Every platform answers for every kind of model, or names what is missing."""

import re
from functools import cache

import polars as pl
import pytest
from nearfree.core.predictors import PREDICTORS
from nearfree.derive.predict.answers import Answerer
from nearfree.derive.predict.forecast.forecast import Forecast, forecast
from nearfree.log.names import Layout

from derive.predict.forecast.pool import ANSWERER, CONFIG, MODELS, deployment

GPUS = [name for name, sheet in CONFIG.platforms.items() if sheet.kind == "cuda"]
DEPLOYMENTS = [
    deployment(model, platform=platform) for platform in CONFIG.platforms for model in MODELS
]
NEED_FACTS = ("idle_compute", "work_model")
LINES = re.compile(r"[\w./=,-]+:\d+-\d+ \([0-9a-f]{12}\)")
"""File, lines, and the beginning of the file's SHA-256."""


@cache
def forecasts() -> Forecast:
    """Return the forecasts of every platform and model."""
    return forecast(DEPLOYMENTS, ANSWERER, [0.2], grid=range(1, 65))


def named(refusal: str) -> set[str]:
    """Return the modules that a refusal names, each with its reason."""
    return {role for parts in refusal.split("; ") for role in parts.split(": ")[0].split(", ")}


@pytest.mark.parametrize("platform", CONFIG.platforms)
def test_each_predictor_answers_or_refuses(platform: str) -> None:
    """Each predictor gives a number with limiter and place, or a reason that names a module."""
    places = [at for at, deployment in enumerate(DEPLOYMENTS) if deployment.platform == platform]
    for place in places:
        rows = forecasts().answers.filter(deployment=place)
        assert set(rows["predictor"]) == set(PREDICTORS)
        roles = {use.role for use in DEPLOYMENTS[place].uses()}
        for row in rows.to_dicts():
            if row["refusal"] is not None:
                beyond = f"the baseline N={row['baseline']} is not on the grid"
                assert row["refusal"] == beyond or named(row["refusal"]) <= roles
                assert row["n_max"] is row["limiting_module"] is row["evidence"] is None
                continue
            assert row["n_max"] > 0
            assert row["evidence"]
            assert row["limiting_module"] in ({None} if row["censored"] else roles)
            assert bool(row["limiting_term"]) != row["censored"]


def test_a_platform_without_facts_says_which() -> None:
    """A CPU without a probe has neither phi nor beta, and the refusal says so."""
    places = [at for at, deployment in enumerate(DEPLOYMENTS) if deployment.platform == "cpu"]
    conditions = pl.col("deployment").is_in(places), pl.col("predictor").is_in(NEED_FACTS)
    rows = forecasts().answers.filter(*conditions)
    assert rows["refusal"].str.contains("no phi of cpu for bfloat16").all()
    assert rows["refusal"].null_count() == 0


def test_every_gpu_is_answered() -> None:
    """On every GPU all predictors answer for every model with recorded releases."""
    rows = forecasts().answers
    places = [at for at, deployment in enumerate(DEPLOYMENTS) if deployment.platform in GPUS]
    silent = rows.filter(pl.col("deployment").is_in(places), pl.col("refusal").is_not_null())
    ended = silent["refusal"].str.contains("is not on the grid")
    refusals = {
        (DEPLOYMENTS[row["deployment"]].platform, row["predictor"], row["refusal"])
        for row in silent.filter(~ended).to_dicts()
    }
    assert refusals == set()


def test_what_a_rule_limits_names_its_lines() -> None:
    """If attention or experts limit, the rule's file and lines are named."""
    ruled = forecasts().answers.filter(
        pl.col("limiting_module").is_in(["attention", "MoE FFN"]), predictor="work_model"
    )
    assert set(ruled["limiting_module"]) == {"attention", "MoE FFN"}
    for evidence in ruled["evidence"]:
        assert LINES.match(evidence), evidence


def test_a_fresh_log_refuses_by_name(layout: Layout) -> None:
    """Without rules and constants only laws of datasheets answer; others name what is missing."""
    answerer = Answerer(layout, CONFIG, offline=True, log_alone=True)
    rows = forecast(
        [deployment(), deployment("mixtral_8x7b")], answerer, [0.2], grid=[1, 2]
    ).answers
    for row in rows.to_dicts():
        known = row["predictor"] in ("idle_compute", "principle")
        assert (row["refusal"] is None) == known
        assert known or "attention" in named(row["refusal"])
