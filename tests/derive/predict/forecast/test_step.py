"""A step that an engine serves: its modules, what lies between them, and the host."""

import numpy as np
import pytest
from msgspec.structs import replace
from nearfree.config.files import Config, DeploymentSpec
from nearfree.decoders.ranks.modules import BETWEEN, HOST, MOE, ROUTER, SHARED
from nearfree.derive.engine_step.form import between_us, host_us
from nearfree.derive.predict.answers import Answerer
from nearfree.derive.predict.forecast.deployment import Deployment, Questions
from nearfree.derive.predict.forecast.exits import module_exits, total_exits
from nearfree.derive.predict.forecast.expand_deployments import deployments
from nearfree.derive.predict.forecast.total import MINIMUM, SUM, Total, total

from derive.questions import LOG, ROOT

CONFIG = Config(ROOT / "config")
ANSWERER = Answerer(LOG, CONFIG, offline=True)
GRID = [1, 2, 4, 64, 256, 512]
MODELS = ROOT / "config" / "whole" / "models"


def served(model: str, moe: str = "vllm==0.20.2", batch: int = 2, tp: int = 8) -> Deployment:
    """Return a model on eight H100, served by an engine without graphs."""
    spec = DeploymentSpec(
        models=(str(MODELS / f"{model}.json"),), platforms=("h100",), moe=(moe,), graphs="none",
        routing=("balanced",), batch=(batch,), tp=tp,
    )  # fmt: skip
    (one,) = deployments(CONFIG, spec)
    return one


def timed(*queries: Deployment) -> Total:
    """Return T(N) of deployments."""
    return total(Questions(queries, GRID), ANSWERER)


def by_role(timed_forward: Total, deployment: int = 0) -> dict[str, list[float]]:
    """Return the time of each module, and of the rest, over the grid."""
    return {
        role: timed_forward.latency_us[deployment, place].tolist()
        for place, role in timed_forward.roles[deployment].items()
    }


def test_a_step_is_the_forward_with_what_lies_between_and_the_host() -> None:
    """The rest follows from the recorded constants, the platform's beta, and a rank's rows."""
    one = served("qwen3_32b")
    times_by_role = by_role(timed(one))
    step = ANSWERER.engine_steps["vllm"]
    tokens = 2.0 * np.array(GRID)
    wanted = between_us(
        step.constants, layers=64, sums=one.sums, d_model=5120, tokens=tokens,
        bandwidth_gb_s=ANSWERER.bandwidths_gb_s["h100"] or 0.0,
    )  # fmt: skip
    assert one.sums == (2 * 64 + 1 if one.parallel.tp > 1 else 0)
    assert times_by_role[BETWEEN] == pytest.approx(wanted)
    assert times_by_role[HOST] == pytest.approx([host_us(step.constants, batch=2)] * len(GRID))


def test_a_model_without_experts_is_served_by_the_engine_that_is_named() -> None:
    """A dense model's steps are those of the named engine."""
    one = served("qwen3_32b", moe="sglang==0.5.23")
    assert one.moe is None
    step = ANSWERER.engine_steps["sglang"]
    wanted = [host_us(step.constants, batch=2)] * len(GRID)
    assert by_role(timed(one))[HOST] == pytest.approx(wanted)
    sums = {use.setting.backend for use in one.uses() if use.setting.module == "collective"}
    assert "sglang" in sums
    assert "vllm" not in sums


def test_a_forward_by_itself_has_neither() -> None:
    """Without an engine T is that of the modules only."""
    alone = replace(served("qwen3_32b"), served=False)
    timed_forward = timed(alone, served("qwen3_32b"))
    assert not {BETWEEN, HOST} & by_role(timed_forward).keys()
    assert timed_forward.model_us[0] == pytest.approx(
        timed_forward.model_us[1] - timed_forward.latency_us[1, -2:].sum(axis=0)
    )
    assert "engine_step" not in timed_forward.constants[0]
    assert "engine_step_vllm" in timed_forward.constants[1]
    event = ANSWERER.engine_steps["vllm"].event.event_id
    assert [event in event_id for event_id in timed_forward.calibration] == [False, True]


def test_shared_experts_hide_behind_the_routed_ones() -> None:
    """Up to 256 tokens vLLM overlaps shared and routed experts, beyond they add up."""
    one = served("deepseek_r1", tp=8)
    seen, own = (by_role(timed(query)) for query in (one, replace(one, served=False)))
    for at, n in enumerate(GRID):
        routed = own[MOE][at] + own[ROUTER][at]
        hidden = min(own[SHARED][at], routed) if 2 * n <= 256 else 0.0
        assert seen[SHARED][at] == pytest.approx(own[SHARED][at] - hidden)
    assert seen[MOE] == own[MOE]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("composition", [SUM, MINIMUM])
def test_what_hides_wholly_ends_nothing(composition: str) -> None:
    """A module hidden at the baseline is judged where it is visible, without a warning."""
    one = served("glm_5", tp=8, batch=16)
    timed_forward = timed(replace(one, routing="balanced"))
    shared = by_role(timed_forward)[SHARED]
    assert 0.0 in shared
    (row,) = total_exits(timed_forward, [1], [0.2], composition).to_dicts()
    assert row["refusal"] is None
    alone = module_exits(timed_forward, 0, 0.2)
    assert BETWEEN not in alone["limiting_module"].to_list()
    assert alone.height == len(timed_forward.modules(0))


def test_an_engine_without_constants_is_answered_without_them() -> None:
    """Constants of other engines are not used instead."""
    lacking = Answerer(LOG, CONFIG, offline=True)
    lacking.engine_steps = {}
    total_us = total(Questions([served("qwen3_32b")], GRID), lacking)
    assert not {BETWEEN, HOST} & by_role(total_us).keys()
    assert total_us.refusals == [None]
