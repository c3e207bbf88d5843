"""T(N) of a model is the sum over its modules, each times its count."""

from collections.abc import Mapping
from itertools import product

import numpy as np
import pytest
from decoders.files import refusal
from msgspec.structs import asdict, replace
from nearfree.config.files import Config
from nearfree.decoders.ranks.modules import ModuleUse
from nearfree.derive.granularity.facts import with_facts
from nearfree.derive.predict.answers import Answerer
from nearfree.derive.predict.forecast.deployment import MOST_POINTS, Deployment, Questions
from nearfree.derive.predict.forecast.total import total
from nearfree.derive.work_model.constants import fitted, recorded_constants
from nearfree.derive.work_model.family import times_of
from nearfree.derive.work_model.prepare import Prepared, prepare

from derive.predict.forecast.pool import (
    DENSE,
    GRID,
    MODELS,
    POOL,
    SPARSE,
    deployment,
    forecast_of,
    pool,
)
from derive.questions import FACTS, LOG, RESOLVER, ROOT, ask

DOUBLING = [2**step for step in range(8)]
CONSTANTS = recorded_constants(LOG)
BLIND = Answerer(LOG, Config(ROOT / "config"), offline=True, blind=True)


def plain_us(asked_of: Deployment, use: ModuleUse) -> Mapping[int, float]:
    """Return T(N) of one module, asked alone, by N."""
    row = asdict(use.setting) | {
        "platform": asked_of.platform, "backend_version": use.backend_version, "baseline": 1,
    }  # fmt: skip
    (part,) = (
        part
        for part in prepare(with_facts(ask(row), FACTS), RESOLVER)
        if isinstance(part, Prepared)
    )
    times = times_of(part.family, fitted(CONSTANTS[part.family.name].data), part.features)
    return dict(zip(DOUBLING, times[0].tolist(), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(("model", "routing"), [
    (DENSE, "balanced"), *product(SPARSE, ("balanced", "skewed")),
])  # fmt: skip
def test_a_forward_is_the_sum_of_its_modules(model: str, routing: str) -> None:
    """T(N) is the sum of count times T(N) of each module asked alone."""
    one = deployment(model, routing, batch=8, platform="h20")
    total_us = total(Questions([one], DOUBLING), BLIND)
    by_hand = [
        sum(use.count * plain_us(one, use)[n] for use in one.uses()) for n in DOUBLING
    ]  # fmt: skip
    assert total_us.model_us[0].tolist() == pytest.approx(by_hand, rel=1e-9)


def test_answers_together_are_answers_alone() -> None:
    """A deployment's answer does not depend on other questions."""
    together = pool()
    for place in range(0, len(together.deployments), 17):
        alone = forecast_of(together.deployments[place])
        assert alone.curve(0).equals(together.curve(place))
        mine = together.answers.filter(deployment=place, epsilon=0.2).drop("deployment")
        assert alone.answers.drop("deployment").equals(mine)


def test_shares_make_the_whole() -> None:
    """At each N the modules' shares are non-negative and sum to 1."""
    for place in range(len(POOL)):
        curve = pool().curve(place)
        shares = curve.select(curve.columns[3:]).to_numpy()
        assert (shares >= 0).all()
        np.testing.assert_allclose(shares.sum(axis=1), 1.0)
        assert curve.columns[3:] == [use.role for use in POOL[place].uses()]


@pytest.mark.parametrize("model", MODELS)
def test_a_layer_more_is_one_layer_more(model: str) -> None:
    """Two layers take what one takes, and once more all but the LM head."""
    full = deployment(model)
    few = [
        replace(full, decoder=replace(
            full.decoder, layers=layers, moe_layers=layers * (model != DENSE)
        ))
        for layers in (1, 2)
    ]  # fmt: skip
    answer = forecast_of(*few)
    head = answer.total.latency_us[0, len(few[0].uses()) - 1]
    assert few[0].uses()[-1].role == "LM head"
    one, two = answer.total.model_us
    np.testing.assert_allclose(two - one, one - head)
    assert (head > 0).all()


def test_a_curve_is_relative_to_its_first_point() -> None:
    """Ratios are T(N) / T(1), over every N of the grid."""
    curve = forecast_of(deployment("mixtral_8x7b")).curve(0)
    assert (curve["n"][0], curve["ratio"][0]) == (1, 1.0)
    assert curve["ratio"].to_list() == pytest.approx(
        [us / curve["latency_us"][0] for us in curve["latency_us"]]
    )


def test_one_refused_module_refuses_the_whole() -> None:
    """If a module is refused, so is the model, with the module's reason."""
    known, unknown = deployment(), deployment(attention="flash-attn==9.9.9")
    answer = forecast_of(known, unknown)
    assert answer.total.refusals[0] is None
    assert str(answer.total.refusals[1]).startswith("attention: ")
    assert "9.9.9" in str(answer.total.refusals[1])
    assert answer.curve(1).is_empty()
    assert answer.curve(1).columns == answer.curve(0).columns
    refused = answer.answers.filter(predictor="work_model", deployment=1)
    assert set(refused["refusal"]) == {answer.total.refusals[1]}
    assert set(refused["composition"]) == {"sum", "minimum"}
    assert refused["n_max"].null_count() == refused.height == 2
    assert answer.answers.filter(deployment=0)["refusal"].null_count() == 5


def test_the_same_module_is_asked_once() -> None:
    """A module shared by two deployments is one question."""
    both = Questions([deployment(context=512), deployment(context=1024)], GRID)
    apart = {row["asked"] for row in both.uses.to_dicts() if row["role"] == "attention"}
    assert len(apart) == 2
    assert both.frame.height == len(deployment().uses()) + 1
    assert both.uses.height == 2 * len(deployment().uses())


def test_more_than_memory_holds_is_refused() -> None:
    """Too many points are refused with both counts before a computation."""
    most = range(1, MOST_POINTS + 1)
    error = refusal(lambda: Questions([deployment()] * 2, most))
    assert error is not None
    assert f"2 deployments with {MOST_POINTS} N" in error.what
    assert Questions([deployment()], most).grid[-1] == MOST_POINTS


def test_constants_are_named_once() -> None:
    """Constants and events are listed once per family."""
    total_us = total(Questions([deployment(), deployment(SPARSE[0])], [1, 2]), BLIND)
    assert [len(constant.split("; ")) for constant in total_us.constants] == [2, 3]
    assert [len(event_id) for event_id in total_us.calibration] == [2, 3]
    assert not total_us.in_sample.any()
    seen = total(Questions([deployment(platform="h100")], [1, 2]), BLIND)
    assert seen.in_sample.all()
