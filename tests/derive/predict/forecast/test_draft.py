"""A draft of a model's own layer: one layer and the LM head, as often as it drafts."""

import numpy as np
import pytest
from nearfree.decoders.modules import HEAD
from nearfree.derive.predict.forecast.deployment import Questions
from nearfree.derive.predict.forecast.draft import own_draft_us
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
