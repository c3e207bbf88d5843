"""A draft of a model's own layer or of a head: a layer and the LM head, as often as it drafts."""

import numpy as np
import pytest
from msgspec.structs import replace
from nearfree.decoders.decoder import States
from nearfree.decoders.modules import HEAD, STATES
from nearfree.derive.predict.forecast.deployment import Deployment, Questions
from nearfree.derive.predict.forecast.draft import (
    as_head,
    head_draft_us,
    head_shares,
    model_shares,
    own_draft_us,
    own_shares,
)
from nearfree.derive.predict.forecast.total import total
from nearfree.errors import EvidenceError

from derive.predict.forecast.pool import DENSE, SPARSE, deployment
from derive.predict.forecast.test_total import BLIND, DOUBLING


@pytest.mark.parametrize("model", [DENSE, SPARSE[0]])
def test_a_draft_is_a_layer_and_the_head_each_time(model: str) -> None:
    """Drafts run the layer on all rows of a step, then on one a request; none runs it once."""
    one = deployment(model, "balanced", batch=8, platform="h20")
    found = total(Questions([one], DOUBLING), BLIND)
    latency = found.latency_us[0]
    drafted = own_draft_us(one, found.roles[0], latency, found.grid)
    counts = {use.role: use.count for use in one.uses()}
    layer = sum(
        latency[place] / counts[role] for place, role in found.roles[0].items()
        if counts.get(role, 0) == one.decoder.layers
    )  # fmt: skip
    (head,) = (latency[place] for place, role in found.roles[0].items() if role == HEAD)
    once = layer + head
    assert drafted[0] == pytest.approx(once[0])
    assert drafted[1] == pytest.approx(once[1])
    at = DOUBLING.index(4)
    assert drafted[at] == pytest.approx(once[at] + 2 * once[0])
    assert (drafted < latency.sum(axis=0) + 8 * once[0]).all()
    assert np.isfinite(drafted).all()


def test_shares_are_of_one_position_at_the_same_batch() -> None:
    """A draft model runs once a token, and once where nothing is drafted; shares are of T(1)."""
    grid = [1, 2, 3, 4]
    asked = [deployment(DENSE, "balanced", batch=b, platform="h20") for b in (1, 8)]
    found = total(Questions(asked, grid), BLIND)
    drafting = [deployment(DENSE, "balanced", batch=b, platform="h20") for b in (8, 1)]
    drafter = total(Questions(drafting, [1]), BLIND)
    assert model_shares(found, asked, drafter, drafting) == {
        batch: pytest.approx([1.0, 1.0, 2.0, 3.0]) for batch in (1, 8)
    }
    own = own_shares(found, asked, {})
    for place, each in enumerate(asked):
        drafted = own_draft_us(each, found.roles[place], found.latency_us[place], found.grid)
        assert own[each.batch] == pytest.approx((drafted / found.model_us[place, 0]).tolist())
        assert 0 < own[each.batch][0] < 0.2


def test_the_host_counts_every_run_of_a_served_model() -> None:
    """A run of the own layer costs the host a step's constant, and its layer's kernels."""
    asked = [deployment(DENSE, "balanced", batch=8, platform="h20")]
    found = total(Questions(asked, [1, 2, 3, 4]), BLIND)
    steps = BLIND.engine_steps
    alone = own_shares(found, asked, steps)
    served = own_shares(found, [replace(asked[0], served=True)], steps)
    known = steps[asked[0].engine.name].constants
    each = (known.layer_us + known.step_us) / found.model_us[0, 0]
    more = np.array(served[8]) - np.array(alone[8])
    assert more == pytest.approx(each * np.array([1, 1, 2, 3]))


def head_of(target: Deployment, layers: int) -> Deployment:
    """Return a head of one layer of a model that reads states of some of its layers."""
    states = States(width=target.decoder.d_model, layers=layers)
    return as_head(
        replace(target, decoder=replace(target.decoder, layers=1, vocabulary=32000, states=states)),
        target,
    )


@pytest.mark.parametrize("layers", [1, 3])
def test_a_head_draws_from_one_row_of_a_request(layers: int) -> None:
    """It runs on all rows, then on one a request; its LM head on one a request at each run.

    States of several layers are brought together in the first run alone.
    """
    target = deployment(DENSE, "balanced", batch=8, platform="h20", served=True)
    head = head_of(target, layers)
    found = total(Questions([head], DOUBLING), BLIND)
    latency = {role: found.latency_us[0][at] for at, role in found.roles[0].items()}
    drawn = {role: np.full(len(DOUBLING), us[0]) if role == HEAD else us
             for role, us in latency.items()}  # fmt: skip
    first = sum(drawn.values())
    each = sum(us[0] for role, us in latency.items() if layers == 1 or role != STATES)
    drafted = head_draft_us(head, found, 0)
    for at, n in enumerate(DOUBLING):
        assert drafted[at] == pytest.approx(first[at] + max(n - 2, 0) * each)  # type: ignore[index]
    assert set(latency) == {use.role for use in head.uses()}


def test_shares_of_a_head_are_of_its_model() -> None:
    """They are shares of T(1) of the model, with what each run costs the host of its engine."""
    target = deployment(DENSE, "balanced", batch=8, platform="h20", served=True)
    head, steps = head_of(target, 3), BLIND.engine_steps
    found, drafter = (total(Questions([each], [1, 2, 3]), BLIND) for each in (target, head))
    shares = np.array(head_shares(found, [target], drafter, [head], steps)[8])
    alone = np.array(head_shares(found, [target], drafter, [head], {})[8])
    assert alone == pytest.approx(head_draft_us(head, drafter, 0) / found.model_us[0, 0])
    known = steps[target.engine.name].constants
    each = (known.layer_us + known.step_us) / found.model_us[0, 0]
    assert shares - alone == pytest.approx(each * np.array([1, 1, 2]))


def test_a_head_of_another_model_is_refused() -> None:
    """States are as wide as the model that they are of."""
    target, other = (deployment(name, platform="h20") for name in (DENSE, SPARSE[0]))
    head = replace(other, decoder=replace(
        other.decoder, states=States(width=other.decoder.d_model, layers=3)
    ))  # fmt: skip
    with pytest.raises(EvidenceError, match="reads states of 2048 elements, and those of qwen3_8b"):
        as_head(head, target)
