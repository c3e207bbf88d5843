"""Relations that hold between any answers: over N, tolerances, grids and other questions."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from nearfree.config.files import DeploymentSpec
from nearfree.derive.predict.forecast.deployment import Deployment
from nearfree.derive.predict.forecast.expand_deployments import expand
from nearfree.derive.predict.forecast.forecast import Forecast
from nearfree.derive.predict.forecast.total import SUM
from nearfree.errors import ConfigError
from nearfree.hardware.platforms import Platform

from derive.predict.forecast.pool import ANSWERER, CONFIG, forecast, forecast_of

pytestmark = pytest.mark.slow
SHORT = (1, 2, 3, 5, 8, 13, 64, 65)
TOLERANCES = (0.05, 0.2, 0.5)
FORMATS = ("float8", "float8_block", "int4", "nvfp4")
MODELS = ("qwen3_8b", "qwen3_30b_a3b", "mixtral_8x7b", "deepseek_v2_lite", "gpt_oss_20b")
OTHERS = ("llama_3_1_8b", "ling_2_0_mini")


def on_gpu(platform: Platform) -> bool:
    """Return whether a platform's T(N) may be known without a probe."""
    return platform.sm is not None


SPECS = st.fixed_dictionaries(
    {
        "models": st.sampled_from(MODELS).map(lambda item: (item,)),
        "platforms": st.sampled_from(
            [name for name, item in CONFIG.platforms.items() if on_gpu(item)]
        ).map(lambda item: (item,)),
        "batch": st.sampled_from((1, 3, 16, 128)).map(lambda item: (item,)),
        "context": st.sampled_from((128, 4095, 65536)).map(lambda item: (item,)),
        "routing": st.sampled_from(("balanced", "skewed", "power_law:1.2")).map(
            lambda item: (item,)
        ),
        "tp": st.sampled_from((1, 1, 2, 4)),
    },
    optional={
        "moe": st.sampled_from(("vllm==0.20.2", "vllm==0.33.0", "sglang==0.5.23")).map(
            lambda item: (item,)
        ),
        "weights": st.sampled_from(FORMATS),
        "kv_dtype": st.just("float8"),
        "graphs": st.just("none"),
    },
)


def answered(changes: dict[str, Any]) -> list[Deployment]:
    """Return a question's deployments; a refused question is no example."""
    try:
        deployments_, others = expand(CONFIG, DeploymentSpec(**changes))
    except ConfigError:
        deployments_, others = [], []
    assume(deployments_ and not others)
    return deployments_


def known(query: Deployment) -> Forecast:
    """Return a deployment's forecast over a short grid; one without T(N) is no example."""
    forecast_rows = forecast([query], ANSWERER, TOLERANCES, grid=SHORT, predictors=["work_model"])
    assume(forecast_rows.total.refusals[0] is None)
    return forecast_rows


@given(changes=SPECS)
def test_an_answer_holds_together(changes: dict[str, Any]) -> None:
    """Times are positive, shares make one, N_max is that of T(N), and a limit has a term.

    A larger tolerance has no smaller N_max, nor do its ends.
    """
    (query,) = answered(changes)
    deployments_ = known(query)
    times, parts = deployments_.total.model_us[0], deployments_.total.latency_us[0]
    assert np.isfinite(parts).all()
    assert (parts >= 0).all()
    assert parts.sum(axis=0) == pytest.approx(times)
    assert {place for place, part in enumerate(parts) if part.any()} <= {
        *deployments_.total.roles[0]
    }
    rows = deployments_.answers.filter(composition=SUM, baseline=1).sort("epsilon").to_dicts()
    assert [row["epsilon"] for row in rows] == [*TOLERANCES]
    for row in rows:
        near = [n for n, us in zip(SHORT, times, strict=True)
                if us <= (1.0 + row["epsilon"]) * times[0]]  # fmt: skip
        assert row["n_max"] == near[-1]
        assert row["low"] <= row["n_max"] <= row["high"]
        assert row["censored"] == (near[-1] == SHORT[-1])
        assert bool(row["limiting_module"] and row["limiting_term"]) is not row["censored"]
    for one, wider in pairwise(rows):
        assert all(one[name] <= wider[name] for name in ("low", "n_max", "high"))


@given(changes=SPECS, other=st.sampled_from(OTHERS), platform=st.sampled_from(("h20", "b200")))
def test_an_answer_is_the_same_in_any_company_and_on_any_grid(
    changes: dict[str, Any], other: str, platform: str
) -> None:
    """T(N) depends on N and the deployment only."""
    (query,) = answered(changes)
    times = known(query).total.model_us[0]
    beside = answered(
        {"models": (other,), "platforms": (platform,), "batch": (7,), "routing": ("balanced",)}
    )
    among = forecast_of(*beside, query, grid=SHORT, predictors=["work_model"])
    assert among.total.model_us[-1] == pytest.approx(times, rel=1e-9)
    longer = forecast_of(query, grid=range(1, 67), predictors=["work_model"]).total.model_us[0]
    assert longer[[n - 1 for n in SHORT]] == pytest.approx(times, rel=1e-9)
