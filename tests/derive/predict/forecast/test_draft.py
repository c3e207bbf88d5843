"""A draft of a model's own layer: one layer and the LM head, as often as it drafts."""

import numpy as np
import pytest
from msgspec.structs import replace
from nearfree.decoders.modules import HEAD
from nearfree.derive.predict.forecast.deployment import Questions
from nearfree.derive.predict.forecast.draft import model_shares, own_draft_us, own_shares
from nearfree.derive.predict.forecast.total import total

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
